"""The best epoch: of each network the state with the least loss that was told, whatever else was told."""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from qbayes.quant.finetune.best_epoch import BestEpoch, ValidationLoss

NAN = math.nan


class Told:
    """Losses said in advance, one for each epoch; ``asked`` are the weights that they were asked for."""

    def __init__(self, losses: Sequence[float]) -> None:
        self.left, self.asked = list(losses), list[float]()

    def of(self, state: Mapping[str, Tensor]) -> float:
        self.asked.append(float(state["weight"]))
        return self.left.pop(0)


def pair() -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])


def split(state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    return [{"weight": state[f"{network}.weight"]} for network in range(2)]


def join(kept: dict[str, Tensor], now: Mapping[str, Tensor], network: int) -> None:
    kept[f"{network}.weight"] = now[f"{network}.weight"].clone()


def kept_epochs(
    losses: Sequence[Sequence[float]], members: list[dict[str, Tensor]] | None = None
) -> list[float]:
    """Weights are the number of the epoch, from 1; which of them are kept, for each of two networks."""
    told, network = [Told(one) for one in losses], pair()
    best = BestEpoch(cast(Sequence[ValidationLoss], told), split, join)
    state = SimpleNamespace(members=[] if members is None else members)
    best.loop = cast(Any, SimpleNamespace(module=network, state=state))
    for epoch in range(1, len(losses[0]) + 1 - (members is not None)):
        with torch.no_grad():
            for one in network:
                cast(nn.Linear, one).weight.fill_(epoch)
        if best.collect(epoch, len(losses[0])):
            state.members.append({name: value.clone() for name, value in network.state_dict().items()})
    assert len(state.members) == 1
    return [float(one["weight"]) for one in split(state.members[0])]


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([3.0, 1.0, 2.0], 2),
        ([1.0, 1.0, 2.0], 1),
        ([3.0, 2.0, 1.0], 3),
        ([NAN, 5.0, 7.0, 4.0, 6.0], 4),
        ([NAN, NAN, 5.0], 3),
        ([2.0, NAN, 3.0], 1),
        ([math.inf, 9.0, 10.0], 2),
        ([-1.0, -3.0, -2.0], 2),
    ],
)
def test_the_least_loss_is_kept_and_one_that_is_no_number_beats_none(losses: list[float], best: int) -> None:
    assert kept_epochs([losses, losses[::-1]])[0] == best
    assert kept_epochs([losses[::-1], losses])[1] == best


def test_each_network_of_a_stack_has_its_own_best() -> None:
    assert kept_epochs([[3.0, 1.0, 2.0, 4.0], [3.0, 4.0, 2.0, 1.0]]) == [2, 4]


@pytest.mark.parametrize(("before", "best"), [(0.5, 9), (1.5, 2), (NAN, 2)])
def test_a_resumed_run_has_to_beat_what_was_kept_before(before: float, best: int) -> None:
    """The first loss after a stop is that of the state at hand, the next one that of the state kept."""
    kept = {f"{network}.weight": torch.full((1, 1), 9.0) for network in range(2)}
    assert kept_epochs([[2.0, before, 1.0], [2.0, before, 1.0]], [kept]) == [best, best]
