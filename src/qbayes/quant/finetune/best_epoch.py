"""The epoch of quantisation-aware training with the least validation NLL, for one network or a stack."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import state_to
from qbayes.tasks import Task
from qbayes.training.loop import Loop

_VALIDATION_DRAWS = 4
States = Sequence[Mapping[str, Tensor]]


Answering = Callable[[nn.Module, Mapping[str, Tensor]], nn.Module]


class ValidationLoss:
    """The mean NLL of the validation rows, averaged over a few draws.

    ``answering`` gives, from a copy of the module in training and a state, what answers in evaluation.
    """

    def __init__(self, module: nn.Module, task: Task, answering: Answering) -> None:
        # evaluation settles a network: the one in training must not be touched by it.
        self.task, self.twin, self.answering = task, copy.deepcopy(module), answering

    @torch.no_grad()
    def of(self, state: Mapping[str, Tensor]) -> float:
        network = self.answering(self.twin, state)
        posterior = NetworkPosterior(network, [network.state_dict()], self.task.signature)
        total, rows = 0.0, 0
        for x, y in self.task.batches("validation", 2048):
            prediction = posterior.predict(x, _VALIDATION_DRAWS, 0, first_row=rows)
            total += float(_row_nll(prediction, y).sum())
            rows += len(x)
        return total / rows


class BestEpoch:
    """Keeps, of each network, the state with the least loss so far, and only that.

    ``split`` gives the states of the networks out of a loop's module; ``join`` writes that of one network
    over its part of a kept state.
    """

    def __init__(
        self,
        losses: Sequence[ValidationLoss],
        split: Callable[[Mapping[str, Tensor]], States],
        join: Callable[[dict[str, Tensor], Mapping[str, Tensor], int], None],
    ) -> None:
        self.losses, self.split, self.join = losses, split, join
        self.loop: Loop | None = None
        self.best: list[float] | None = None

    def collect(self, epoch: int, epochs: int) -> bool:
        """Whether the loop is to keep its state: the first one; later ones are written over it."""
        assert self.loop is not None
        now, kept = self.loop.module.state_dict(), self.loop.state.members
        found = self._losses_of(now)
        if not kept:
            self.best = found
            return True
        if self.best is None:
            # resumed: what was kept before has to be beaten.
            self.best = self._losses_of(kept[-1])
        for network, loss in enumerate(found):
            if loss < self.best[network] or math.isnan(self.best[network]):
                self.best[network] = loss
                self.join(kept[-1], state_to(now, "cpu"), network)
        return False

    def _losses_of(self, state: Mapping[str, Tensor]) -> list[float]:
        pairs = zip(self.losses, self.split(state), strict=True)
        return [loss.of(one) for loss, one in pairs]


def _row_nll(prediction: Any, y: Tensor) -> Tensor:
    if hasattr(prediction, "log_mean"):
        return -prediction.log_mean.gather(-1, y.long().cpu()[:, None])[:, 0]
    return -prediction.log_prob(y.cpu())
