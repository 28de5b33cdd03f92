"""What travels with a posterior so that it takes raw inputs and answers in the task's units."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.posterior.copying import Carried
from qbayes.posterior.likelihood import Categorical, Gaussian, Likelihood, likelihood_from_json


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
        mean, std = self._reshape(x)
        return (x.float() - mean) / std

    def invert(self, z: Tensor) -> Tensor:
        """Network units back to raw units."""
        mean, std = self._reshape(z)
        return z * std + mean

    def to(self, device: torch.device | str) -> "Standardize":
        return Standardize(self.mean.to(device), self.std.to(device))

    def _reshape(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1,) + (1,) * (x.ndim - 2) if x.ndim > 1 else (-1,)
        return self.mean.to(x.device).view(shape), self.std.to(x.device).view(shape)


def _remade(mean: Carried, std: Carried) -> Standardize:
    return Standardize(mean.tensor(), std.tensor())


@dataclass(frozen=True, eq=False)
class Signature:
    """Input shape (without the rows), input transform, target scale, likelihood and labels.

    ``target`` is the standardisation of regression targets (None for classification); ``labels`` are the
    class names, or the names of the targets.
    """

    task: str
    input_shape: tuple[int, ...]
    transform: Standardize
    likelihood: Likelihood
    target: Standardize | None = None
    labels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "input_shape": list(self.input_shape),
            "transform": _numbers(self.transform),
            "likelihood": self.likelihood.to_json(),
            "target": None if self.target is None else _numbers(self.target),
            "labels": list(self.labels),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Signature":
        target = data["target"]
        found = cls(
            task=str(data["task"]),
            input_shape=tuple(int(n) for n in data["input_shape"]),
            transform=_standardize(data["transform"]),
            likelihood=likelihood_from_json(data["likelihood"]),
            target=None if target is None else _standardize(target),
            labels=tuple(str(label) for label in data["labels"]),
        )
        found._check()
        return found

    def _check(self) -> None:
        """Raise unless the parts fit each other; what a file says need not."""
        likelihood, target = self.likelihood, self.target
        if isinstance(likelihood, Categorical):
            answers, scaled = likelihood.classes, target is None
        else:
            assert isinstance(likelihood, Gaussian)
            answers = likelihood.shape[0] if likelihood.shape else 0
            scaled = target is not None and len(target.mean) == answers
        positive = answers > 0 and bool(self.input_shape) and min(self.input_shape) > 0
        if not positive or not scaled or len(self.transform.mean) != self.input_shape[0]:
            raise BadInput(
                "input shape, scales and likelihood of a signature must fit each other",
                f"inputs {self.input_shape}, scale of {len(self.transform.mean)}, {likelihood}",
                "check the file's source",
            )
        if self.labels and len(self.labels) != answers:
            raise BadInput(
                f"there must be one label for each of {answers} classes or targets",
                f"{len(self.labels)}",
                "check the file's source",
            )


def _numbers(scale: Standardize) -> dict[str, list[float]]:
    # a float32 printed by repr() of its float64 value reads back to the same bits.
    return {"mean": scale.mean.tolist(), "std": scale.std.tolist()}


def _standardize(data: Mapping[str, Any]) -> Standardize:
    return Standardize(
        torch.tensor(data["mean"], dtype=torch.float32), torch.tensor(data["std"], dtype=torch.float32)
    )
