"""Training: one loop for every method."""

from qbayes.training.budget import Budget
from qbayes.training.fit import attach, fit
from qbayes.training.networks import network
from qbayes.training.recipe import recipe

__all__ = ["Budget", "attach", "fit", "network", "recipe"]
