"""Training: one loop for every method."""

from qbayes.training.budget import Budget
from qbayes.training.fit import attach, fit

__all__ = ["Budget", "attach", "fit"]
