"""Methods: pointwise, mcd, bbb and sghmc, one file each."""

from qbayes.methods.base import METHODS, Method, Preset, make_method
from qbayes.methods.descent import Descent

__all__ = ["METHODS", "Descent", "Method", "Preset", "make_method"]
