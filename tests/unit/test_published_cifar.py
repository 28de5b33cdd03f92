"""The tables of the page on CIFAR-10, from rows of every planned run, whose numbers are known beforehand."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import cifar10_rows
from cifar10_rows import CALIBRATED, FLOAT_ERROR, LOST, ROW_ERROR, made
from qbayes.lab.report.export_csv import publish
from study_rows import Made

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

from published_cifar import TABLES
from published_cifar_beside import beside, labels, shifts
from published_cifar_ours import MET, MISSED, OPEN, Aim, aims, epochs_of, float_table
from published_cifar_poster import GRID, POSTER, grid
from published_cifar_predictions import batch_size, masks
from published_cifar_rows import SLIM, TINY, Change, Held, change
from published_numbers import METHODS, Rows, Studies

T2 = 4.302653
Z = 1.959964


def held(
    name: str, *, row_errors: bool = True, keep: Callable[[Mapping[str, Any]], bool] = lambda row: True
) -> Held:
    network = TINY if name == TINY.study else SLIM
    return Held(network, Rows(made(name, row_errors=row_errors, keep=keep)))


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split(" | ")]


def lines_of(table: list[str], method: str, bits: str) -> list[list[str]]:
    """The cells of the rows of a method at some bits, which may be named in a row above."""
    found, at = list[list[str]](), ["", ""]
    for line in table:
        cells = cells_of(line)
        at = [cell or before for cell, before in zip(cells, at, strict=False)] if line.startswith("|") else at
        if line.startswith("|") and [at[0], at[1].removesuffix(" *")] == [f"`{method}`", bits]:
            found.append(cells)
    return found


# ---- which runs


def test_every_planned_run_of_both_studies_is_made_up() -> None:
    for name in cifar10_rows.NAMES:
        study, runs = cifar10_rows.planned(name)
        assert f"{len(runs)} runs" in study.header["cost"]
        assert len({run["run"] for run in runs}) == len(runs)
        assert {run["method"] for run in runs} == set(METHODS)


def test_schemes_and_trainings_are_told_apart() -> None:
    some = held(TINY.study)
    assert {row["training"] for row in some.ours.frame.rows} == {"float", "calibrated", "trained", "labels"}
    assert not any("paper" in row["scheme"] for row in some.ours.frame.rows)
    # the mask of mcd is spelled out in the study, and is the paper's anyway.
    assert {row["scheme"] for row in some.papers.frame.rows} == {"float", "paper", "paper, mask=exact"}
    assert len(some.papers.pairs(scheme="paper")) == 40
    assert len(some.papers.pairs(scheme="paper, mask=exact")) == 10
    best = [row for row in some.best.frame.rows if row["precision"] == "W8A8" and row["method"] == "sghmc"]
    assert [row["only_calibrated"] for row in best] == [True] * 3
    trained = some.best.pairs(method="mcd", precision="W4A4")
    assert {pair.quantised["error"] for pair in trained} == {
        row["error"]
        for row in some.ours.done(method="mcd", precision="W4A4", training="trained", scheme="default")
    }


def test_controls_stand_beside_the_float_networks_they_come_from() -> None:
    pairs = held(TINY.study).controls(method="mcd", scheme="as W4A4")
    assert len(pairs) == 3
    assert all(pair.quantised["float"] == pair.float["float"] for pair in pairs)
    assert {pair.quantised["precision"] for pair in pairs} == {"float-finetuned"}


# ---- intervals


def test_three_seeds_have_an_interval_over_the_seeds() -> None:
    """Losses of 0.45, 0.5 and 0.55 points: their mean errs by 0.05 / √3."""
    found = change(held(TINY.study).best.pairs(method="mcd", precision="W4A4"), "error", 100)
    half = T2 * 0.05 / math.sqrt(3)
    assert (found.low, found.value, found.high) == pytest.approx((0.5 - half, 0.5, 0.5 + half), abs=1e-6)
    assert found.over == "seeds"


def test_one_seed_has_an_interval_over_the_test_rows() -> None:
    pairs = held(SLIM.study).best.pairs(method="mcd", precision="W4A4")
    found = change(pairs, "error", 100)
    assert (found.low, found.high) == pytest.approx((0.5 - Z * ROW_ERROR, 0.5 + Z * ROW_ERROR), abs=1e-6)
    assert found.over == "rows"
    assert change(pairs, "confusion/auroc").low == pytest.approx(-0.0015 - Z * ROW_ERROR / 100, abs=1e-6)


def test_without_errors_over_rows_one_seed_has_no_interval() -> None:
    pairs = held(SLIM.study, row_errors=False).best.pairs(method="mcd", precision="W4A4")
    found = change(pairs, "error", 100)
    assert (found.low, found.high, found.over) == (None, None, "")
    assert found.text(2) == "+0.50"


def test_the_rows_of_two_seeds_are_the_same_rows() -> None:
    """Their errors add up at most: the mean of two is as uncertain as one."""
    some = held(TINY.study, keep=lambda row: row["seed"] < 2)
    found = change(some.best.pairs(method="mcd", precision="W4A4"), "error", 100)
    assert found.over == "rows"
    assert found.high is not None
    assert found.high - found.value == pytest.approx(Z * ROW_ERROR, abs=1e-6)


@pytest.mark.parametrize(
    ("ends", "mark"),
    [((-3.0, -1.0), MET), ((0.1, 0.7), MET), ((0.1, 0.71), OPEN), ((0.71, 0.9), MISSED), (None, OPEN)],
)
def test_aims_judge_the_whole_interval_and_improvements_pass(
    ends: tuple[float, float] | None, mark: str
) -> None:
    low, high = ends or (None, None)
    assert Aim("", Change(0.5, low, high, ""), 0.7).mark == mark


# ---- tables


def test_the_aims_are_those_of_each_network() -> None:
    tiny, slim = aims(held(TINY.study)), aims(held(SLIM.study))
    assert "(aim +1) ✓" in lines_of(tiny, "mcd", "W4A4")[0][2]
    assert "(aim +0.7)" in lines_of(slim, "mcd", "W4A4")[0][2]
    # both ends are printed, the aim is 0.2: +0.02 ± 0.196.
    assert lines_of(slim, "bbb", "W8A8")[0][2] == "+0.02 [−0.18, +0.22] (aim +0.2) ?"
    assert any(line.startswith("Of 28 aims 24 are met") for line in slim)
    assert lines_of(slim, "sghmc", "W8A8")[0][1] == "W8A8 *"
    assert any("calibrated only" in line for line in slim)


def test_a_loss_beyond_an_aim_is_named() -> None:
    some = held(TINY.study)
    rows = [
        {**row, "error": row["error"] + 0.05} if (row["method"], row["precision"]) == ("bbb", "W4A4") else row
        for row in some.frame.rows
    ]
    lines = aims(Held(TINY, Rows(dataclasses.replace(some.frame, rows=tuple(rows)))))
    assert any("Missed: `bbb` W4A4: error." in line for line in lines)


def test_float_says_what_it_took() -> None:
    lines = float_table(held(SLIM.study))
    assert lines[2].startswith("| `pointwise` | 8.00 | ≤ 8.60 ✓ | 8.13 |")
    assert [epochs_of(held(SLIM.study), method) for method in METHODS] == [
        "24",
        "24 + 16",
        "24 + 12",
        "24 + 30",
    ]
    tiny = float_table(held(TINY.study))
    # half a point above the point network's 12.5.
    assert tiny[3].startswith(f"| `mcd` | {100 * FLOAT_ERROR['mcd'] + 4.5:.2f} ± 0.05 | ≤ 13.00 ✓ | – |")


def test_calibration_and_the_control_stand_beside_fine_tuning() -> None:
    rows = lines_of(beside(held(TINY.study)), "mcd", "W4A4")
    assert [row[2] for row in rows] == ["calibrated", "fine-tuned", "control", "fine-tuned less control"]
    firsts = [row[3].split(" ")[0] for row in rows]
    assert firsts == [f"+{CALIBRATED['W4A4']:.2f}", f"+{LOST['W4A4']:.2f}", "−0.10", "+0.60"]


def test_labels_stand_beside_distillation() -> None:
    lines = labels(held(TINY.study))
    rows = lines_of(lines, "bbb", "labels") + lines_of(lines, "bbb", "distillation less labels")
    assert [row[2].split(" ")[0] for row in rows] == ["+0.10", "−0.06"]


def test_shifts_are_means_over_the_levels_on_the_rows_that_were_shifted() -> None:
    """Levels of 1.5 to 3.5 times the clean error: 2.5 times in the mean."""
    lines = shifts(held(SLIM.study))
    row = lines_of(lines, "mcd", "rotation")[0]
    assert row[5] == f"{100 * FLOAT_ERROR['mcd'] * 2.5:.1f}"
    assert row[7].startswith("+0.10")
    assert "On 2,000 of the 10,000 test rows." in lines[-1]


# ---- the paper's scheme


def test_the_poster_has_a_number_for_every_method_and_width() -> None:
    assert {len(of) for by_method in POSTER.values() for of in by_method.values()} == {len(GRID)}


def test_the_poster_stands_beside_ours_with_its_own_sizes_of_batch() -> None:
    lines = grid(held(TINY.study))
    for method, more in (("pointwise", 0.6), ("mcd", 2.0), ("bbb", 2.0), ("sghmc", 0.6)):
        (row,) = lines_of(lines, method, "W8A7")
        whole = 100 * cifar10_rows.FLOAT_ECE[method] + 0.4 * max(cifar10_rows.PAPERS[7] * 1.0 - 0.01, 0)
        ours, theirs = row[5].split(" / ")
        assert float(ours) == pytest.approx(whole + more, abs=0.05), "quantised: batches of 1024 or of 256"
        assert float(theirs) == POSTER["ece"][method][1]
    assert lines_of(lines, "sghmc", "float")[0][5].startswith("3.50 / 3.02"), "float: batches of 256"


def test_every_cell_of_the_grid_that_the_poster_has_is_given_a_reason() -> None:
    lines = grid(held(TINY.study))
    rows = [cells_of(line) for line in lines if line.startswith("|")][2:]
    assert len(rows) == 4 * len(GRID) + len(GRID) - 1, "with a second mask for mcd"
    for row in rows:
        for value, why in ((row[2], row[4]), (row[5], row[7])):
            assert bool(why) == (not value.endswith("–")), row
    (fallen,) = lines_of(lines, "mcd", "W8A4")
    assert fallen[4] == "C M"
    exact = rows[[row[0] for row in rows].index("`mcd`, mask of one bit") + GRID.index("W8A4") - 1]
    assert exact[1] == "W8A4"
    assert exact[4] == "C M"


def test_a_prediction_is_confirmed_or_refuted_by_the_rows() -> None:
    some = held(TINY.study)
    assert "**confirmed**. W8A4 errs in" in masks(some)[-1]
    assert "**confirmed**. Read across two sizes it falls by" in batch_size(some)[-1]

    def refuted(row: Made) -> Made:
        if row["scheme"] == "paper, mask=exact" and row["precision"] == "W8A4":
            return {**row, "error": 0.9}
        if (row["method"], row["scheme"]) == ("sghmc", "paper"):
            return {**row, **{name: row[name] - 0.01 for name in ("ece_per_batch", "ece_per_batch_1024")}}
        return row

    rows = tuple(map(refuted, map(dict, some.frame.rows)))
    other = Held(TINY, Rows(dataclasses.replace(some.frame, rows=rows)))
    assert "**refuted**. 1 of 1 runs collapse." in masks(other)[-1]

    def falls_anyway(row: Made) -> Made:
        if (row["method"], row["scheme"]) == ("sghmc", "paper"):
            return {**row, **{name: row[name] - 0.02 for name in ("ece_per_batch", "ece_per_batch_1024")}}
        return row

    rows = tuple(map(falls_anyway, map(dict, some.frame.rows)))
    other = Held(TINY, Rows(dataclasses.replace(some.frame, rows=rows)))
    assert "**refuted** here" in batch_size(other)[-1]


def test_a_run_that_is_to_come_is_not_stood_in_for_by_a_calibrated_one() -> None:
    gone = ("mcd", "W4A4", "trained", 1)

    def there(row: Mapping[str, Any]) -> bool:
        return (row["method"], row["precision"], row["training"], row["seed"]) != gone

    pairs = held(TINY.study, keep=there).best.pairs(method="mcd", precision="W4A4")
    assert {pair.quantised["seed"] for pair in pairs} == {0, 2}


def test_a_run_that_failed_has_collapsed_and_is_named(tmp_path: Path) -> None:
    frame = made(TINY.study)
    broken = {"mcd", "W8A4", "paper, mask=product"}

    def fails(row: Mapping[str, Any]) -> bool:
        return {row["method"], row["precision"], row["scheme"]} == broken

    known = {"float", "run", "task", "fold", "network", "recipe", "draws", "weight", "activation", "training"}
    known |= {"method", "precision", "scheme", "seed", "backend"}
    failed = tuple(
        {
            **{name: row[name] for name in known},
            "status": "failed",
            "reason": "quantised: the loss is not finite",
        }
        for row in frame.rows
        if fails(row)
    )
    rows = tuple(row for row in frame.rows if not fails(row))
    publish(dataclasses.replace(frame, rows=rows, failed=failed), tmp_path / "cifar10-tiny.csv")
    studies = Studies(tmp_path)
    lines = TABLES["predictions cifar10-tiny"](studies)
    assert any("– (1 of 1)" in line for line in lines)
    assert any("which collapses in 1 of 1" in line for line in lines)
    said = TABLES["stand"](studies)
    assert said[-1].endswith(
        "`mcd` W8A4 (paper, mask=product), seed 0, failed: quantised: the loss is not finite."
    )
