"""Affine standardisation of inputs and targets: ``z = (x − mean) / std``, fitted on training rows only."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.posterior.copying import Carried


@dataclass(frozen=True, eq=False)
class Standardize:
    """``z = (x − mean) / std`` along the first axis after the rows (features, or channels of an image).

    ``mean`` and ``std`` have one element a feature or channel, in the raw units of ``x``; uint8 images
    therefore have means such as 0.4914 · 255. A constant column has ``std`` 1.
    """

    mean: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        bad = not bool(torch.isfinite(self.mean).all() and torch.isfinite(self.std).all())
        if self.mean.shape != self.std.shape or self.mean.ndim != 1 or bad or bool((self.std <= 0).any()):
            raise BadInput(
                "mean and std must be finite vectors of one length, std above 0",
                f"mean {tuple(self.mean.shape)}, std {tuple(self.std.shape)}",
                "fit them with Standardize.fit(x_train), or give one value a feature or channel",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (Carried.of(self.mean), Carried.of(self.std))

    @classmethod
    def fit(cls, x: Tensor) -> "Standardize":
        """Mean and (biased) standard deviation over the rows and, for images, over the pixels."""
        axes = [axis for axis in range(x.ndim) if axis != 1]
        # float64: a column such as 1e6 ± 1 would lose its variance in float32.
        wide = x.double() if x.ndim > 1 else x.double()[:, None]
        std, mean = torch.std_mean(wide, dim=axes if x.ndim > 1 else [0], correction=0)
        # below the rounding of the column's own magnitude there is no variance to divide by.
        constant = std <= 1e-12 * mean.abs() + 1e-30
        return cls(mean.float(), torch.where(constant, torch.ones_like(std), std).float())

    @classmethod
    def identity(cls, features: int) -> "Standardize":
        return cls(torch.zeros(features), torch.ones(features))

    def apply(self, x: Tensor) -> Tensor:
        """Raw units to network units, in float32."""
        mean, std = self._shaped(x)
        return (x.float() - mean) / std

    def invert(self, z: Tensor) -> Tensor:
        """Network units back to raw units."""
        mean, std = self._shaped(z)
        return z * std + mean

    def to(self, device: torch.device | str) -> "Standardize":
        return Standardize(self.mean.to(device), self.std.to(device))

    def _shaped(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1,) + (1,) * (x.ndim - 2) if x.ndim > 1 else (-1,)
        return self.mean.to(x.device).view(shape), self.std.to(x.device).view(shape)


def _remade(mean: Carried, std: Carried) -> Standardize:
    return Standardize(mean.tensor(), std.tensor())
