"""A float posterior as an ONNX model, with its randomness: what the integers are compared with."""

from qbayes.export.float_onnx.model import float_model, float_noise_sites

__all__ = ["float_model", "float_noise_sites"]
