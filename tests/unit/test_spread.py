"""The spread of weights, on weights of which it is known."""

import math

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.lab.study.plan.result_row import weight_spread
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Site, place_sites

SITES = {
    "plain": [],
    "masked": [Site(0, "mask", "first", "before", rate=0.1), Site(1, "mask", "last", "after", rate=0.1)],
    "gaussian": [Site(0, "gaussian", "first", "replace", sigma=0.5)],
}


class Net(nn.Module):
    """Two matrices, and a scale of one axis that is none."""

    def __init__(self, first: Tensor, last: Tensor) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 2, bias=False), nn.LayerNorm(2)
        self.last = nn.Linear(2, 1)
        self.first.weight.data, self.last.weight.data = first, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


FIRST = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, 1.0, 5.0]])  # squares: 7 · 1 + 25, sum 6
LAST = torch.tensor([[2.0, -2.0]])


def posterior(sites: list[Site], *scales: float) -> NetworkPosterior:
    members = [place_sites(Net(scale * FIRST, scale * LAST), sites) for scale in scales]
    signature = qb.load_task("diabetes").signature
    return NetworkPosterior(members[0], [member.state_dict() for member in members], signature)


@pytest.mark.parametrize("kind", ["plain", "masked"])
def test_spread_is_the_largest_weight_over_the_root_mean_square(kind: str) -> None:
    assert weight_spread(posterior(SITES[kind], 1.0)) == {
        "spread/first": pytest.approx(5 / math.sqrt(32 / 8), rel=1e-5),
        "deviation/first": pytest.approx(math.sqrt(4 - 0.75**2), rel=1e-5),
        "spread/last": 1.0,
        "deviation/last": 2.0,
    }


def test_each_member_has_a_grid_of_its_own_and_the_deviation_is_of_all() -> None:
    """Members of scales 1 and 3: the spread is that of each; mean squares 4 and 36, means 0.75 and 2.25."""
    found = weight_spread(posterior([], 1.0, 3.0))
    assert found["spread/first"] == pytest.approx(2.5)
    assert found["deviation/first"] == pytest.approx(math.sqrt(20 - 1.5**2), rel=1e-5)


def test_noise_adds_its_variance_to_the_deviation_alone() -> None:
    found = weight_spread(posterior(SITES["gaussian"], 1.0))
    assert found["spread/first"] == pytest.approx(2.5)
    assert found["deviation/first"] == pytest.approx(math.sqrt(4 + 0.5**2 - 0.75**2), rel=1e-5)
    assert found["deviation/last"] == 2.0


def test_zeros_have_no_spread_and_what_is_not_finite_has_nothing() -> None:
    assert weight_spread(posterior([], 0.0)) == {"deviation/first": 0.0, "deviation/last": 0.0}
    assert weight_spread(posterior([], math.inf)) == {}


def test_a_network_of_one_layer_is_its_layer() -> None:
    layer = nn.Linear(2, 1)
    layer.weight.data = LAST
    one = NetworkPosterior(layer, [layer.state_dict()], qb.load_task("diabetes").signature)
    assert weight_spread(one) == {"spread/(the network)": 1.0, "deviation/(the network)": 2.0}


def test_rounding_to_a_grid_costs_what_the_spread_says() -> None:
    """``spread / (√3 (2ⁿ − 1))`` of the root mean square, here for eight bits."""
    weights = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    largest, rms = weights.abs().max(), weights.square().mean().sqrt()
    step = 2 * largest / 255
    lost = ((weights / step).round() * step - weights).square().mean().sqrt() / rms
    assert lost.item() == pytest.approx((largest / rms / (math.sqrt(3) * 255)).item(), rel=0.02)
