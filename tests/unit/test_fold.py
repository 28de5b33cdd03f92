"""Folding: the same function with fewer nodes, and the same draws whatever the sign of a norm."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.posterior.sites import Site, gaussian_layers, place_sites
from qbayes.quant.graph.convert import graph_of
from qbayes.quant.graph.fold import fold, norm_constants
from qbayes.quant.graph.nodes import Graph
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import quant_network

GAINS = torch.tensor([1.5, -2.0, 0.0, 0.5])


def norm(
    kind: type[nn.BatchNorm1d] | type[nn.BatchNorm2d], gains: Tensor = GAINS, affine: bool = True
) -> Any:
    made = kind(len(gains), affine=affine)
    if affine:
        nn.init.normal_(made.bias)
        made.weight.data.copy_(gains)
    assert made.running_mean is not None
    assert made.running_var is not None
    nn.init.normal_(made.running_mean)
    nn.init.uniform_(made.running_var, 0.5, 2.0)
    return made.eval()


class Of(nn.Module):
    """A forward pass around some layers."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def folded(network: nn.Module, shape: tuple[int, ...]) -> Graph:
    return fold(graph_of(network.eval(), torch.randn(7, *shape)))


def test_the_constants_of_a_norm_are_the_norm() -> None:
    for affine in (True, False):
        made = norm(nn.BatchNorm1d, affine=affine)
        gain, shift = norm_constants(made)
        x = torch.randn(20, 4)
        assert torch.allclose(gain * x + shift, made(x), atol=1e-6)


