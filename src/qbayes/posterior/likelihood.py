"""Likelihoods: how a network's outputs give the probability of a target.

A network returns a tensor, or a dict of heads:

- ``Categorical``: logits ``(…, rows, classes)``; ``−log p(y) = −log softmax(z)_y``.
- ``Gaussian``: heads ``mean`` and ``log_variance``, each ``(…, rows, *target)``;
  ``−log p(y) = ½ log 2π + ½ s + ½ (y − μ)² e^(−s)`` with ``s = log v``. A network with one output
  learns one constant noise for each target (see ``ConstantNoise``).

All functions reduce over the last axes only: leading axes (draws, or a stack of networks) are kept.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.errors import BadInput

Outputs = Tensor | Mapping[str, Tensor]

# exp(±20) spans any noise a standardised target can have and keeps exp() and its gradient finite.
LOG_VARIANCE_LIMIT = 20.0


class Likelihood(ABC):
    """The probability of a target given the network's outputs, in network units."""

    kind: ClassVar[str]

    @abstractmethod
    def nll(self, outputs: Outputs, target: Tensor) -> Tensor:
        """Negative log-likelihood of each row, ``(…, rows)``."""

    @abstractmethod
    def divergence(self, teacher: Outputs, outputs: Outputs) -> Tensor:
        """``KL(p_teacher ‖ p)`` of each row, ``(…, rows)``."""

    @abstractmethod
    def check(self, outputs: Any, rows: int) -> None:
        """Raise unless ``outputs`` has the form this likelihood reads, for ``rows`` rows."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...


def _check_rows(got: Tensor, rows: int) -> None:
    if got.ndim == 0 or got.shape[0] != rows:
        raise BadInput(
            "the network must keep its batch: one output row for each input row",
            f"{rows} rows in, outputs of shape {tuple(got.shape)}",
            "reshape with x.flatten(1) or x.view(x.size(0), -1), never over the first axis",
        )


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of ``classes`` labels; the network gives logits."""

    kind: ClassVar[str] = "categorical"
    classes: int

    def nll(self, outputs: Outputs, target: Tensor) -> Tensor:
        assert isinstance(outputs, Tensor)
        target = target.long().expand(outputs.shape[:-1])
        return -F.log_softmax(outputs, dim=-1).gather(-1, target[..., None])[..., 0]

    def divergence(self, teacher: Outputs, outputs: Outputs) -> Tensor:
        assert isinstance(outputs, Tensor)
        assert isinstance(teacher, Tensor)
        wanted = F.log_softmax(teacher, dim=-1)
        return (wanted.exp() * (wanted - F.log_softmax(outputs, dim=-1))).sum(-1)

    def check(self, outputs: Any, rows: int) -> None:
        if not isinstance(outputs, Tensor):
            raise BadInput(
                "a classifier must return one tensor of logits",
                f"{type(outputs).__name__}",
                "return the logits alone from the network's forward",
            )
        _check_rows(outputs, rows)
        if outputs.ndim != 2 or outputs.shape[1] != self.classes:
            raise BadInput(
                f"the network must give {self.classes} logits a row, one for each class",
                f"outputs of shape {tuple(outputs.shape)}",
                "set the width of its last layer to the number of classes",
            )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "classes": self.classes}


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Real targets of shape ``(rows, *shape)`` with Gaussian noise, constant or a head of the network."""

    kind: ClassVar[str] = "gaussian"
    shape: tuple[int, ...] = (1,)

    def nll(self, outputs: Outputs, target: Tensor) -> Tensor:
        mean, log_variance = gaussian_heads(outputs)
        per_element = 0.5 * (
            math.log(2 * math.pi) + log_variance + (target - mean) ** 2 * torch.exp(-log_variance)
        )
        return per_element.flatten(-len(self.shape)).sum(-1)

    def divergence(self, teacher: Outputs, outputs: Outputs) -> Tensor:
        """``½ (s − s_t − 1 + (v_t + (μ_t − μ)²) e^(−s))``, summed over a row's targets."""
        wanted, wanted_log_variance = gaussian_heads(teacher)
        mean, log_variance = gaussian_heads(outputs)
        spread = torch.exp(wanted_log_variance) + (wanted - mean) ** 2
        per_element = 0.5 * (log_variance - wanted_log_variance - 1 + spread * torch.exp(-log_variance))
        return per_element.flatten(-len(self.shape)).sum(-1)

    def check(self, outputs: Any, rows: int) -> None:
        heads = outputs if isinstance(outputs, Mapping) else {"mean": outputs}
        if isinstance(outputs, Mapping) and set(outputs) != {"mean", "log_variance"}:
            raise BadInput(
                "a regression network must return one tensor, or heads 'mean' and 'log_variance'",
                f"heads {sorted(map(str, outputs))}",
                "name the two heads so, or return the mean alone to learn a constant noise",
            )
        for name, head in heads.items():
            if not isinstance(head, Tensor):
                raise BadInput(
                    f"the head '{name}' must be a tensor",
                    type(head).__name__,
                    "return a tensor, or a dict of tensors, from the network's forward",
                )
            _check_rows(head, rows)
            if tuple(head.shape[1:]) != self.shape:
                raise BadInput(
                    f"the head '{name}' must have the targets' shape {self.shape} for each row",
                    f"{tuple(head.shape[1:])}",
                    "set the width of the last layer to the number of targets",
                )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "shape": list(self.shape)}


def gaussian_heads(outputs: Outputs) -> tuple[Tensor, Tensor]:
    """``(mean, log_variance)``, the log-variance clamped where ``exp`` would leave float32."""
    if isinstance(outputs, Tensor):
        raise BadInput(
            "a Gaussian likelihood reads heads 'mean' and 'log_variance'",
            "one tensor",
            "wrap the network in qbayes.posterior.likelihood.ConstantNoise to learn a constant noise",
        )
    limit = LOG_VARIANCE_LIMIT
    return outputs["mean"], outputs["log_variance"].clamp(-limit, limit)


def likelihood_from_json(data: Mapping[str, Any]) -> Likelihood:
    if data.get("kind") == "categorical":
        return Categorical(int(data["classes"]))
    if data.get("kind") == "gaussian":
        return Gaussian(tuple(int(n) for n in data["shape"]))
    raise BadInput("the likelihood must be categorical or gaussian", f"{data!r}", "check the file's source")


class ConstantNoise(nn.Module):
    """A network that gives the mean alone, with one learned noise a target: ``v = exp(log_variance)``."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        # exp(−2): a first guess of 13 % of a standardised target's variance; learned from there. It has units
        # of 10 nats: a step of Adam has the size of the learning rate, and the noise must be able to fall by
        # several nats while weights move by tenths.
        self.tenth_log_variance = nn.Parameter(torch.full(shape, -0.2))

    @property
    def log_variance(self) -> Tensor:
        return 10.0 * self.tenth_log_variance

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean: Tensor = self.network(x)
        return {"mean": mean, "log_variance": self.log_variance.expand_as(mean)}
