"""Likelihoods against scipy, their checks, and the constant noise."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import (
    LOG_VARIANCE_LIMIT,
    Categorical,
    ConstantNoise,
    Gaussian,
    gaussian_heads,
    likelihood_from_json,
)


@given(shift=st.floats(-1e3, 1e3))
def test_categorical_nll(shift: float) -> None:
    """−log softmax, unmoved by a common shift of the logits."""
    logits = torch.randn(7, 4, dtype=torch.float64)
    target = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    expected = nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(Categorical(4).nll(logits + shift, target), expected, rtol=1e-9, atol=1e-9)


def test_categorical_keeps_leading_axes() -> None:
    logits, target = torch.randn(3, 5, 6, 4), torch.randint(0, 4, (6,))
    found = Categorical(4).nll(logits, target)
    assert found.shape == (3, 5, 6)
    torch.testing.assert_close(found[2, 1], Categorical(4).nll(logits[2, 1], target))


def test_categorical_survives_sure_mistakes() -> None:
    assert float(Categorical(2).nll(torch.tensor([[200.0, 0.0]]), torch.tensor([1]))) == pytest.approx(200)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_gaussian_nll_is_scipys(shape: tuple[int, ...]) -> None:
    mean, log_variance, y = (torch.randn(5, *shape, dtype=torch.float64) for _ in range(3))
    found = Gaussian(shape).nll({"mean": mean, "log_variance": log_variance}, y)
    density = stats.norm.logpdf(y.numpy(), mean.numpy(), (log_variance / 2).exp().numpy())
    torch.testing.assert_close(found, -torch.from_numpy(density).flatten(1).sum(1))
    stacked = {"mean": torch.stack([mean, mean + 1]), "log_variance": log_variance.expand(2, *mean.shape)}
    assert Gaussian(shape).nll(stacked, y).shape == (2, 5)
    torch.testing.assert_close(Gaussian(shape).nll(stacked, y)[0], found)


@pytest.mark.parametrize("extreme", [-1e4, 1e4])
def test_extreme_log_variance_stays_finite(extreme: float) -> None:
    heads = {"mean": torch.zeros(2, 1), "log_variance": torch.full((2, 1), extreme, requires_grad=True)}
    loss = Gaussian().nll(heads, torch.ones(2, 1)).sum()
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert bool(torch.isfinite(heads["log_variance"].grad).all())
    assert float(gaussian_heads(heads)[1].detach().abs().max()) == LOG_VARIANCE_LIMIT


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ({"logits": torch.zeros(2, 3)}, "one tensor of logits"),
        ((torch.zeros(2, 3),), "tuple"),
        (torch.zeros(2, 4), "3 logits"),
        (torch.zeros(2, 3, 1), "3 logits"),
        (torch.zeros(3, 3), "keep its batch"),
        (torch.zeros(()), "keep its batch"),
        (None, "NoneType"),
    ],
)
def test_categorical_check(outputs: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Categorical(3).check(outputs, 2)


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ({"mean": torch.zeros(2, 1)}, "heads"),
        ({"mean": torch.zeros(2, 1), "variance": torch.zeros(2, 1)}, "variance"),
        ({"mean": torch.zeros(2, 1), "log_variance": torch.zeros(2, 2)}, "log_variance"),
        ({"mean": torch.zeros(2, 1), "log_variance": None}, "must be a tensor"),
        (torch.zeros(2), "targets' shape"),
        (torch.zeros(4, 1), "keep its batch"),
        ([torch.zeros(2, 1)], "list"),
    ],
)
def test_gaussian_check(outputs: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Gaussian((1,)).check(outputs, 2)


def test_checks_let_the_right_forms_pass() -> None:
    Categorical(3).check(torch.zeros(2, 3), 2)
    Gaussian((2, 2)).check(torch.zeros(5, 2, 2), 5)
    Gaussian((1,)).check({"log_variance": torch.zeros(5, 1), "mean": torch.zeros(5, 1)}, 5)


def test_one_tensor_names_the_wrapper() -> None:
    with pytest.raises(BadInput, match="ConstantNoise"):
        Gaussian().nll(torch.zeros(2, 1), torch.zeros(2, 1))


@pytest.mark.parametrize("likelihood", [Categorical(7), Gaussian((1,)), Gaussian((2, 3))])
def test_json_round_trip(likelihood: Categorical | Gaussian) -> None:
    assert likelihood_from_json(likelihood.to_json()) == likelihood


@pytest.mark.parametrize("data", [{}, {"kind": "poisson"}, {"kind": None}])
def test_unknown_likelihood(data: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="categorical or gaussian"):
        likelihood_from_json(data)


def test_constant_noise_learns_the_variance() -> None:
    """With the mean fixed, the maximum of the likelihood is the mean squared error."""
    y = 0.3 * torch.randn(2000, 2) * torch.tensor([1.0, 2.0])
    noisy = ConstantNoise(nn.Flatten(), (2,))
    optimizer = torch.optim.LBFGS(noisy.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = Gaussian((2,)).nll(noisy(torch.zeros(2000, 2)), y).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    variance = noisy(torch.zeros(1, 2))["log_variance"][0].exp()
    torch.testing.assert_close(variance.detach(), (y**2).mean(0), rtol=1e-3, atol=0)


def test_constant_noise_starts_at_exp_minus_two_for_every_row() -> None:
    heads = ConstantNoise(nn.Linear(3, 2), (2,))(torch.randn(4, 3))
    torch.testing.assert_close(heads["log_variance"], torch.full((4, 2), -2.0))
