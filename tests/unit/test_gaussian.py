"""Gaussian weights: the plain layer at σ → 0, local reparametrisation against sampled weights, the KL."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.posterior.gaussian import GaussianLayer, gaussian_kl, inverse_softplus, total_kl

MODES = ["zeros", "reflect", "replicate", "circular"]
LAYERS = {
    "linear": lambda: (nn.Linear(6, 4), (3, 6)),
    "linear without bias": lambda: (nn.Linear(6, 4, bias=False), (3, 6)),
    "linear on tokens": lambda: (nn.Linear(6, 4), (3, 5, 6)),
    "conv1d": lambda: (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), (3, 4, 11)),
    "conv1d depthwise": lambda: (nn.Conv1d(4, 8, 3, padding=1, groups=4), (3, 4, 11)),
    "conv2d": lambda: (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(0, 1)), (3, 4, 8, 7)),
    "conv2d grouped": lambda: (nn.Conv2d(4, 6, 3, padding=1, groups=2, bias=False), (3, 4, 8, 7)),
    "conv2d depthwise": lambda: (nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), (3, 4, 8, 7)),
    **{
        f"conv2d same, {mode}": lambda mode=mode: (
            nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2), padding_mode=mode),
            (3, 2, 8, 7),
        )
        for mode in MODES
    },
    **{
        f"conv2d uneven, {mode}": lambda mode=mode: (
            nn.Conv2d(2, 3, 3, stride=2, padding=(1, 2), padding_mode=mode),
            (3, 2, 8, 7),
        )
        for mode in MODES
    },
    **{
        f"conv1d same, {mode}": lambda mode=mode: (
            nn.Conv1d(2, 3, 4, padding="same", padding_mode=mode),
            (3, 2, 9),
        )
        for mode in MODES
    },
    "conv2d valid, reflect": lambda: (
        nn.Conv2d(2, 3, 3, padding="valid", padding_mode="reflect"),
        (3, 2, 8, 7),
    ),
}


def draw_output(layer: GaussianLayer, x: Tensor, draw: int, seed: int = 0) -> Tensor:
    ids = torch.tensor([draw])
    drawn = {site: weight[0] for site, weight in layer.draw_weights(seed, ids).items()}
    with noise.streaming(noise.Stream(seed, ids[0], 0, drawn)):
        return layer.eval()(x)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_is_the_plain_layer_without_deviation(name: str) -> None:
    plain, shape = LAYERS[name]()
    x = torch.randn(shape)
    expected = plain(x)
    layer = GaussianLayer(plain, 0, 1e-9, bias_site=1)
    for found in (layer.eval()(x), draw_output(layer, x, 3), layer.train()(x)):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_local_reparametrisation_has_the_moments_of_sampled_weights(name: str) -> None:
    """Mean and variance of each output over 4000 weight draws, against the closed form of training."""
    plain, shape = LAYERS[name]()
    x = torch.randn(shape)[:1]
    layer = GaussianLayer(plain, 0, 0.3, bias_site=1)
    weights = layer.draw_weights(5, torch.arange(4000))
    bias = weights.get(1)

    def one(weight: Tensor, bias: Tensor | None) -> Tensor:
        return layer.map(x, weight, bias)

    sampled = torch.vmap(one, in_dims=(0, None if bias is None else 0))(weights[0], bias).double()
    mean = layer.eval()(x).double()
    bias_variance = None if bias is None else torch.full_like(plain.bias, 0.3**2)
    variance = layer.map(x * x, torch.full_like(plain.weight, 0.3**2), bias_variance).double()
    assert float(((sampled.mean(0) - mean) / (variance / 4000).sqrt()).abs().max()) < 5
    assert float((sampled.var(0) / variance - 1).abs().max()) < 6 * math.sqrt(2 / 4000)
    trained = torch.stack([layer.train()(x) for _ in range(2000)]).double()
    assert float(((trained.mean(0) - mean) / (variance / 2000).sqrt()).abs().max()) < 5
    assert float((trained.var(0) / variance - 1).abs().max()) < 6 * math.sqrt(2 / 2000)


@given(mean=st.floats(-5, 5), sigma=st.floats(1e-4, 10), prior=st.floats(1e-2, 10), count=st.integers(1, 5))
def test_kl_is_that_of_torch(mean: float, sigma: float, prior: float, count: int) -> None:
    mu = torch.full((count,), mean, dtype=torch.float64)
    deviation = torch.full((count,), sigma, dtype=torch.float64)
    oracle = kl_divergence(Normal(mu, deviation), Normal(0.0, torch.tensor(prior, dtype=torch.float64)))
    found = gaussian_kl(mu, deviation, prior)
    torch.testing.assert_close(found, oracle.sum(), rtol=1e-9, atol=1e-9)


def test_layers_kl_counts_the_bias_only_when_it_is_gaussian() -> None:
    plain = nn.Linear(5, 3)
    point, both = GaussianLayer(plain, 0, 0.1), GaussianLayer(plain, 0, 0.1, bias_site=1)
    q = kl_divergence(Normal(plain.bias, 0.1), Normal(0.0, 0.7)).sum()
    torch.testing.assert_close(both.kl(0.7) - point.kl(0.7), q, rtol=1e-4, atol=1e-4)
    assert point.bias_rho is None
    assert len(list(both.parameters())) == 4


def layers_of(seed: int) -> list[GaussianLayer]:
    """With and without a Gaussian bias; every weight has a deviation of its own."""
    torch.manual_seed(seed)
    plain = [nn.Conv2d(2, 3, 3), nn.Linear(5, 4, bias=False), nn.Linear(4, 1)]
    layers = [GaussianLayer(layer, 2 * i, 0.1, (None, 3, 5)[i]) for i, layer in enumerate(plain)]
    for layer in layers:
        for name, parameter in layer.named_parameters():
            if name.endswith("rho"):
                nn.init.uniform_(parameter, -4.0, 1.0)
    return [layer.double() for layer in layers]


def torchs_kl(layer: GaussianLayer, prior: float) -> Tensor:
    pairs = [(layer.weight_mean, layer.weight_rho), (layer.bias_mean, layer.bias_rho)]
    found = [
        kl_divergence(Normal(mean, nn.functional.softplus(rho)), Normal(0.0, prior)).sum()
        for mean, rho in pairs
        if mean is not None and rho is not None
    ]
    return torch.stack(found).sum()


def test_total_kl_is_the_sum_over_the_layers() -> None:
    layers = layers_of(0)
    expected = torch.stack([torchs_kl(layer, 0.7) for layer in layers])
    torch.testing.assert_close(torch.stack([layer.kl(0.7) for layer in layers]), expected)
    torch.testing.assert_close(total_kl(iter(layers), 0.7), expected.sum())
    parameters = [p for layer in layers for p in layer.parameters()]
    wanted, found = (
        torch.autograd.grad(total, parameters, allow_unused=True)
        for total in (expected.sum(), total_kl(layers, 0.7))
    )
    torch.testing.assert_close(found, wanted)


def test_total_kl_of_a_stack_is_that_of_each_network() -> None:
    """Networks side by side, as stacked training has them: the first axis of every parameter."""
    networks = [layers_of(seed) for seed in range(3)]
    stack = copy.deepcopy(networks[0])
    for i, layer in enumerate(stack):
        for name, parameter in layer.named_parameters():
            parameter.data = torch.stack([network[i].get_parameter(name).detach() for network in networks])
    expected = torch.stack(
        [torch.stack([torchs_kl(one, 0.4) for one in network]).sum() for network in networks]
    )
    torch.testing.assert_close(total_kl(stack, 0.4, stacked=True), expected)
    torch.testing.assert_close(total_kl(stack, 0.4), expected.sum())


@given(sigma=st.floats(1e-8, 100))
def test_inverse_softplus(sigma: float) -> None:
    rho = torch.tensor(inverse_softplus(sigma), dtype=torch.float64)
    assert float(nn.functional.softplus(rho, threshold=1000)) == pytest.approx(sigma, rel=1e-9)


def test_draws_are_keyed_by_seed_draw_and_site_but_not_by_row() -> None:
    layer = GaussianLayer(nn.Linear(8, 8, bias=False), 4, 0.5)
    one = layer.draw_weights(1, torch.tensor([2, 7]))[4]
    assert torch.equal(layer.draw_weights(1, torch.tensor([7]))[4][0], one[1])
    assert not torch.equal(layer.draw_weights(2, torch.tensor([7]))[4][0], one[1])
    other = copy.deepcopy(layer)
    other.site = 5
    assert not torch.equal(other.draw_weights(1, torch.tensor([7]))[5][0], one[1])
    epsilon = noise.gaussians(1, 4, torch.tensor([7]), (8, 8))[0]
    torch.testing.assert_close(one[1], layer.weight_mean + 0.5 * epsilon)


def test_gradients_reach_mean_and_deviation_even_at_zero_input() -> None:
    layer = GaussianLayer(nn.Linear(3, 2), 0, 0.1, bias_site=1).train()
    layer(torch.zeros(4, 3)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    layer(torch.randn(4, 3)).square().sum().backward()
    assert all(bool(p.grad.any()) for p in layer.parameters())


def test_all_zero_input_without_gaussian_bias_has_finite_gradient() -> None:
    """√ at 0: the gradient of the deviation must not be NaN."""
    layer = GaussianLayer(nn.Linear(3, 2), 0, 0.1).train()
    x = torch.zeros(4, 3, requires_grad=True)
    layer(x).sum().backward()
    assert bool(torch.isfinite(layer.weight_rho.grad).all())
    assert bool(torch.isfinite(x.grad).all())


def test_original_layer_is_not_shared() -> None:
    plain = nn.Linear(3, 2)
    layer = GaussianLayer(plain, 0, 0.1)
    with torch.no_grad():
        layer.weight_mean.add_(1)
    assert not torch.equal(layer.weight_mean, plain.weight)


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_sigma(sigma: float) -> None:
    with pytest.raises(BadInput, match="σ"):
        GaussianLayer(nn.Linear(2, 2), 0, sigma)


def test_a_layer_without_a_bias_has_no_site_for_its_noise() -> None:
    layer = GaussianLayer(nn.Linear(3, 2, bias=False), 0, 0.1, bias_site=1)
    assert layer.bias_site is None
    assert set(layer.draw_weights(0, torch.arange(2))) == {0}
    both = GaussianLayer(nn.Linear(3, 2), 0, 0.1, bias_site=1)
    assert both.bias_site == 1
    assert set(both.draw_weights(0, torch.arange(2))) == {0, 1}
