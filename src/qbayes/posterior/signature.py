"""What travels with a posterior so that it takes raw inputs and answers in the task's units."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian, Likelihood, likelihood_from_json
from qbayes.posterior.transform import Standardize


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
