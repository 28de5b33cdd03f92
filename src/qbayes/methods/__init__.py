"""Methods: pointwise, mcd, bbb and sghmc, one file each."""

from qbayes.methods.base import METHODS, Descent, Method, Preset, make_method

__all__ = ["METHODS", "Descent", "Method", "Preset", "make_method"]