def twice(net: Any, x: Tensor) -> Tensor:
    return net.second(net.layer(net.first(net.layer(x))))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "behind a convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), norm(nn.BatchNorm2d), nn.ReLU()),
        (2, 5, 5),
        ["input", "weighted"],
    ),
    "behind one without a bias": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3, bias=False), norm(nn.BatchNorm1d)),
        (2, 5),
        ["input", "weighted"],
    ),
    "behind a linear layer": (
        lambda: nn.Sequential(nn.Linear(3, 4), norm(nn.BatchNorm1d)),
        (3,),
        ["input", "weighted"],
    ),
    "behind a linear layer along another axis": (
        lambda: nn.Sequential(nn.Linear(3, 5), norm(nn.BatchNorm1d)),
        (4, 3),
        ["input", "weighted", "affine"],
    ),
    "before the convolution": (
        lambda: nn.Sequential(norm(nn.BatchNorm2d), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)),
        (4, 5, 5),
        ["input", "affine", "weighted"],
    ),
    "a norm behind a norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), norm(nn.BatchNorm1d), norm(nn.BatchNorm1d)),
        (3,),
        ["input", "weighted", "affine"],
    ),
    "behind a ReLU": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), norm(nn.BatchNorm1d)),
        (3,),
        ["input", "weighted", "affine"],
    ),
    "a layer called twice": (
        lambda: Of(twice, layer=nn.Linear(4, 4), first=norm(nn.BatchNorm1d), second=norm(nn.BatchNorm1d)),
        (4,),
        ["input", "weighted", "affine", "weighted", "affine"],
    ),
    "a layer with two readers": (
        lambda: Of(
            lambda net, x: net.norm(y := net.layer(x)) + y, layer=nn.Linear(4, 4), norm=norm(nn.BatchNorm1d)
        ),
        (4,),
        ["input", "weighted", "affine", "add"],
    ),
    "a ReLU with two readers": (
        lambda: Of(lambda net, x: (y := net.layer(x)).relu() + y, layer=nn.Linear(4, 4)),
        (4,),
        ["input", "weighted", "clamp", "add"],
    ),
    "a ReLU behind a maximum": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 1), nn.MaxPool1d(2), nn.ReLU()),
        (2, 6),
        ["input", "weighted", "max_pool", "clamp"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_folded_network_is_the_network(name: str) -> None:
    make, shape, kinds = CASES[name]
    network = make().eval()
    assert [node.kind for node in folded(network, shape).nodes] == kinds
    x = torch.randn(9, *shape)
    with torch.no_grad():
        got = quant_network(network, shape, Precision()).without_rounding(x)
        assert isinstance(got, Tensor)
        assert torch.allclose(got, network(x), rtol=1e-5, atol=1e-5)


class Answered(nn.Module):
    """The layer's answer is a head, and ``behind`` is the only node that reads it."""

    def __init__(self, behind: nn.Module) -> None:
        super().__init__()
        self.layer, self.behind = nn.Linear(3, 4), behind

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean = self.layer(x)
        return {"mean": mean, "log_variance": self.behind(mean)}


@pytest.mark.parametrize(("kind", "behind"), [("affine", norm(nn.BatchNorm1d)), ("clamp", nn.ReLU())])
def test_nothing_is_folded_into_an_answer(kind: str, behind: nn.Module) -> None:
    network = Answered(behind).eval()
    assert [node.kind for node in folded(network, (3,)).nodes] == ["input", "weighted", kind]
    x = torch.randn(9, 3)
    with torch.no_grad():
        got, wanted = quant_network(network, (3,), Precision()).without_rounding(x), network(x)
    assert isinstance(got, dict)
    assert bool((wanted["mean"] < 0).any())
    for head, value in wanted.items():
        torch.testing.assert_close(got[head], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "limits"),
    [
        ([(0.0, math.inf)], (0.0, math.inf)),
        ([(0.0, 6.0), (-1.0, 4.0)], (0.0, 4.0)),
        ([(0.0, 6.0), (-3.0, -1.0)], (-1.0, -1.0)),
        ([(-3.0, -1.0), (0.0, 6.0)], (0.0, 0.0)),
        ([(-math.inf, 2.0), (1.0, math.inf)], (1.0, 2.0)),
    ],
)
def test_limits_behind_limits(steps: list[tuple[float, float]], limits: tuple[float, float]) -> None:
    clamps = [Of(lambda net, x, low=low, high=high: x.clamp(low, high)) for low, high in steps]
    network = nn.Sequential(nn.Linear(3, 4), *clamps)
    _, layer = folded(network, (3,)).nodes
    assert layer.options["clamp"] == limits
    x = torch.linspace(-8, 8, 101)
    wanted = x
    for low, high in steps:
        wanted = wanted.clamp(low, high)
    assert torch.equal(x.clamp(*limits), wanted)


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.Conv1d(2, 4, 3)])
def test_a_norm_turns_the_draws_with_its_sign(layer: nn.Module) -> None:
    """The noise of (seed, draw, site) moves every channel of the folded layer as it moved the float one."""
    shape = (3,) if isinstance(layer, nn.Linear) else (2, 9)
    plain = nn.Sequential(layer, norm(nn.BatchNorm1d))
    site = Site(0, "gaussian", "0", "replace", sigma=0.05, bias_number=1)
    network = place_sites(plain, [site]).eval()
    made = quant_network(network, shape, Precision())
    x = torch.randn(64, *shape)
    with made.calibrating():
        for part in x.split(16):
            made(part)
    made.eval()

    def moved(module: nn.Module, draw: int) -> Tensor:
        (held,) = gaussian_layers(module)
        drawn = held.draw_weights(3, torch.tensor([draw]))
        stream = noise.Stream(3, torch.tensor(draw), 0, {key: w[0] for key, w in drawn.items()}, len(x))
        with torch.no_grad():
            still = module(x)
            with noise.streaming(stream):
                return (module(x) - still).movedim(1, 0).flatten(1)

    ours, theirs = (torch.cat([moved(one, draw) for draw in range(6)], 1) for one in (made, network))
    for channel, gain in enumerate(GAINS.tolist()):
        if gain == 0:
            assert float(ours[channel].abs().max()) == 0.0
        else:
            assert float(torch.corrcoef(torch.stack([ours[channel], theirs[channel]]))[0, 1]) > 0.9
