"""Intervals: over seeds, splits and test rows, and exact ones of shares, against scipy and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qbayes.lab.analysis.intervals import (
    Estimate,
    Share,
    Unit,
    cluster_means,
    combine,
    contrast,
    estimate,
)
from qbayes.lab.analysis.pairs import binomial, difference, overlap, paired, rows_term
from study_rows import Made, classified, regressed, row, study


def seeds(values: list[float]) -> dict[Unit, float]:
    return {(None, seed): value for seed, value in enumerate(values)}


@pytest.mark.parametrize("count", [2, 3, 10, 40])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_interval_over_seeds_is_students(count: int, level: float) -> None:
    values = np.random.default_rng(count).normal(2, 3, count)
    found = estimate(seeds(list(values)))
    expected = stats.t.interval(level, count - 1, values.mean(), stats.sem(values))
    assert found.bounds(level) == pytest.approx(expected, rel=1e-9)


def test_se_over_seeds_is_what_resampling_gives() -> None:
    """The closed form is √(n/(n − 1)) of the bootstrap's standard error: 2 % is its Monte-Carlo error."""
    values = np.random.default_rng(0).normal(0, 1, 12)
    drawn = np.random.default_rng(1).choice(values, (20_000, 12)).mean(1)
    assert estimate(seeds(list(values))).se_runs == pytest.approx(drawn.std() * math.sqrt(12 / 11), rel=0.02)


def test_interval_covers_as_often_as_it_says() -> None:
    """Three seeds of normals: 95 % of 2,000 intervals hold the mean; three standard errors are 1.5 %."""
    generator = np.random.default_rng(5)
    inside = [
        found.low < 1.0 < found.high
        for found in (estimate(seeds(list(generator.normal(1, 1, 3)))) for _ in range(2000))
        if found.low is not None and found.high is not None
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_one_run_has_no_interval() -> None:
    found = estimate(seeds([3.0]))
    assert (found.value, found.low, found.high, found.decidable) == (3.0, None, None, False)
    assert math.isnan(estimate({}).value)


def test_folds_are_resampled_where_there_are_several() -> None:
    values = {(fold, seed): float(fold) + 0.1 * seed for fold in range(4) for seed in range(3)}
    assert cluster_means(values) == pytest.approx([0.1, 1.1, 2.1, 3.1])
    found = estimate(values)
    assert (found.freedom, found.runs) == (3, 12)
    means = [0.1, 1.1, 2.1, 3.1]
    assert found.se_runs == pytest.approx(stats.tstd(means) * math.sqrt(1 / 4 + 1 / 9))
    assert estimate(values, overlap=0).se_runs == pytest.approx(stats.sem(means))
    assert found.covers == "splits"


def test_infinite_differences_stay_infinite() -> None:
    found = estimate(seeds([0.1, math.inf, 0.2]))
    assert found.value == math.inf
    assert not found.decidable


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_an_interval_without_ends_is_none(number: float) -> None:
    for found in (Estimate(0.5, number, 2, 3), Estimate(number, 0.5, 2, 3, 0.1)):
        assert not found.decidable
        assert found.bounds() == (None, None)


def test_contrast_is_welchs() -> None:
    generator = np.random.default_rng(2)
    one, two = generator.normal(1, 1, 5), generator.normal(0, 4, 9)
    found = contrast(seeds(list(one)), seeds(list(two)), (None, None))
    expected = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


# ---- chances and ends


@given(
    st.floats(0, 3),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0, 1, 2, 9]),
)
def test_a_chance_is_that_at_which_the_interval_ends(
    distance: float, se_runs: float, se_rows: float, freedom: int
) -> None:
    found = Estimate(1.0, se_runs if freedom else 0.0, freedom, freedom + 1, se_rows)
    chance = found.chance_above(1.0 - distance)
    if not found.decidable:
        assert chance == 1
    elif 1e-10 < chance < 0.4999:
        low, high = found.bounds(1 - 2 * chance)
        assert low == pytest.approx(1.0 - distance, abs=1e-6)
        assert high == pytest.approx(1.0 + distance, abs=1e-6)
    assert found.chance_below(1.0 + distance) == pytest.approx(chance, rel=1e-6)


def test_chances_are_those_of_t_and_of_the_normal() -> None:
    over_seeds, over_rows = Estimate(2.0, 0.5, 2, 3), Estimate(2.0, 0.0, 0, 1, 0.5)
    assert over_seeds.chance_above(0.0) == pytest.approx(stats.t.sf(4, 2))
    assert over_seeds.chance_below(0.0) == pytest.approx(stats.t.cdf(4, 2))
    assert over_rows.chance_above(0.0) == pytest.approx(stats.norm.sf(4))
    endless = Estimate(math.inf, math.nan, 2, 3)
    assert (endless.chance_above(0.0), endless.chance_below(0.0)) == (0, 1)
    unknown = Estimate(math.nan, math.nan, 2, 3)
    assert (unknown.chance_above(0.0), unknown.chance_below(0.0)) == (1, 1)


def test_one_seed_has_an_interval_over_its_test_rows_alone() -> None:
    found = estimate(seeds([3.0]), se_rows=0.5)
    assert (found.low, found.high) == pytest.approx((3 - 0.5 * 1.959964, 3 + 0.5 * 1.959964))
    assert found.covers == "rows"


def test_runs_that_agree_to_the_last_digit_have_no_interval_without_rows() -> None:
    assert estimate(seeds([3.0] * 3)).bounds() == (None, None)
    assert estimate(seeds([3.0] * 3)).covers == "nothing"
    assert estimate(seeds([3.0] * 3), se_rows=0.1).covers == "runs and rows"


