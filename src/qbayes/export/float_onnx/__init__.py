"""A float posterior as an ONNX model, with its randomness: what the integers are compared with."""

from qbayes.export.float_onnx.model import OUTPUT, float_model, float_noise_sites, float_pass

__all__ = ["OUTPUT", "float_model", "float_noise_sites", "float_pass"]
