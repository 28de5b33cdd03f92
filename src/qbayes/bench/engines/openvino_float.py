"""OpenVINO in float: the network as one would export it, masks and weights drawn inside the graph."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.models import ModelEngine, Run, openvino_session


@ENGINES.register("openvino_float")
class OpenVinoFloat(ModelEngine):
    """One run a draw."""

    title = "OpenVINO, float"
    numbers = "float"
    packages = ("onnx", "openvino")

    def session(self, path: Path) -> Run:
        return openvino_session(path)
