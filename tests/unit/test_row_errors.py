"""Standard errors over test rows: closed forms, and DeLong's against all pairs and against resampling."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qbayes.metrics.row_errors import auroc_error, row_error, standard_errors


def entropies(seed: int, test: int, confusion: int, *, ties: bool = False) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    found = {"entropy": generator.normal(0, 1, test), "confusion_entropy": generator.normal(1, 1, confusion)}
    return {name: values.round() for name, values in found.items()} if ties else found


def wins(details: dict[str, np.ndarray]) -> np.ndarray:
    """``(test, confusion)``: whether the confusion row lies above the test row, by every pair."""
    pairs = itertools.product(details["entropy"], details["confusion_entropy"])
    won = [1.0 if above > below else 0.5 if above == below else 0.0 for below, above in pairs]
    return np.array(won).reshape(len(details["entropy"]), -1)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**16), st.integers(2, 12), st.integers(2, 12), st.booleans())
def test_delong_is_that_of_all_pairs(seed: int, test: int, confusion: int, ties: bool) -> None:
    before, after = (entropies(seed + k, test, confusion, ties=ties) for k in (0, 1))
    change = wins(after) - wins(before)
    variance = change.mean(1).var(ddof=1) / test + change.mean(0).var(ddof=1) / confusion
    assert auroc_error(after, before) == pytest.approx(math.sqrt(variance), abs=1e-12)
    alone = wins(after)
    variance = alone.mean(1).var(ddof=1) / test + alone.mean(0).var(ddof=1) / confusion
    assert auroc_error(after) == pytest.approx(math.sqrt(variance), abs=1e-12)


def test_delong_is_the_spread_over_new_rows() -> None:
    """2,000 sets of rows from the same law: the areas spread as one set says they do."""
    areas = [wins(entropies(seed, 40, 30)).mean() for seed in range(2000)]
    said = [auroc_error(entropies(seed, 40, 30)) for seed in range(50)]
    assert np.mean([value for value in said if value is not None]) == pytest.approx(np.std(areas), rel=0.08)


def test_an_unchanged_run_has_no_error_of_its_change_and_one_of_its_score() -> None:
    details = {
        "nll": np.array([0.0, 1.0] * 200),
        "correct": np.array([0, 1] * 200),
        **entropies(0, 400, 50),
    }
    assert set(standard_errors(details, details).values()) == {0.0}
    alone = standard_errors(details)
    assert set(alone) == {"nll", "error", "entropy", "confusion/entropy", "confusion/auroc"}
    # half of 400 rows are right: the error of a share is √(p (1 − p) / n).
    assert alone["error"] == pytest.approx(0.5 / 20, rel=0.08)
    assert alone["nll"] == pytest.approx(0.5 / 20, rel=0.08)


def test_the_error_of_a_change_is_that_of_resampled_pairs() -> None:
    generator = np.random.default_rng(1)
    before = {"squared_error": generator.chisquare(1, 300)}
    after = {"squared_error": generator.chisquare(1, 300)}
    assert standard_errors(after, before)["rmse"] == row_error([(before, after)], "rmse", relative=False)


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_score_with_a_row_that_is_not_finite_has_no_error(number: float) -> None:
    details = {"nll": np.array([0.0, number, 1.0]), **entropies(0, 3, 4)}
    details["confusion_entropy"][0] = number
    assert set(standard_errors(details)) == {"entropy"}


def test_sides_of_other_rows_have_no_error() -> None:
    assert standard_errors(entropies(0, 5, 4), entropies(1, 6, 7)) == {}
    assert auroc_error(entropies(0, 5, 4), entropies(1, 5, 7)) is None
    assert standard_errors({"nll": np.array([])}) == {}
