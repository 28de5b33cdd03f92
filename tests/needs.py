"""What a test may need of its machine: a test that is skipped is skipped here, in these words.

``.ci/run`` completes the machine and then says so (``QBAYES_COMPLETE=1``). There, only what no package brings
may be missing, ``BEYOND_PACKAGES``; any other reason fails the run (``skipped.py``).
"""

import importlib
import importlib.util
import os
import shutil
from types import ModuleType

import pytest
import torch

GPU = "an NVIDIA GPU"
TRITON = "Triton, or an NVIDIA GPU"
COMPILER = "a C compiler"
CHROMIUM = "Chromium"
WEB_RUNTIME = "ONNX Runtime Web (make vendor)"
INT8 = "int8 products in torch"
SATURATION = "a processor whose int8 products saturate"
X86 = "an x86 processor"
LINUX = "Linux"
MALLOPT = "a C library with mallopt, and an environment that leaves it alone"
EXAMPLES = "the examples of the whole checkout"
ORT_LIBRARY = "a Python package of ONNX Runtime with a library of its own"
ORT_HEADERS = "the headers of ONNX Runtime (ORT_INCLUDE: the folder of onnxruntime_cxx_api.h)"
# A processor has it or has not; Debian 12, PyPI and npm have no package with the headers.
BEYOND_PACKAGES = frozenset({GPU, SATURATION, X86, ORT_HEADERS})

ON_GPU = torch.cuda.is_available()
# set by conftest.py where there is Triton and no GPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None


def unless(there: object, what: str) -> pytest.MarkDecorator:
    """The mark of a test that is skipped unless ``what`` is there."""
    return pytest.mark.skipif(not there, reason=f"needs {what}")


gpu = unless(ON_GPU, GPU)
triton = unless(ON_GPU or INTERPRETED, TRITON)


def require(there: object, what: str) -> None:
    """Skip the test that runs, or the file that is being imported, unless ``what`` is there."""
    if not there:
        pytest.skip(f"needs {what}", allow_module_level=True)


def is_installed(name: str) -> bool:
    return importlib.util.find_spec(name.partition(".")[0]) is not None


def installed(name: str) -> pytest.MarkDecorator:
    """The mark of a test that imports a package."""
    return unless(is_installed(name), f"the package {name}")


def package(name: str) -> ModuleType:
    """The module, or what runs is skipped."""
    require(is_installed(name), f"the package {name}")
    return importlib.import_module(name)


def on_path(name: str) -> pytest.MarkDecorator:
    """The mark of a test that calls a program."""
    return unless(shutil.which(name), f"the program {name}")


def program(*names: str) -> None:
    """Skip what runs, unless all of these can be called."""
    for name in names:
        require(shutil.which(name), f"the program {name}")
