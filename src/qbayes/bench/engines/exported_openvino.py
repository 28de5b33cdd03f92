"""Our exported file in OpenVINO."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.exported import ExportedEngine


@ENGINES.register("exported_openvino")
class ExportedOpenVino(ExportedEngine):
    """The dialect ``qdq``."""

    title = "qbayes, exported to OpenVINO"
    packages = ("onnx", "openvino")
    runtime = "openvino"
    dialect = "qdq"
