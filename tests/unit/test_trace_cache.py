"""Members of one structure are traced once: what is built of each is what a trace of its own gives."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from qbayes.posterior.sites import Site, place_sites
from qbayes.quant.graph import convert as module
from qbayes.quant.graph.convert import Traces
from qbayes.quant.prepare import prepare_module

SITES = {
    "pointwise": [],
    "mcd": [Site(0, "mask", "conv", "after", 0.25)],
    "bbb": [Site(0, "gaussian", "conv", "replace", sigma=0.05), Site(1, "gaussian", "head", "replace")],
}
PRECISIONS = {"default": qb.Precision(4, 4), "paper": qb.Precision.preset("paper", weight=4, activation=4)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1))


class Shifted(Net):
    """A parameter of its own is part of the graph as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.shift


class Bent(Net):
    """A slope that is learned, in a function and not in weights."""

    def __init__(self) -> None:
        super().__init__()
        self.bend = nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(self.bend(self.norm(self.conv(x))), 2).flatten(1))


def members(make: type[nn.Module], method: str, count: int = 3) -> list[nn.Module]:
    """Networks of other weights, statistics of their norms included."""
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        network = place_sites(make(), copy.deepcopy(SITES[method]))
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.add_(0.1 * torch.rand_like(value))
        found.append(network.eval())
    return found


def count_traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    traced: list[int] = []
    graph_of = module.graph_of

    def counted(network: nn.Module, example: Tensor) -> object:
        traced.append(1)
        return graph_of(network, example)

    monkeypatch.setattr(module, "graph_of", counted)
    return traced


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", SITES)
def test_a_trace_is_used_again_and_nothing_is_shared(
    method: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, wanted = members(Net, method), PRECISIONS[precision]
    alone = [prepare_module(one, (1, 6, 6), wanted).state_dict() for one in networks]
    traced, traces = count_traces(monkeypatch), Traces()
    together = [prepare_module(one, (1, 6, 6), wanted, traces) for one in networks]
    assert len(traced) == 1
    for expected, made in zip(alone, together, strict=True):
        assert expected.keys() == made.state_dict().keys()
        assert all(torch.equal(value, expected[name]) for name, value in made.state_dict().items())


@pytest.mark.parametrize("make", [Shifted, Bent])
def test_numbers_outside_of_layers_are_traced_for_each(
    make: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, traced, traces = members(make, "pointwise"), count_traces(monkeypatch), Traces()
    for one in networks:
        prepare_module(one, (1, 6, 6), qb.Precision(), traces)
    assert len(traced) == len(networks)


def test_another_structure_is_traced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, traces = count_traces(monkeypatch), Traces()
    point, masked = members(Net, "pointwise")[0], members(Net, "mcd")[0]
    wide = Net()
    wide.conv, wide.norm, wide.head = nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Linear(20, 3)
    for network in (point, masked, wide.eval(), point):
        prepare_module(network, (1, 6, 6), qb.Precision(), traces)
    assert len(traced) >= 3
