"""What methods of gradient descent share: the choice of the optimiser, and weight decay."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from qbayes.errors import unknown_name
from qbayes.methods.base import Method, trainable

OPTIMIZERS = ("adam", "adamw", "sgd")


@dataclass(frozen=True, kw_only=True)
class Descent(Method):
    """A method trained by Adam, AdamW or SGD (with Nesterov momentum).

    ``weight_decay`` acts on weights (two or more axes), not on biases, norms and noises.
    """

    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", str(self.optimizer), OPTIMIZERS)
        self.require(0 <= self.weight_decay < math.inf, "weight_decay", "at least 0 and finite")
        self.require(0 <= self.momentum < 1, "momentum", "at least 0 and below 1")

    def make_optimizer(
        self,
        module: nn.Module,
        learning_rate: float,
        *,
        rows: int,
        steps_per_epoch: int,
        epochs: int,
        stacked: bool = False,
    ) -> torch.optim.Optimizer:
        parameters = trainable(module)
        groups = decay_groups(parameters, self.weight_decay, stacked=stacked)
        # one kernel for all parameters: on the CPU too a small network gains a tenth or more of a step.
        # There is none for complex numbers.
        fused = all(parameter.is_floating_point() for parameter in parameters)
        if self.optimizer == "sgd":
            nesterov = self.momentum > 0
            return torch.optim.SGD(groups, learning_rate, self.momentum, nesterov=nesterov, fused=fused)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, learning_rate, fused=fused)


def decay_groups(
    parameters: Iterable[nn.Parameter], weight_decay: float, *, stacked: bool = False
) -> list[dict[str, Any]]:
    """Two parameter groups: weights, which decay, and biases, norms and noises, which do not."""
    weights: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in parameters:
        if parameter.requires_grad:
            (weights if parameter.ndim - stacked >= 2 else rest).append(parameter)
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
