"""Bayes-by-Backprop against the closed-form mean-field posterior of linear regression."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.methods.bbb import BayesByBackprop
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.sites import gaussian_layers


class KnownNoise(nn.Module):
    """``y = x·w + N(0, 1)``: a linear model whose noise is known."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weights = nn.Linear(features, 1, bias=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean = self.weights(x)
        return {"mean": mean, "log_variance": torch.zeros_like(mean)}


def correlated_regression(rows: int = 200) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    mixing = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.3], [0.0, 0.0, 0.9]])
    x = torch.randn(rows, 3, generator=generator) @ mixing
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + torch.randn(rows, generator=generator)
    return x, y[:, None]


def posterior_precision(x: Tensor, prior_sigma: float) -> Tensor:
    """``Λ = XᵀX + 1/σ_p²`` for unit noise."""
    return x.T @ x + torch.eye(x.shape[1]) / prior_sigma**2


@pytest.fixture(scope="module")
def fitted() -> tuple[qb.NetworkPosterior, Tensor, Tensor]:
    # many rows: the noise of local reparametrisation averages over them.
    x, y = correlated_regression(2000)
    # standardised targets would change the noise: the task is given in network units.
    task = qb.Task.from_arrays(x, y, kind="regression", standardize=False)
    budget = qb.Budget(epochs=4000, batch_size=len(x), learning_rate=1e-2)
    torch.manual_seed(0)
    method = qb.method("bbb", prior_sigma=2.0, sigma_linear=0.03)
    # four runs: a single one ends within about 1.5 % of the optimal variances, by the noise of its gradient.
    posterior = qb.fit(KnownNoise(3), task, method, budget, chains=4, device="cpu")
    return posterior, x, y


def test_the_inputs_are_correlated() -> None:
    x, _ = correlated_regression()
    assert torch.corrcoef(x.T)[0, 1] > 0.7


def test_mean_is_the_analytic_posterior_mean(fitted: tuple[qb.NetworkPosterior, Tensor, Tensor]) -> None:
    posterior, x, y = fitted
    precision = posterior_precision(x, 2.0)
    mean = torch.linalg.solve(precision, x.T @ y)[:, 0]
    for network in posterior.networks:
        (layer,) = gaussian_layers(network)
        in_deviations = (layer.weight_mean[0] - mean) * precision.diagonal().sqrt()
        assert in_deviations.abs().max() < 0.05


def test_variances_are_the_mean_field_optimum(fitted: tuple[qb.NetworkPosterior, Tensor, Tensor]) -> None:
    """The best factorised Gaussian has variances ``1/Λ_ii``, below the marginals ``(Λ⁻¹)_ii``."""
    posterior, x, _ = fitted
    precision = posterior_precision(x, 2.0)
    layers = [layer for network in posterior.networks for layer in gaussian_layers(network)]
    ratio = torch.stack([layer.weight_sigma[0] ** 2 for layer in layers]).mean(0) * precision.diagonal()
    assert (ratio - 1).abs().max() < 0.03
    marginal = torch.linalg.inv(precision).diagonal()
    assert marginal[1] * precision[1, 1] > 2.0  # so that the test could not pass with the marginals


def test_draws_have_the_fitted_moments(fitted: tuple[qb.NetworkPosterior, Tensor, Tensor]) -> None:
    ensemble, x, _ = fitted
    posterior = qb.Posterior.from_trained(ensemble.network, ensemble.signature)
    (layer,) = gaussian_layers(posterior.network)
    draws = 4000
    answer = posterior.predict(x[:5], draws=draws, seed=3)
    mean = x[:5] @ layer.weight_mean[0]
    variance = (x[:5] ** 2) @ layer.weight_sigma[0] ** 2
    assert ((answer.mean[:, 0] - mean).abs() < 5 * (variance / draws).sqrt()).all()
    # the variance of a sample variance is 2σ⁴/(L − 1).
    assert ((answer.draws.var(0)[:, 0] / variance - 1).abs() < 5 * math.sqrt(2 / (draws - 1))).all()


