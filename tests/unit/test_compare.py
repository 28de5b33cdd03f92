"""Two stores: what moved, what did not, and what is only in one of them."""

import csv
import io
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qbayes.errors import BadInput
from qbayes.lab.analysis.compare import Change, Comparison, compare
from study_rows import Made, classified, regressed, study

Rows = list[Made]


def renamed(rows: Rows) -> Rows:
    """The same runs under other keys, as another version of the code gives them."""
    return [{**one, "run": f"new {one['run']}", "float": f"new {one['float']}"} for one in rows]


def of(comparison: Comparison, metric: str) -> Change:
    (found,) = [one for one in comparison.changes if one.metric == metric]
    return found


def test_a_store_against_itself_has_not_moved() -> None:
    rows = classified("mcd", wiggle=0.001) + classified("mcd", (8, 7)) + regressed("bbb")
    found = compare(study(rows), study(renamed(rows)))
    assert found.moved == ()
    assert (found.only_before, found.only_after, found.paired) == ((), (), 9)
    assert all(one.difference == 0 for one in found.changes)


def test_paired_difference_has_students_interval() -> None:
    before = classified("mcd", wiggle=0.004)
    moves = [0.0010, 0.0012, 0.0011]
    after = [{**one, "error": one["error"] + move} for one, move in zip(before, moves, strict=True)]
    found = of(compare(study(before), study(renamed(after))), "error")
    low, high = stats.t.interval(0.95, 2, np.mean(moves), stats.sem(moves))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.after - found.before == pytest.approx(found.difference)
    assert (found.moved, found.better, found.runs) == (True, False, 3)


@pytest.mark.parametrize(
    ("metric", "change", "better"),
    [("error", -0.1, True), ("error", 0.1, False), ("confusion/auroc", 0.1, True), ("entropy", 0.1, None)],
)
def test_better_knows_the_direction(metric: str, change: float, better: bool | None) -> None:
    before = classified("mcd", **{metric: 0.5})
    after = classified("mcd", **{metric: 0.5 + change})
    assert of(compare(study(before), study(after)), metric).better is better


def test_one_run_moves_nothing_for_sure() -> None:
    before, after = (study(classified("mcd", seeds=[0], error=error)) for error in (0.1, 0.2))
    found = of(compare(before, after), "error")
    assert (found.difference, found.low, found.moved) == (pytest.approx(0.1), None, False)


def test_rows_of_only_one_store_are_listed() -> None:
    before = classified("mcd", seeds=[0, 1])
    after = classified("mcd", seeds=[1, 2])
    found = compare(study(before), study(after))
    assert found.only_before == ("mnist lenet mcd float 20 draws seed 0",)
    assert found.only_after == ("mnist lenet mcd float 20 draws seed 2",)
    assert found.paired == 1


@pytest.mark.parametrize(
    "other", [{"draws": 5}, {"scheme": "paper"}, {"training": "calibrated"}, {"recipe": "paper"}, {"fold": 1}]
)
def test_other_runs_are_not_paired(other: dict[str, object]) -> None:
    found = compare(study(classified("mcd", (8, 7))), study(classified("mcd", (8, 7), **other)))
    assert found.paired == 0
    assert found.changes == ()
    assert len(found.only_before) == len(found.only_after) == 3


def test_axes_pair_where_both_have_them() -> None:
    rates = [one for rate in (0.1, 0.2) for one in classified("mcd", **{"axis:method.rate": rate})]
    found = compare(study(rates), study(rates))
    assert found.paired == 6
    assert {one.subject for one in found.changes} == {
        "mnist lenet mcd float 20 draws method.rate 0.1",
        "mnist lenet mcd float 20 draws method.rate 0.2",
    }
    assert compare(study(rates), study(classified("mcd"))).paired == 0, "the rate may be another"
    seeds = [{**one, "axis:seed": one["seed"]} for one in classified("mcd")]
    assert compare(study(seeds), study(classified("mcd"))).paired == 3, "seeds have a column of their own"


def test_runs_that_cannot_be_told_apart_are_refused() -> None:
    rows = classified("mcd")
    with pytest.raises(BadInput, match="twice in 'made'"):
        compare(study(rows + renamed(rows)), study(rows))


def test_unknown_metric_is_refused_with_the_nearest() -> None:
    frame = study(classified("mcd"))
    assert {one.metric for one in compare(frame, frame, ("ece",)).changes} == {"ece"}
    with pytest.raises(BadInput, match="did you mean 'error'"):
        compare(frame, frame, ("eror",))


def test_infinite_scores_move_and_equal_ones_do_not() -> None:
    finite, infinite = study(classified("mcd")), study(classified("mcd", nll=math.inf))
    worse, better = of(compare(finite, infinite), "nll"), of(compare(infinite, finite), "nll")
    assert (worse.after, worse.difference, worse.moved, worse.better) == (math.inf, math.inf, True, False)
    assert (better.difference, better.moved, better.better) == (-math.inf, True, True)
    assert not of(compare(infinite, infinite), "nll").moved
    older = study(classified("mcd", nll=math.nan))
    assert not of(compare(older, infinite), "nll").moved, "what older stores hold for infinite"


def test_what_is_no_number_any_more_has_moved_neither_way() -> None:
    before, after = study(classified("mcd")), study(classified("mcd", entropy=math.nan))
    found = of(compare(before, after), "entropy")
    assert math.isnan(found.difference)
    assert (found.moved, found.better) == (True, None)
    assert not of(compare(after, after), "entropy").moved
    auroc = {"confusion/auroc": 0.9}
    lost = compare(
        study(classified("mcd", **auroc)), study(classified("mcd", **dict.fromkeys(auroc, math.nan)))
    )
    assert of(lost, "confusion/auroc").better is None


def test_test_rows_widen_the_interval_where_details_were_kept() -> None:
    before, after = classified("mcd"), classified("mcd", error=0.02)
    generator = np.random.default_rng(0)
    kept = [
        {one["run"]: {"correct": (generator.random(300) > one["error"]).astype(np.uint8)} for one in rows}
        for rows in (before, after)
    ]
    plain = of(compare(study(before), study(after)), "error")
    wide = of(compare(study(before, kept[0]), study(after, kept[1])), "error")
    assert (plain.low, plain.moved) == (None, True), "the same in every seed, and nothing known of the rows"
    assert wide.low is not None
    assert wide.low < plain.difference


def test_json_and_csv_hold_the_same_numbers() -> None:
    before, after = classified("mcd", wiggle=0.001), classified("mcd", error=0.02, nll=math.inf)
    found = compare(study(before), study(after))
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    table = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [one["metric"] for one in table] == [one["metric"] for one in plain["changes"]]
    for line, change in zip(table, plain["changes"], strict=True):
        assert line["difference"] == str(change["difference"])
    assert {one["metric"]: one["difference"] for one in plain["changes"]}["nll"] == "inf"
    assert plain["paired"] == 3


def test_what_moved_most_clearly_comes_first() -> None:
    before = classified("mcd", brier=0.5)
    after = [{**one, "error": 0.02, "brier": 0.6 + 0.01 * one["seed"]} for one in before]
    assert [one.metric for one in compare(study(before), study(after)).moved] == ["error", "brier"]


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)))
def test_order_of_rows_does_not_matter(order: Sequence[int]) -> None:
    before = classified("mcd", wiggle=0.001) + classified("mcd", (8, 7), wiggle=0.002)
    after = [{**one, "error": one["error"] * 1.1} for one in before]
    shuffled = [after[index] for index in order]
    assert compare(study(before), study(shuffled)) == compare(study(before), study(after))
