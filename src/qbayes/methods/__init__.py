"""Methods: pointwise, mcd, bbb and sghmc, one file each."""

from qbayes.methods.base import METHODS, Method, Preset, make_method

__all__ = ["METHODS", "Method", "Preset", "make_method"]
