"""Our exported file in ONNX Runtime."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.exported import ExportedEngine


@ENGINES.register("exported_onnxruntime")
class ExportedOnnxRuntime(ExportedEngine):
    """The dialect ``qoperator``."""

    title = "qbayes, exported to ONNX Runtime"
    packages = ("onnx", "onnxruntime")
    runtime = "onnxruntime"
    dialect = "qoperator"
