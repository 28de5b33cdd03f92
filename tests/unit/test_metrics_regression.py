"""Regression scores against scipy, scikit-learn and closed forms."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import root_mean_squared_error
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.metrics import regression
from qbayes.posterior.predictive import GaussianPredictive

seeds = st.integers(0, 2**31 - 1)


def sample(
    seed: int, draws: int = 4, rows: int = 50, target: tuple[int, ...] = (1,)
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(draws, rows, *target, generator=generator)
    variances = torch.exp(torch.randn(draws, rows, *target, generator=generator))
    return means, variances, 2 * torch.randn(rows, *target, generator=generator)


def test_rmse_agrees_with_scikit_learn() -> None:
    means, _, y = sample(0)
    assert regression.rmse(means[0], y) == pytest.approx(root_mean_squared_error(y, means[0]), rel=1e-6)


def test_mixture_nll_agrees_with_scipy_and_sums_over_targets() -> None:
    means, variances, y = sample(1, target=(3,))
    density = stats.norm.pdf(y.numpy(), means.numpy(), variances.sqrt().numpy()).prod(-1).mean(0)
    assert regression.nll_mixture(means, variances, y) == pytest.approx(-np.log(density).mean(), rel=1e-5)


def test_moment_matched_nll_is_that_of_one_gaussian() -> None:
    means, variances, y = sample(2)
    prediction = GaussianPredictive(means, variances)
    wanted = -stats.norm.logpdf(y.numpy(), prediction.mean.numpy(), prediction.variance.sqrt().numpy()).mean()
    got = regression.nll_moment_matched(prediction.mean, prediction.variance, y)
    assert got == pytest.approx(wanted, rel=1e-5)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_equal_draws_score_as_one(seed: int) -> None:
    means, variances, y = sample(seed)
    means, variances = means[:1].expand(4, -1, -1), variances[:1].expand(4, -1, -1)
    mixture = regression.nll_mixture(means, variances, y)
    assert mixture == pytest.approx(regression.nll_moment_matched(means[0], variances[0], y), rel=1e-5)
    assert regression.crps(means, variances, y) == pytest.approx(regression.crps(means[:1], variances[:1], y))


def test_crps_of_one_gaussian_is_its_closed_form() -> None:
    """``σ [z (2 Φ(z) − 1) + 2 φ(z) − 1/√π]`` (Gneiting & Raftery, 2007)."""
    means, variances, y = sample(3, draws=1)
    std = variances[0].sqrt().numpy()
    z = (y - means[0]).numpy() / std
    wanted = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert regression.crps(means, variances, y) == pytest.approx(wanted.mean(), rel=1e-6)


def test_crps_of_a_sure_prediction_is_the_absolute_error() -> None:
    means, _, y = sample(4, draws=1)
    tiny = torch.full_like(means, 1e-14)
    assert regression.crps(means, tiny, y) == pytest.approx(
        (means[0] - y).abs().double().mean().item(), rel=1e-6
    )


def test_crps_agrees_with_samples_from_the_mixture() -> None:
    means, variances, y = sample(5, rows=1)
    rng = np.random.default_rng(0)
    pick = rng.integers(0, 4, 2_000_000)
    x = rng.normal(means[pick, 0, 0].numpy(), variances[pick, 0, 0].sqrt().numpy())
    sampled = np.abs(x - y.item()).mean() - 0.5 * np.abs(x[::2] - x[1::2]).mean()
    assert regression.crps(means, variances, y) == pytest.approx(sampled, abs=4e-3)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_rows_in_any_order_score_the_same(seed: int) -> None:
    means, variances, y = sample(seed)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    for score in (regression.crps, regression.nll_mixture):
        shuffled = score(means[:, order], variances[:, order], y[order])
        assert shuffled == pytest.approx(score(means, variances, y), rel=1e-6)


def test_rows_without_a_target_axis_score_as_with_one() -> None:
    means, variances, y = sample(6)
    for score in (regression.crps, regression.nll_mixture):
        assert score(means[..., 0], variances[..., 0], y[:, 0]) == score(means, variances, y)
    flat = regression.nll_moment_matched(means[0, :, 0], variances[0, :, 0], y[:, 0])
    assert flat == regression.nll_moment_matched(means[0], variances[0], y)


def test_coverage_counts_the_pit_and_equals_that_of_the_interval() -> None:
    pit = torch.tensor([0.01, 0.06, 0.5, 0.94, 0.96])
    assert regression.coverage(pit) == pytest.approx(0.6)
    means, variances, y = sample(7, rows=2000)
    prediction = GaussianPredictive(means, variances)
    low, high = prediction.interval(0.8)
    inside = ((y >= low) & (y <= high)).double().mean().item()
    assert regression.coverage(prediction.cdf(y), 0.8) == pytest.approx(inside, abs=1e-12)


def test_a_true_model_covers_its_level() -> None:
    means, variances, _ = sample(8, rows=20_000)
    generator = torch.Generator().manual_seed(0)
    pick = torch.randint(0, 4, (1, 20_000, 1), generator=generator)
    noise = torch.randn(20_000, 1, generator=generator)
    y = means.gather(0, pick)[0] + variances.gather(0, pick)[0].sqrt() * noise
    # three standard errors of a share of 0.9 in 20,000 rows.
    assert regression.coverage(GaussianPredictive(means, variances).cdf(y)) == pytest.approx(0.9, abs=0.0064)


def test_interval_width_is_the_mean_difference() -> None:
    assert regression.interval_width(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 5.0])) == 3


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: regression.rmse(torch.zeros(3), torch.zeros(3, 1)), "mean (3,), targets (3, 1)"),
        (lambda: regression.rmse(torch.zeros(0, 1), torch.zeros(0, 1)), "shape (0, 1)"),
        (lambda: regression.rmse(torch.zeros(2), torch.tensor([0.0, math.nan])), "1 NaN of 2"),
        (
            lambda: regression.crps(torch.zeros(4, 3, 1), torch.ones(4, 3, 1), torch.zeros(4, 1)),
            "means (4, 3, 1)",
        ),
        (
            lambda: regression.nll_mixture(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3)),
            "variance of 0",
        ),
        (
            lambda: regression.nll_moment_matched(torch.zeros(3), torch.ones(2), torch.zeros(3)),
            "variance (2,)",
        ),
        (lambda: regression.coverage(torch.zeros(3), 90), "90"),
        (lambda: regression.interval_width(torch.zeros(2), torch.zeros(3)), "low (2,)"),
    ],
)
def test_bad_input_says_what_came(call: Callable[[], object], part: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert part in caught.value.got
