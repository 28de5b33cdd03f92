"""ONNX Runtime in int8: the model that ``onnxruntime.quantization`` makes, without anything of ours."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.models import Run, onnxruntime_session
from qbayes.bench.engines.static_int8 import StaticInt8


@ENGINES.register("onnxruntime_int8")
class OnnxRuntimeInt8(StaticInt8):
    """One run a draw."""

    title = "ONNX Runtime, its int8 model"
    packages = ("onnx", "onnxruntime")

    def session(self, path: Path) -> Run:
        return onnxruntime_session(path)
