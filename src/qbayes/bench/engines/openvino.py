"""Ours with convolutions and matrix products as small models in OpenVINO."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.programs import ProgramEngine


@ENGINES.register("openvino")
class OpenVinoEngine(ProgramEngine):
    """The backend ``openvino``."""

    title = "qbayes, backend openvino"
    backend = "openvino"
    packages = ("onnx", "openvino")
