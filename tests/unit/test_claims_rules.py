"""How claims are judged: rules, many lines together, margins, and what a study cannot judge."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbayes.lab.analysis.intervals import Estimate, Share, estimate
from qbayes.lab.analysis.pairs import caveats
from qbayes.lab.analysis.run_groups import preferred
from qbayes.lab.paper.claims import Line, judge_all, judges
from qbayes.lab.paper.judge.conclude import caveats_of, conclude, decide, refuted, together
from qbayes.lab.paper.judge.judgement import Above, AtMost, Comparison, Within, judge_each
from qbayes.lab.paper.judge.margins import margin, margin_of
from study_rows import Made, classified, regressed, row, study

HOLDS, FAILS, OPEN, EQUAL = "holds", "does not hold", "not enough data", "no difference that matters"


def spread(value: float, half: float) -> Estimate:
    """An estimate whose 95 % interval is ``value ± half``, with plenty of runs."""
    return Estimate(value, half / 1.959964, 1e9, 10)


def lines(*found: tuple[float, float], rule: Any = None, method: str = "mcd") -> list[Line]:
    """Lines of as many subjects with these values and half widths."""
    rule = Above(0.0, tie=1.0) if rule is None else rule
    return judge_each(
        [Comparison(f"s{n}", method, "q", "", spread(*one), rule) for n, one in enumerate(found)]
    )


def verdict(some: list[Line]) -> str:
    return conclude("C0", "", some, figure="").verdict


@pytest.mark.parametrize(
    ("value", "half", "at_most", "within", "above"),
    [
        (0.0, 0.5, "yes", "yes", "same"),
        (-5.0, 0.5, "yes", "no", "no"),
        (5.0, 0.5, "no", "no", "yes"),
        (0.8, 0.5, "unclear", "unclear", "yes"),
        (0.4, 0.1, "yes", "yes", "same"),  # above 0 for sure, and by nothing that matters
        (-0.4, 0.1, "yes", "yes", "same"),
        (1.2, 1.5, "unclear", "unclear", "unclear"),
        (1.2, 1.0, "unclear", "unclear", "yes"),
        (-1.2, 1.0, "yes", "unclear", "no"),
    ],
)
def test_rules(value: float, half: float, at_most: str, within: str, above: str) -> None:
    found = spread(value, half)
    rules = AtMost(1.0), Within(1.0), Above(0.0, tie=0.6)
    assert [rule.chances(found).outcome for rule in rules] == [at_most, within, above]


@given(st.floats(-5, 5), st.floats(0.01, 5), st.floats(0, 3))
def test_nothing_that_supports_a_claim_is_ever_against_it(value: float, half: float, tie: float) -> None:
    """An interval above 0 supports or does not matter; one below 0 never supports."""
    outcome = Above(0.0, tie=tie).chances(spread(value, half)).outcome
    if value - half > 1e-6:
        assert outcome in ("yes", "same")
    if value + half < -1e-6:
        assert outcome in ("no", "same")
    assert outcome != "same" or (value - half >= -tie - 1e-6 and value + half <= tie + 1e-6)


def test_each_of_four_verdicts() -> None:
    assert verdict(lines((3, 1), (2, 1), (5, 4))) == HOLDS
    assert verdict(lines((-3, 1), (2, 1), (5, 4))) == FAILS
    assert verdict(lines((0, 0.5), (0.3, 0.2), (-0.1, 0.8))) == EQUAL
    assert verdict(lines((3, 1), (0.5, 2))) == OPEN
    assert verdict([]) == OPEN


def test_a_claim_is_as_strong_as_its_weakest_line() -> None:
    found = conclude("C0", "", lines((3, 1), (2, 1), (0.1, 0.3)), figure="")
    assert found.verdict == EQUAL
    assert "In 1 of 3 comparisons" in found.reason
    assert "2 agree" in found.reason


def test_each_method_has_a_verdict_of_its_own() -> None:
    some = [*lines((3, 1), method="mcd"), *lines((0, 0.5), method="bbb"), *lines((-3, 1), method="sghmc")]
    some += lines((0.5, 2), method="swag")
    found = conclude("C0", "", some, figure="", missing=["runs of pointwise"])
    assert dict(found.methods) == {"mcd": HOLDS, "bbb": EQUAL, "sghmc": FAILS, "swag": OPEN}
    lacking = conclude("C0", "", lines((3, 1)), figure="", missing_of_each=["times"])
    assert (lacking.verdict, lacking.methods) == (OPEN, (("mcd", OPEN),))


def test_missing_rows_keep_a_claim_from_holding_and_not_from_falling() -> None:
    assert conclude("C0", "", lines((3, 1)), figure="", missing=["more"]).verdict == OPEN
    assert conclude("C0", "", lines((-3, 1)), figure="", missing=["more"]).verdict == FAILS


# ---- many lines


def test_one_line_of_many_must_fail_clearly() -> None:
    calm = [(0.0, 0.1)] * 99
    weak, clear = lines((2, 0.9), *calm, rule=AtMost(1.0)), lines((2, 0.5), *calm, rule=AtMost(1.0))
    assert weak[0].outcome == clear[0].outcome == "no"
    assert not refuted(weak)
    assert "chance may explain" in decide(weak)[1]
    assert refuted(clear)


def test_many_lines_that_fail_weakly_refute_together() -> None:
    weak, calm = [(2, 0.9)] * 60, [(0.0, 0.1)] * 40
    assert refuted(lines(*weak, *calm, rule=AtMost(1.0)))
    assert not refuted(lines(*weak[:1], *calm, rule=AtMost(1.0)))


def test_what_nothing_refutes_by_itself_is_not_refuted_by_all() -> None:
    """Two lines of 4 % each: together 4 %, and neither interval lies on the other side."""
    assert together([0.04, 0.04]) == pytest.approx(0.04)
    assert not refuted(lines((-1.751, 1.96), (-1.751, 1.96), rule=Above(0.0)))


def test_together_is_simes() -> None:
    assert together([]) == 1
    assert together([0.01]) == 0.01
    assert together([0.5, 0.02, 0.03]) == pytest.approx(0.045)  # 3 · 0.03 / 2
    assert together([0.9, 0.01]) == pytest.approx(0.02)  # Bonferroni


@pytest.mark.parametrize("each", [1, 5, 60])
@pytest.mark.parametrize("seeds", [3, 5])
def test_claims_are_seldom_refuted_by_chance(each: int, seeds: int) -> None:
    """Studies without any loss beyond the margin, at it in every line: at most 5 % are refuted."""
    generator = np.random.default_rng((each, seeds))
    studies, wrong = 400, 0
    for _ in range(studies):
        noise = generator.normal(1.0, 2.0, (each, seeds))
        found = [estimate({(None, seed): x for seed, x in enumerate(some)}) for some in noise.tolist()]
        wrong += refuted(judge_each([Comparison("s", "mcd", "q", "", one, AtMost(1.0)) for one in found]))
    assert wrong / studies <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / studies)


# ---- margins


def floats(*rows: Made) -> list[Made]:
    return list(rows)


def test_a_margin_is_a_share_of_the_float_value() -> None:
    assert margin_of(floats(row(error=0.08)), ["error"]) == pytest.approx(0.4)  # points
    assert margin_of(floats(row(error=0.08)), ["error"], 2) == pytest.approx(0.8)
    assert margin_of(floats(row(nll=0.2), row(nll=0.4)), ["nll"]) == pytest.approx(0.015)
    assert margin_of(floats(row(ece=0.03)), ["ece"]) == pytest.approx(0.3)
    assert margin_of(floats(row(rmse=3.0, nll=-2.0)), ["rmse"]) == pytest.approx(1.0)  # per cent
    assert margin_of(floats(row(rmse=3.0, nll=-2.0)), ["nll"]) == pytest.approx(0.01)
    levels = [f"rotation/{level}/ece" for level in (1, 2)]
    assert margin_of(floats(row(**dict(zip(levels, (0.1, 0.3), strict=True)))), levels) == pytest.approx(2.0)


def test_a_margin_is_no_finer_than_the_test_set() -> None:
    """Half a per cent of 10,000 rows is known within 0.07 points: less nobody can see on them."""
    mnist = row(error=0.005, ece=0.001, nll=0.02, test_rows=10_000, **{"row_error/nll": 0.002})
    assert margin_of([mnist], ["error"]) == pytest.approx(100 * math.sqrt(0.005 * 0.995 / 10_000))
    assert margin_of([mnist], ["ece"]) == pytest.approx(100 * math.sqrt(0.005 * 0.995 / 10_000))
    assert margin_of([mnist], ["nll"]) == pytest.approx(0.002)
    shifted = row(**{"rotation/1/error": 0.5, "rotation/1/ece": 0.01}, test_rows=10_000, shift_rows=100)
    assert margin_of([shifted], ["rotation/1/ece"]) == pytest.approx(5.0), "of the rows that were shifted"


def test_a_margin_beside_scores_that_are_not_finite_is_that_of_the_others() -> None:
    assert margin_of(floats(row(nll=math.inf), row(nll=0.2)), ["nll"]) == pytest.approx(0.01)
    assert margin_of(floats(row(nll=math.inf)), ["nll"]) == 0
    assert AtMost(0.0).strain(0.0) == 0
    assert AtMost(0.0).strain(1.0) == math.inf


def test_margins_go_by_task() -> None:
    rows = classified("mcd", error=0.01) + classified("mcd", (8, 7), error=0.01)
    rows += classified("mcd", task="cifar10", error=0.2) + classified(
        "mcd", (8, 7), task="cifar10", error=0.2
    )
    sizes = {cell.task: margin(cell.pairs, "error") for cell in preferred(study(rows))}
    assert sizes == {"mnist": pytest.approx(0.05), "cifar10": pytest.approx(1.0)}


# ---- what a study cannot judge


def of_one_seed(rows: list[Made]) -> list[Made]:
    errors = {f"row_error/{name}": 1e-5 for name in ("error", "nll", "ece", "entropy")}
    return [{**one, **errors} for one in rows if one["seed"] == 0]


def test_one_seed_is_judged_over_test_rows_and_says_so() -> None:
    rows = classified("mcd", error=0.01) + classified("mcd", (8, 7), error=0.01)
    found = judges()["C1"](study(of_one_seed(rows)))
    assert found.verdict == HOLDS
    assert {line.covers for line in found.table} == {"rows"}
    assert found.caveats == (
        "One seed in 4 of 4 comparisons: their intervals are over test rows and say nothing of training.",
    )
    without = judges()["C1"](study([one for one in rows if one["seed"] == 0]))
    assert without.verdict == OPEN
    assert "one run gives no spread" in without.reason


def test_rows_that_intervals_lack_are_counted() -> None:
    rows = classified("mcd", error=0.01) + classified("mcd", (8, 7), error=0.01, wiggle=1e-5)
    known = [{**one, "test_rows": 10_000} for one in rows]
    assert [line.covers for line in judges()["C1"](study(known)).table if line.quantity == "error"] == [
        "runs and rows"
    ]
    some = lines((1, 1))
    assert caveats_of(some) == (
        "The test rows are not in the intervals of 1 of 1 comparison: the rows of results do not say them.",
    )
    share = judge_each([Comparison("s", "mcd", "q", "%", Share(0, 6), Above(50.0))])
    assert caveats_of(share) == ()


def controlled(**columns: Any) -> list[Made]:
    alike = {"precision": "float-finetuned", "training": "trained", "run": "control", "scheme": "float"}
    return [{**one, **alike, "run": f"control {one['run']}"} for one in classified("mcd", **columns)]


def test_a_study_without_a_control_says_what_it_cannot_tell() -> None:
    rows = classified("mcd") + classified("mcd", (8, 7))
    (said,) = caveats(study(rows))
    assert said.startswith("No control: for 3 of 3 fine-tuned runs")
    assert caveats(study(rows + controlled())) == ()
    (some,) = caveats(study(rows + controlled(seeds=[0])))
    assert some.startswith("No control: for 2 of 3")
    calibrated = [{**one, "training": "calibrated"} if one["precision"] == "W8A7" else one for one in rows]
    assert caveats(study(calibrated)) == (), "what was not trained needs none"


@pytest.mark.parametrize("column", ["commit", "processor", "instructions", "device"])
def test_pairs_of_two_commits_or_machines_are_said(column: str) -> None:
    rows = classified("mcd") + classified("mcd", (8, 7)) + controlled()
    one = [{**each, column: "one"} for each in rows]
    assert caveats(study(one)) == ()
    by_seed = [{**each, column: f"of seed {each['seed']}"} for each in rows]
    assert caveats(study(by_seed)) == (), "each pair is of one"
    mixed = [{**each, column: "other"} if each["precision"] == "W8A7" else each for each in one]
    (said,) = caveats(study(mixed))
    assert "3 of 3 quantised runs differ in them from their float runs" in said


def test_only_claims_about_differences_carry_them() -> None:
    rows = classified("mcd") + classified("mcd", (8, 7), wiggle=1e-5)
    rows += regressed("sghmc") + regressed("sghmc", (8, 3), rmse=9.5)
    found = {
        one.id: any("No control" in said for said in one.caveats)
        for one in judge_all(study(rows))
        if one.table
    }
    assert found["C1"]
    assert not found["C2"]
    assert not found["C10"]
