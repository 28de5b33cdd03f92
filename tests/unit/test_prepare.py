"""The fake-quantised network in people's own hands: loops, copies, states, compilers, bits by layer."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.sites import Site, place_sites
from qbayes.quant.network import QuantNetwork

SITES = {
    "point": [],
    "mask": [Site(0, "mask", "act", "after", 0.25)],
    "gaussian": [Site(0, "gaussian", "conv", "replace", sigma=0.05), Site(1, "gaussian", "head", "replace")],
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(self.act(self.norm(self.conv(x))), 2).flatten(1))


def data(rows: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(rows) % 3
    return torch.randn(rows, 1, 6, 6, generator=generator) + 0.5 * y[:, None, None, None], y


def float_posterior(kind: str = "point") -> qb.NetworkPosterior:
    x, y = data()
    task = qb.Task.from_arrays(x, y, kind="classification", name="own")
    torch.manual_seed(2)
    return qb.Posterior.from_trained(place_sites(Net(), SITES[kind]).eval(), task.signature)


def prepared(kind: str = "point", precision: qb.Precision | None = None) -> QuantNetwork:
    made = qb.prepare(float_posterior(kind), precision or qb.Precision(4, 4))
    assert isinstance(made, QuantNetwork)
    return made


def train(network: Any, steps: int = 6) -> list[float]:
    """Somebody's own loop."""
    x, y = data()
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.05)
    losses: list[float] = []
    for _ in range(steps):
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("kind", SITES)
def test_an_own_loop_learns_and_evaluation_is_on_codes(kind: str) -> None:
    network = prepared(kind)
    losses = train(network, 20)
    assert min(losses[-3:]) < losses[0]
    network.eval()
    x, _ = data()
    with torch.no_grad():
        answers = network(x)
    scale, zero = network.layer("head").out.grid()
    codes = answers / scale + zero
    assert torch.allclose(codes, codes.round(), atol=1e-4)
    assert 0 <= codes.round().min() <= codes.round().max() <= 255


@pytest.mark.parametrize("loaded_in", ["training", "evaluation"])
@pytest.mark.parametrize("saved_in", ["training", "evaluation"])
@pytest.mark.parametrize("kind", SITES)
def test_a_state_means_the_same_wherever_it_was_saved_and_loaded(
    kind: str, saved_in: str, loaded_in: str
) -> None:
    one, other = prepared(kind), prepared(kind)
    train(one)
    saved = copy.deepcopy(one.train(saved_in == "training").state_dict())
    other.train(loaded_in == "training").load_state_dict(saved)
    one.eval()
    other.eval()
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    x, _ = data()
    with torch.no_grad():
        assert torch.equal(one(x), other(x))


@pytest.mark.parametrize("kind", SITES)
def test_settling_twice_changes_nothing(kind: str) -> None:
    network = prepared(kind)
    train(network)
    first = copy.deepcopy(network.eval().state_dict())
    again = network.train().eval().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("kind", SITES)
def test_a_copy_learns_by_itself(kind: str) -> None:
    network = prepared(kind)
    train(network)
    before = copy.deepcopy(network.state_dict())
    twin = copy.deepcopy(network)
    torch.manual_seed(0)
    train(twin)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    torch.manual_seed(0)
    train(network)
    assert all(torch.equal(network.state_dict()[name], v) for name, v in twin.state_dict().items())


@pytest.mark.parametrize("kind", SITES)
def test_a_compiled_step_is_the_step(kind: str) -> None:
    plain = prepared(kind)
    train(plain, 1)  # the first batch sets the ranges
    compiled = copy.deepcopy(plain)
    torch.manual_seed(3)
    wanted = train(plain, 3)
    torch.manual_seed(3)
    got = train(torch.compile(compiled, backend="eager"), 3)
    assert got == pytest.approx(wanted, rel=1e-5)


def test_a_network_without_data_is_refused_in_evaluation_and_names_its_range() -> None:
    network = prepared().eval()
    with pytest.raises(BadInput, match=r"range of input.*must have seen data"):
        network(data()[0])


def test_bits_go_where_they_were_asked_for() -> None:
    precision = qb.Precision(
        4, 5, input=6, output=7, overrides={"conv": {"weight": 3, "activation": 2}, "he*": {"weight": 8}}
    )
    network = prepared("point", precision)
    bits = {name: quantizer.bits for name, quantizer in network.quantizers()}
    assert bits == {
        "input.out": 6,
        "conv.out": 2,
        "conv.weights.quantizer": 3,
        "head.out": 7,
        "head.weights.quantizer": 8,
    }


def test_what_is_said_of_the_last_layer_by_name_comes_before_the_bits_of_outputs() -> None:
    network = prepared("point", qb.Precision(4, 5, output=7, overrides={"head": {"activation": 3}}))
    bits = {name: quantizer.bits for name, quantizer in network.quantizers()}
    assert bits["head.out"] == 3
    assert bits["conv.out"] == 5


def test_an_override_that_matches_no_layer_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadInput, match="haed") as told:
        prepared("point", qb.Precision(overrides={"haed": {"weight": 4}}))
    assert "head" in told.value.do


@pytest.mark.parametrize("kind", ["point", "gaussian"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(bad: float, kind: str) -> None:
    posterior = float_posterior(kind)
    (network,) = posterior.networks
    next(value for name, value in network.state_dict().items() if name.startswith("head")).flatten()[1] = bad
    with pytest.raises(BadInput, match="weights to quantise must be finite") as told:
        qb.prepare(posterior, qb.Precision(4, 4))
    assert "'head'" in told.value.got


@pytest.mark.parametrize("member", [-1, 1])
def test_members_are_counted_from_zero(member: int) -> None:
    with pytest.raises(BadInput, match="member"):
        qb.prepare(float_posterior(), qb.Precision(), member)


def test_only_a_float_posterior_can_be_prepared() -> None:
    with pytest.raises(BadInput, match="Net"):
        qb.prepare(Net(), qb.Precision())  # pyright: ignore[reportArgumentType]


def test_a_constant_noise_stays_around_the_network_in_float() -> None:
    x = torch.linspace(-1, 1, 20)[:, None]
    task = qb.Task.from_arrays(x, x, kind="regression", name="line")
    wrapped = ConstantNoise(nn.Linear(1, 1), (1,))
    wrapped.tenth_log_variance.data.fill_(0.3)
    made = qb.prepare(qb.Posterior.from_trained(wrapped, task.signature), qb.Precision())
    assert isinstance(made, ConstantNoise)
    assert isinstance(made.network, QuantNetwork)
    assert torch.equal(made.tenth_log_variance, wrapped.tenth_log_variance)
    assert made.tenth_log_variance.requires_grad
