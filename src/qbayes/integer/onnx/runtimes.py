"""ONNX Runtime and OpenVINO: whether they are installed, how to get them, and models opened in them."""

import threading
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from qbayes.errors import BadInput
from qbayes.threads import once

EXTRA_OF = {"onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino"}
RUNTIMES = ("onnxruntime", "openvino")
# bfloat16, OpenVINO's default on some processors, would not hold the codes, nor be the same float network.
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}

Arrays = Mapping[str, np.ndarray]
# Runs a model on named arrays and gives its outputs by name; any thread may call it.
Run = Callable[[Arrays], dict[str, np.ndarray]]


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


def open_model(model: bytes | Path, runtime: str, outputs: Collection[str], threads: int = 0) -> Run:
    """A model in a runtime on the CPU.

    Args:
        model: the bytes of an .onnx file, or its path.
        runtime: one of ``RUNTIMES``.
        outputs: the names to give; those that the model does not have are left out.
        threads: how many a run takes; with 0 the runtime chooses.
    """
    opened = _open_onnxruntime if runtime == "onnxruntime" else _open_openvino
    return opened(model, outputs, threads)


def _open_onnxruntime(model: bytes | Path, outputs: Collection[str], threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    source = model if isinstance(model, bytes) else str(model)
    session: Any = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.name in outputs]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _open_openvino(model: bytes | Path, outputs: Collection[str], threads: int) -> Run:
    options = {**EXACT, **({"INFERENCE_NUM_THREADS": threads} if threads else {})}
    read = core().read_model(model, b"") if isinstance(model, bytes) else core().read_model(model)
    compiled: Any = core().compile_model(read, "CPU", options)
    # an output goes by every name that its tensor has inside of the graph.
    names = [name for output in compiled.outputs for name in output.get_names() if name in outputs]
    of_thread = threading.local()

    def run(feeds: Arrays) -> dict[str, np.ndarray]:
        if not hasattr(of_thread, "request"):
            of_thread.request = compiled.create_infer_request()
        found = of_thread.request.infer(dict(feeds), share_inputs=True)
        return {name: np.array(found[name]) for name in names}

    return run


@once
def core() -> Any:
    """OpenVINO itself, once for the process and never let go.

    Each of its cores gives the thread a stack for signals; when several of them end in another order than
    they began, the thread is left with one that is gone, and the next signal (Ctrl-C) ends the process.

    OpenVINO's bindings make a table of numpy's types at their first use and give up Python's lock meanwhile.
    A second thread that comes then waits for the table and keeps the lock: the process stands still. So one
    thread makes the table here.
    """
    import openvino

    openvino.Type.f32.to_dtype()
    openvino.Tensor(np.zeros(1, np.float32))
    return openvino.Core()
