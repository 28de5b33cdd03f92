"""ONNX Runtime in float: the network as one would export it, masks and weights drawn inside the graph."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.models import ModelEngine, Run, onnxruntime_session


@ENGINES.register("onnxruntime_float")
class OnnxRuntimeFloat(ModelEngine):
    """One run a draw."""

    title = "ONNX Runtime, float"
    numbers = "float"
    packages = ("onnx", "onnxruntime")

    def session(self, path: Path) -> Run:
        return onnxruntime_session(path)
