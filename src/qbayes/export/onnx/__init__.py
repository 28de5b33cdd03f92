"""A program as ONNX models: draws, noise and statistics in the graph, or noise as inputs."""

from qbayes.export.onnx.metadata import MEMBERS, NOISES, OUTPUTS, Options
from qbayes.export.onnx.run import ExportedModel, noise_feeds, open_exported
from qbayes.export.onnx.write import export_onnx, onnx_model

__all__ = [
    "MEMBERS",
    "NOISES",
    "OUTPUTS",
    "ExportedModel",
    "Options",
    "export_onnx",
    "noise_feeds",
    "onnx_model",
    "open_exported",
]
