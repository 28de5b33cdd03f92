"""Methods: pointwise, mcd, bbb and sghmc, one file each."""

from qbayes.methods.base import METHODS, Method, make_method
from qbayes.methods.descent import Descent
from qbayes.methods.preset import Preset

__all__ = ["METHODS", "Descent", "Method", "Preset", "make_method"]