def test_loss_is_the_negative_evidence_bound_of_one_row() -> None:
    """``N·loss = −E log p + KL``, whatever the batch: the KL is divided by N, not by the batches."""
    x, y = correlated_regression(40)
    method = BayesByBackprop(prior_sigma=0.7, kl_weight=0.3)
    module, _ = method.attach(KnownNoise(3))
    module.eval()
    likelihood = qb.Task.from_arrays(x, y, kind="regression").signature.likelihood
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(module.weights.weight_mean, module.weights.weight_sigma),
        torch.distributions.Normal(0.0, 0.7),
    ).sum()
    for batch in (slice(0, 40), slice(3, 11)):
        outputs = module(x[batch])
        expected = likelihood.nll(outputs, y[batch]).mean() + 0.3 / 40 * kl
        torch.testing.assert_close(method.loss(module, outputs, y[batch], likelihood, 40), expected)


def test_starts_at_the_network_or_at_small_uniform_means() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    at_network, _ = BayesByBackprop().attach(network)
    assert torch.equal(at_network[0].weight_mean, network[0].weight)
    uniform, _ = BayesByBackprop(start="uniform").attach(network)
    assert uniform[0].weight_mean.abs().max() <= 0.01
    assert torch.equal(uniform[0].bias_mean, network[0].bias)


def test_first_deviations_and_biases_follow_the_options() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    method = BayesByBackprop(sigma_linear=0.2, sigma_conv=0.05, gaussian_bias=True)
    module, attachment = method.attach(network)
    torch.testing.assert_close(module[0].weight_sigma, torch.full((2, 1, 3, 3), 0.05))
    torch.testing.assert_close(module[2].weight_sigma, torch.full((2, 8), 0.2))
    numbers = [(site.number, site.bias_number) for site in attachment.sites]
    assert numbers == [(0, 1), (2, 3)]
    plain, _ = BayesByBackprop().attach(network)
    assert plain[0].bias_rho is None


def test_layers_without_weights_are_named() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    _, attachment = BayesByBackprop().attach(network)
    assert [site.module for site in attachment.sites] == ["0"]
    assert attachment.left_alone == (("1", "BatchNorm1d: deterministic"),)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("prior_sigma", 0.0),
        ("kl_weight", -1.0),
        ("sigma_conv", 0.0),
        ("weight_decay", 0.1),
        ("start", "zero"),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(qb.BadInput):
        qb.method("bbb", **{option: value})


def test_nothing_to_attach_is_an_error() -> None:
    with pytest.raises(qb.BadInput, match="must find a Linear"):
        BayesByBackprop().attach(nn.Sequential(nn.BatchNorm1d(3)))


def test_a_stack_has_one_loss_for_each_network() -> None:
    """Two networks side by side get the losses they have alone: each its own KL."""
    method, likelihood = BayesByBackprop(prior_sigma=0.5), Categorical(3)
    alone = [BayesByBackprop().attach(nn.Linear(4, 3))[0] for _ in range(2)]
    stack = copy.deepcopy(alone[0])
    for name, parameter in list(stack.named_parameters()):
        stacked = torch.stack([module.get_parameter(name).detach() for module in alone])
        parameter.data = stacked
    x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    outputs = torch.stack([module.eval()(x) for module in alone])
    expected = [
        method.loss(module, out, y, likelihood, 5) for module, out in zip(alone, outputs, strict=True)
    ]
    torch.testing.assert_close(method.loss(stack, outputs, y, likelihood, 5), torch.stack(expected))


def test_frozen_and_tied_layers_stay_points() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    network[2].weight = network[1].weight
    _, attachment = BayesByBackprop().attach(network)
    assert [site.module for site in attachment.sites] == ["3"]
    reasons = dict(attachment.left_alone)
    assert reasons["0"].startswith("frozen")
    assert "tied to '2'" in reasons["1"]
    assert "tied to '1'" in reasons["2"]
