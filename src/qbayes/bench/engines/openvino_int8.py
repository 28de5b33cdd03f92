"""OpenVINO in int8: the model that ``onnxruntime.quantization`` makes, without anything of ours."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.models import Run, openvino_session
from qbayes.bench.engines.static_int8 import StaticInt8


@ENGINES.register("openvino_int8")
class OpenVinoInt8(StaticInt8):
    """One run a draw."""

    title = "OpenVINO, its int8 model"
    packages = ("onnx", "onnxruntime", "openvino")

    def session(self, path: Path) -> Run:
        return openvino_session(path)
