"""Ours with every op as a small model in ONNX Runtime."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.programs import ProgramEngine


@ENGINES.register("onnxruntime")
class OnnxRuntimeEngine(ProgramEngine):
    """The backend ``onnxruntime``."""

    title = "qbayes, backend onnxruntime"
    backend = "onnxruntime"
    packages = ("onnx", "onnxruntime")