def test_what_is_counted_needs_no_interval() -> None:
    found = Estimate.counted(4.0, 1)
    assert found.bounds() == (4.0, 4.0)
    assert (found.chance_above(3.5), found.chance_below(3.5), found.covers) == (0, 1, "counted")


def test_rows_and_runs_are_added_as_variances() -> None:
    """With so many runs that t is normal: three and four make five."""
    found = Estimate(0.0, 3.0, 1e9, 10, 4.0)
    assert found.high == pytest.approx(5 * 1.959964, rel=1e-6)


# ---- splits


def test_splits_that_overlap_have_the_interval_of_nadeau_and_bengio() -> None:
    """``s² (1/J + n₂/n₁)``: 20 splits of 90 to 10 have 1.8 times the plain standard error."""
    rows = [
        one
        for fold in range(20)
        for bits, rmse in ((None, 3.0), ((8, 7), 3.0 + 0.01 * fold))
        for one in regressed("mcd", bits, seeds=[0], fold=fold, rmse=rmse, test_rows=30, train_rows=150)
    ]
    frame = study(rows)
    found = difference(frame, paired(frame), "rmse")
    deviation = np.std(0.01 * np.arange(20), ddof=1)
    assert overlap(paired(frame)) == pytest.approx(0.2)
    assert found.se_runs == pytest.approx(deviation * math.sqrt(1 / 20 + 0.2))
    unknown = study([{name: value for name, value in one.items() if name != "train_rows"} for one in rows])
    assert overlap(paired(unknown)) == pytest.approx(1 / 9), "the splits that ship hold out a tenth"


def test_corrected_splits_cover_where_plain_ones_do_not() -> None:
    """Twenty overlapping splits of one sample: the plain 95 % interval misses the truth far more often.

    The mean of 20 test halves that share a sample of 100 normals moves with that sample, which their spread
    does not show.
    """
    generator = np.random.default_rng(0)
    missed = {0.0: 0, 1 / 9: 0}
    for _ in range(300):
        sample = generator.normal(size=100)
        means = [float(generator.permutation(sample)[:10].mean()) for _ in range(20)]
        for ratio in missed:
            found = estimate({(fold, 0): mean for fold, mean in enumerate(means)}, overlap=ratio)
            missed[ratio] += found.chance_above(0.0) <= 0.025 or found.chance_below(0.0) <= 0.025
    assert missed[0.0] / 300 > 0.15
    assert missed[1 / 9] / 300 < 0.08


# ---- shares


@pytest.mark.parametrize("runs", [1, 3, 6, 20])
def test_bounds_of_a_share_are_those_of_clopper_and_pearson(runs: int) -> None:
    for count in range(runs + 1):
        expected = stats.binomtest(count, runs).proportion_ci(0.95, "exact")
        found = Share(count, runs)
        assert found.bounds() == pytest.approx((100 * expected.low, 100 * expected.high))
        assert found.chance_above(50) == pytest.approx(stats.binomtest(count, runs, 0.5, "greater").pvalue)
        assert found.chance_below(50) == pytest.approx(stats.binomtest(count, runs, 0.5, "less").pvalue)
        assert found.covers == "exact"


def test_a_share_of_nothing_is_unknown() -> None:
    assert math.isnan(Share(0, 0).value)
    assert Share(0, 0).bounds() == (None, None)


# ---- the term of the test rows


def pairs_of(**columns: float) -> tuple[list[Made], list[Made]]:
    return classified("mcd", **columns), classified("mcd", (8, 7), **columns)


def rows_of(floats: list[Made], quantised: list[Made], metric: str) -> float | None:
    frame = study([*floats, *quantised])
    return rows_term(frame, paired(frame), metric)


def test_recorded_errors_are_averaged_as_seeds_share_their_rows() -> None:
    floats, quantised = pairs_of()
    errors = (0.001, 0.002, 0.003)
    told = [{**one, "row_error/nll": error} for one, error in zip(quantised, errors, strict=True)]
    assert rows_of(floats, told, "nll") == pytest.approx(0.002)
    assert rows_of(floats, [*told[:2], quantised[2]], "nll") is None, "one of them does not say it"


def test_an_error_has_a_binomial_one_where_nothing_was_recorded() -> None:
    floats, quantised = pairs_of(error=0.02, test_rows=10_000)
    one_side = math.sqrt(0.02 * 0.98 / 10_000)
    assert binomial(floats[0], "error") == pytest.approx(one_side)
    assert rows_of(floats, quantised, "error") == pytest.approx(one_side * math.sqrt(2))
    assert rows_of(floats, quantised, "nll") is None, "of which a row of results says nothing"
    assert rows_of(*pairs_of(error=0.02), "error") is None, "of an unknown number of rows"


def test_the_error_of_an_error_is_never_below_that_of_one_row() -> None:
    floats, quantised = pairs_of(test_rows=10_000)
    same = [{**one, "row_error/error": 0.0} for one in quantised]
    assert rows_of(floats, same, "error") == pytest.approx(1e-4)
    perfect = row(error=0.0, test_rows=100)
    assert binomial(perfect, "error") == pytest.approx(math.sqrt(0.01 * 0.99 / 100))


def test_scores_under_shift_are_of_the_rows_that_were_shifted() -> None:
    made = row(**{"rotation/2/error": 0.5}, test_rows=10_000, shift_rows=400)
    assert binomial(made, "rotation/2/ece") == pytest.approx(0.025)


def test_errors_of_parts_are_combined_only_if_all_are_known() -> None:
    assert combine([3.0, 4.0]) == 5.0
    assert combine([3.0, None]) is None
    assert combine([]) is None
