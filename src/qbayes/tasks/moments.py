"""Mean and standard deviation in one pass over batches, for data that does not fit memory."""

import torch
from torch import Tensor

from qbayes.posterior.transform import Standardize


class Moments:
    """Running mean and sum of squared deviations of each feature or channel, merged batch by batch.

    With n rows seen and m new ones, ``δ = mean_new − mean``:
    ``mean ← mean + δ m / (n + m)``, ``M2 ← M2 + M2_new + δ² n m / (n + m)``
    (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983).
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(0, dtype=torch.float64)
        self.squares = torch.zeros(0, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """``x`` is ``(rows, features, …)``; all axes but the second are averaged over."""
        wide = x.double().transpose(0, 1).flatten(1)
        count, mean = wide.shape[1], wide.mean(1)
        squares = (wide - mean[:, None]).square().sum(1)
        if self.count == 0:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, delta = self.count + count, mean - self.mean
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def standardize(self) -> Standardize:
        """The transform to mean 0 and (biased) standard deviation 1; a constant column has ``std`` 1."""
        std = (self.squares / self.count).sqrt()
        # below the rounding of the column's own magnitude there is no variance to divide by.
        constant = std <= 1e-12 * self.mean.abs() + 1e-30
        return Standardize(self.mean.float(), torch.where(constant, torch.ones_like(std), std).float())


def fit_standardize(x: Tensor, chunk: int = 4096) -> Standardize:
    """``Standardize`` of all rows of ``x``, without a float64 copy of the whole."""
    moments = Moments()
    for start in range(0, len(x), chunk):
        moments.add(x[start : start + chunk])
    return moments.standardize()
