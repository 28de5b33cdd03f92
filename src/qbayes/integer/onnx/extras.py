"""Packages that only some users install: whether they are there, and how to get them."""

from importlib.util import find_spec

from qbayes.errors import BadInput

EXTRA_OF = {"onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino"}


def missing(*packages: str) -> str | None:
    """Which of the packages is not installed, with the line that installs it; None if all are there."""
    for package in packages:
        if find_spec(package) is None:
            return f"the package {package} is not installed: {install_line(packages[-1])}"
    return None


def require(*packages: str) -> None:
    """Raise unless the packages are installed; the last one names the extra."""
    for package in packages:
        if find_spec(package) is None:
            raise BadInput(
                f"the package {package} must be installed", "it is not", install_line(packages[-1])
            )


def install_line(package: str) -> str:
    return f"pip install 'qbayes[{EXTRA_OF[package]}]'"
