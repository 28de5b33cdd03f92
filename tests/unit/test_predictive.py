"""Predictive distributions against closed forms, scipy and their own definitions."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.mixture import mixture_crps, mixture_entropy, mixture_quantile
from qbayes.posterior.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
    predictive_from_outputs,
)
from qbayes.posterior.signature import Signature, Standardize

seeds = st.integers(0, 2**31 - 1)


def logits(seed: int, draws: int = 5, rows: int = 7, classes: int = 4, spread: float = 3.0) -> Tensor:
    return spread * torch.randn(draws, rows, classes, generator=torch.Generator().manual_seed(seed))


def gaussians(seed: int, draws: int = 5, rows: int = 7, target: tuple[int, ...] = (1,)) -> GaussianPredictive:
    generator = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(draws, rows, *target, generator=generator)
    return GaussianPredictive(means, torch.exp(torch.randn(draws, rows, *target, generator=generator)))


# ---------------------------------------------------------------- categorical


def test_categorical_moments_are_those_of_the_draws() -> None:
    raw = logits(0)
    predictive = CategoricalPredictive.from_logits(raw)
    draws = torch.softmax(raw.double(), -1)
    torch.testing.assert_close(predictive.draws.double(), draws, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(predictive.mean.double(), draws.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(predictive.variance.double(), draws.var(0, correction=1), atol=1e-6, rtol=1e-5)
    assert torch.equal(predictive.predicted, draws.mean(0).argmax(-1))


def test_one_draw_has_no_variance_and_no_mutual_information() -> None:
    predictive = CategoricalPredictive.from_logits(logits(1, draws=1))
    assert torch.equal(predictive.variance, torch.zeros(7, 4))
    assert torch.equal(predictive.mutual_information, torch.zeros(7))
    one = gaussians(1, draws=1)
    assert torch.equal(one.mutual_information, torch.zeros(7))
    assert torch.equal(one.model_variance, torch.zeros(7, 1))


def test_equal_draws_have_exactly_no_mutual_information() -> None:
    """Rounding must not rank the rows of a pointwise network."""
    equal = CategoricalPredictive.from_logits(logits(14, draws=1, rows=500).expand(20, -1, -1))
    assert torch.equal(equal.mutual_information, torch.zeros(500))
    one = gaussians(14, draws=1, rows=500)
    same = GaussianPredictive(one.draws.expand(20, -1, -1), one.draw_variances.expand(20, -1, -1))
    assert torch.equal(same.mutual_information, torch.zeros(500))


def test_two_certain_draws_that_disagree_are_all_model_uncertainty() -> None:
    draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    predictive = CategoricalPredictive.from_probabilities(draws)
    assert predictive.entropy.item() == pytest.approx(math.log(2))
    assert predictive.expected_entropy.item() == 0
    assert predictive.mutual_information.item() == pytest.approx(math.log(2))


def test_entropies_agree_with_scipy() -> None:
    predictive = CategoricalPredictive.from_logits(logits(2))
    of_mean = stats.entropy(predictive.mean.double().numpy(), axis=-1)
    of_draws = stats.entropy(predictive.draws.double().numpy(), axis=-1).mean(0)
    np.testing.assert_allclose(predictive.entropy, of_mean, rtol=1e-5)
    np.testing.assert_allclose(predictive.expected_entropy, of_draws, rtol=1e-5)


def test_log_mean_is_exact_where_the_probability_underflows() -> None:
    raw = torch.tensor([[[0.0, -300.0]], [[0.0, -500.0]]])
    predictive = CategoricalPredictive.from_logits(raw)
    assert predictive.mean[0, 1].item() == 0
    assert predictive.log_mean[0, 1].item() == pytest.approx(-300 - math.log(2))


@given(seeds, st.sampled_from([1e-3, 0.1, 1.0, 30.0]))
@settings(max_examples=40, deadline=None)
def test_mutual_information_of_classes_lies_between_0_and_log_draws(seed: int, spread: float) -> None:
    information = CategoricalPredictive.from_logits(logits(seed, spread=spread)).mutual_information
    assert bool((information >= 0).all())
    assert bool((information <= math.log(5) + 1e-6).all())


def test_a_tiny_mutual_information_survives_float32_inputs() -> None:
    # second order: I ≈ ½ Σ_k Var(p_k) / p_k, here about 1e-8, far below float32's rounding of an entropy.
    raw = logits(3, spread=1e-4).double()
    predictive = CategoricalPredictive.from_logits(raw.float())
    draws = torch.softmax(raw.float().double(), -1)
    second_order = 0.5 * (draws.var(0, correction=0) / draws.mean(0)).sum(-1)
    torch.testing.assert_close(predictive.mutual_information.double(), second_order, rtol=0.02, atol=0)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_nothing_depends_on_the_order_of_draws(seed: int) -> None:
    raw, order = logits(seed), torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    one, other = CategoricalPredictive.from_logits(raw), CategoricalPredictive.from_logits(raw[order])
    for name in ("mean", "variance", "log_mean", "entropy", "expected_entropy"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


# ---------------------------------------------------------------- Gaussian


def test_moment_matching_is_the_unbiased_variance_plus_the_mean_variance() -> None:
    predictive = gaussians(4)
    means, variances = predictive.draws.double(), predictive.draw_variances.double()
    torch.testing.assert_close(predictive.variance.double(), means.var(0) + variances.mean(0))
    torch.testing.assert_close(predictive.variance, predictive.model_variance + predictive.data_variance)


def test_log_prob_and_cdf_agree_with_scipy() -> None:
    predictive = gaussians(5, target=(2,))
    y = torch.randn(7, 2, generator=torch.Generator().manual_seed(6))
    means, std = predictive.draws.numpy(), predictive.draw_variances.sqrt().numpy()
    joint = stats.norm.pdf(y.numpy(), means, std).prod(-1).mean(0)
    np.testing.assert_allclose(predictive.log_prob(y), np.log(joint), rtol=1e-5)
    np.testing.assert_allclose(predictive.cdf(y), stats.norm.cdf(y.numpy(), means, std).mean(0), rtol=1e-5)


@given(seeds, st.floats(0.001, 0.999))
@settings(max_examples=40, deadline=None)
def test_the_cdf_of_a_quantile_is_its_level(seed: int, q: float) -> None:
    predictive = gaussians(seed)
    reached = predictive.cdf(predictive.quantile(q))
    torch.testing.assert_close(reached, torch.full_like(reached, q), atol=2e-6, rtol=0)


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_the_quantile_of_a_cdf_is_the_value(seed: int) -> None:
    means = torch.randn(6, 1, 1, generator=torch.Generator().manual_seed(seed)).double()
    predictive = GaussianPredictive(means, torch.linspace(0.2, 2, 6).double()[:, None, None])
    y = predictive.mean + 0.7 * predictive.variance.sqrt()
    back = predictive.quantile(predictive.cdf(y).item())
    assert abs((back - y).item()) <= 1e-7 * predictive.variance.sqrt().item()


def test_quantiles_of_one_gaussian_are_the_normal_ones() -> None:
    predictive = GaussianPredictive(torch.full((3, 1, 1), 5.0), torch.full((3, 1, 1), 4.0))
    wanted = stats.norm(5, 2).ppf([0.001, 0.05, 0.5, 0.95])
    np.testing.assert_allclose(predictive.quantile([0.001, 0.05, 0.5, 0.95]).flatten(), wanted, rtol=1e-5)
    low, high = predictive.interval(0.9)
    assert (high - low).item() == pytest.approx(2 * 2 * 1.6448536, rel=1e-5)


def test_quantiles_survive_needles_and_gaps() -> None:
    """A needle inside a wide component, and two components 1000 deviations apart."""
    means = torch.tensor([[0.0, -500.0], [0.3, 500.0]], dtype=torch.float64)
    variances = torch.tensor([[1.0, 1.0], [1e-12, 1.0]], dtype=torch.float64)
    normal = stats.norm(means.numpy(), variances.sqrt().numpy())
    for q in (0.01, 0.2, 0.45, 0.55, 0.8, 0.99):
        reached = normal.cdf(mixture_quantile(q, means, variances).numpy()).mean(0)
        np.testing.assert_allclose(reached, q, atol=1e-9)


def test_entropy_of_equal_components_is_that_of_one_gaussian() -> None:
    variance = torch.tensor([1e-8, 0.5, 1.0, 1e8]).double()
    entropy = mixture_entropy(torch.full((4, 4), 3.0), variance.expand(4, 4))
    torch.testing.assert_close(entropy, 0.5 * torch.log(2 * math.pi * math.e * variance), atol=1e-8, rtol=0)


def test_entropy_agrees_with_adaptive_integration() -> None:
    means, std = np.array([-1.0, 0.2, 3.0]), np.array([0.5, 0.05, 2.0])

    def integrand(y: float) -> float:
        density = stats.norm.pdf(y, means, std).mean()
        return float(-density * np.log(density))

    wanted, _ = integrate.quad(integrand, -16, 20, points=[-1, 0, 0.1, 0.2, 0.3, 0.4, 3], limit=400)
    got = mixture_entropy(torch.tensor(means)[:, None], torch.tensor(std**2)[:, None])
    assert got.item() == pytest.approx(wanted, abs=1e-7)


def test_far_apart_components_share_log_d_of_information() -> None:
    means = torch.tensor([-1e4, 0.0, 1e4])[:, None, None]
    predictive = GaussianPredictive(means, torch.ones(3, 1, 1))
    assert predictive.mutual_information.item() == pytest.approx(math.log(3), abs=1e-6)


def test_entropy_scales_with_the_units() -> None:
    one = gaussians(8)
    other = GaussianPredictive(1000 * one.draws + 50, 1e6 * one.draw_variances)
    torch.testing.assert_close(other.entropy, one.entropy + math.log(1000))
    torch.testing.assert_close(other.mutual_information, one.mutual_information, atol=1e-5, rtol=1e-5)


def test_entropy_of_several_targets_is_the_sum_of_the_marginals() -> None:
    both = gaussians(9, target=(2,))
    parts = [GaussianPredictive(both.draws[..., [t]], both.draw_variances[..., [t]]) for t in range(2)]
    torch.testing.assert_close(both.entropy, parts[0].entropy + parts[1].entropy)


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_mutual_information_of_gaussians_lies_between_0_and_log_draws(seed: int) -> None:
    information = gaussians(seed, rows=3).mutual_information
    assert bool((information >= 0).all())
    assert bool((information <= math.log(5) + 1e-6).all())


def test_entropy_in_chunks_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    predictive = gaussians(10, rows=9)
    whole = mixture_entropy(predictive.draws, predictive.draw_variances)
    monkeypatch.setattr("qbayes.posterior.mixture.ENTROPY_POINTS", 1000)
    assert torch.equal(mixture_entropy(predictive.draws, predictive.draw_variances), whole)


def test_crps_agrees_with_its_integral() -> None:
    means, std, y = np.array([-1.0, 0.2, 3.0]), np.array([0.5, 0.3, 2.0]), 0.9

    def integrand(x: float) -> float:
        return float((stats.norm.cdf(x, means, std).mean() - (x >= y)) ** 2)

    wanted, _ = integrate.quad(integrand, -20, 24, points=[y], limit=200)
    got = mixture_crps(torch.tensor([y]), torch.tensor(means)[:, None], torch.tensor(std**2)[:, None])
    assert got.item() == pytest.approx(wanted, abs=1e-7)


# ---------------------------------------------------------------- both


@pytest.mark.parametrize("whole", [CategoricalPredictive.from_logits(logits(11), "abcd"), gaussians(11)])
def test_concatenated_parts_are_the_whole(whole: Predictive) -> None:
    joined = Predictive.concatenate(
        [whole.rows(slice(0, 3)), whole.rows(torch.tensor([3])), whole.rows(slice(4, 7))]
    )
    assert type(joined) is type(whole)
    assert joined.labels == whole.labels
    assert (len(joined), joined.draw_count) == (7, 5)
    for name in ("draws", "mean", "variance", "entropy", "mutual_information"):
        assert torch.equal(getattr(joined, name), getattr(whole, name))


def test_results_keep_the_type_of_the_outputs() -> None:
    for given_type, result in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        predictive = CategoricalPredictive.from_logits(logits(12).to(given_type))
        assert {t.dtype for t in (predictive.mean, predictive.entropy, predictive.log_mean)} == {result}


def test_export_names_labels_and_quantiles() -> None:
    columns = CategoricalPredictive.from_probabilities(
        torch.tensor([[[0.9, 0.1], [0.25, 0.75]]]), ("cat", "dog")
    )
    table = columns.as_dict()
    assert table["predicted"] == ["cat", "dog"]
    assert table["confidence"] == pytest.approx([0.9, 0.75])
    assert table["probability_dog"] == pytest.approx([0.1, 0.75])
    single = GaussianPredictive(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 4.0)).as_dict()
    assert single == {
        "mean": [0.0],
        "std": [2.0],
        "low_90": pytest.approx([-3.2897], abs=1e-4),
        "high_90": pytest.approx([3.2897], abs=1e-4),
    }
    double = GaussianPredictive(torch.zeros(1, 1, 2), torch.ones(1, 1, 2), ("load", "cost")).as_dict()
    assert {"mean_load", "mean_cost", "high_90_cost"} <= set(double)


def test_outputs_become_predictions_in_the_tasks_units() -> None:
    scale = Standardize(torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5]))
    signature = Signature("t", (3,), Standardize.identity(3), Gaussian((2,)), scale, ("a", "b"))
    mean = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
    predictive = predictive_from_outputs({"mean": mean, "log_variance": torch.zeros(4, 5, 2)}, signature)
    assert isinstance(predictive, GaussianPredictive)
    torch.testing.assert_close(predictive.draws, torch.stack([scale.invert(draw) for draw in mean]))
    torch.testing.assert_close(predictive.draw_variances, torch.tensor([4.0, 0.25]).expand(4, 5, 2))
    assert predictive.labels == ("a", "b")


def test_channelled_targets_are_scaled_along_their_first_axis() -> None:
    scale = Standardize(torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.5]))
    signature = Signature("t", (3,), Standardize.identity(3), Gaussian((2, 4)), scale)
    mean = torch.randn(3, 5, 2, 4, generator=torch.Generator().manual_seed(0))
    predictive = predictive_from_outputs({"mean": mean, "log_variance": mean}, signature)
    torch.testing.assert_close(predictive.draws, torch.stack([scale.invert(draw) for draw in mean]))


def test_logits_become_softmax() -> None:
    signature = Signature("t", (3,), Standardize.identity(3), Categorical(4), labels=tuple("abcd"))
    predictive = predictive_from_outputs(logits(13), signature)
    assert isinstance(predictive, CategoricalPredictive)
    torch.testing.assert_close(predictive.draws, torch.softmax(logits(13), -1))
    assert predictive.labels == ("a", "b", "c", "d")


def named(labels: str) -> Predictive:
    return CategoricalPredictive.from_logits(torch.zeros(2, 3, 2), labels)


def bad_heads() -> Predictive:
    signature = Signature("t", (3,), Standardize.identity(3), Categorical(4))
    return predictive_from_outputs({"mean": logits(0)}, signature)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: CategoricalPredictive(torch.zeros(3, 4)), "shape (3, 4)"),
        (lambda: CategoricalPredictive(torch.zeros(1, 2, 3), ("a", "b")), "2 labels for 3 classes"),
        (lambda: CategoricalPredictive.from_probabilities(torch.ones(1, 2, 3)), "sums from 3 to 3"),
        (lambda: CategoricalPredictive.from_probabilities(torch.tensor([[[1.5, -0.5]]])), "sums from 1 to 1"),
        (lambda: GaussianPredictive(torch.zeros(2, 3, 1), torch.ones(2, 3)), "variances (2, 3)"),
        (lambda: GaussianPredictive(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1)), "smallest variance of 0"),
        (lambda: gaussians(0).log_prob(torch.zeros(7)), "targets (7,), prediction (7, 1)"),
        (lambda: gaussians(0).quantile(1.0), "1.0"),
        (lambda: gaussians(0).interval(90), "90"),
        (lambda: Predictive.concatenate([]), "empty"),
        (lambda: Predictive.concatenate([gaussians(0), gaussians(0, draws=2)]), "2 draws"),
        (lambda: Predictive.concatenate([named("ab"), named("ba")]), "CategoricalPredictive"),
        (lambda: Predictive.concatenate([named("ab"), named("")]), "CategoricalPredictive"),
        (bad_heads, "heads ['mean']"),
    ],
)
def test_bad_input_says_what_came(call: Callable[[], object], part: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert part in caught.value.got
