"""Checks K1 …: each finds what it is for in a study that has it, and nothing in one that has not."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qbayes.lab.analysis.checks import Check, check_all
from qbayes.lab.analysis.frame import Frame
from study_rows import Made, classified, regressed, row, study

Rows = list[Made]


def sound() -> Rows:
    """Three seeds of everything, paired, with noise that survives."""
    information = {"mutual_information": 0.02}
    rows = classified("mcd", error=0.006, **information) + classified(
        "mcd", (8, 7), error=0.006, **information
    )
    for fold in range(2):
        rows += regressed("sghmc", fold=fold) + regressed("sghmc", (4, 4), fold=fold)
    return rows + controls(rows)


def controls(rows: Rows) -> Rows:
    """Of every float run one with the fine-tuning of its quantised runs."""
    alike = {"precision": "float-finetuned", "training": "trained"}
    return [{**one, **alike, "run": f"control {one['run']}"} for one in rows if one["precision"] == "float"]


def found(rows: Rows, title: str, **options: Any) -> Check:
    (check,) = [one for one in check_all(study(rows, **options)) if title in one.title]
    return check


def test_sound_study_passes_every_check() -> None:
    checks = check_all(study(sound()))
    assert [one.id for one in checks] == [f"K{number}" for number in range(1, len(checks) + 1)]
    assert len(checks) >= 10
    assert [one for one in checks if not one.passed] == []
    assert all(one.found.endswith(".") and one.title for one in checks)


def test_empty_study_can_be_checked() -> None:
    assert all(one.passed for one in check_all(study([])))


def spoiled(change: Callable[[Made], bool], **values: Any) -> Rows:
    return [{**one, **values} if change(one) else one for one in sound()]


def quantised(one: Made) -> bool:
    return one["precision"] == "W8A7"


def unquantised(one: Made) -> bool:
    return one["precision"] == "float" and one["task"] == "mnist"


@pytest.mark.parametrize(
    ("title", "rows", "culprit"),
    [
        ("seeds", [one for one in sound() if one["seed"] < 2], "mnist lenet mcd W8A7 20 draws (2)"),
        ("floor", spoiled(unquantised, error=0.02), "mnist lenet mcd float 20 draws: error 0.02 > 0.01"),
        ("floor", regressed("mcd", rmse=9.5), "rmse 9.5 > 9"),
        ("floor", classified("mcd", task="own", error=0.5), "error 0.5 > 0.45"),
        ("collapsed", spoiled(quantised, error=0.6), "mnist lenet mcd W8A7"),
        ("draws are equal", spoiled(quantised, draws=5), "mnist lenet: 5, 20 draws"),
        ("float run", spoiled(quantised, draws=5), "mnist lenet mcd W8A7 5 draws"),
        (
            "failed",
            [*sound(), {**row(seed=9), "status": "failed", "reason": "NaN loss"}],
            "seed 9 (NaN loss)",
        ),
        ("confusion", spoiled(quantised, **{"confusion/error": 0.9}), "confusion/error"),
        ("noise", spoiled(quantised, mutual_information=0.001), "mnist lenet mcd W8A7"),
        ("splits", regressed("mcd", fold=0), "uci/boston"),
        (
            "control",
            [
                one
                for one in sound()
                if not (one["precision"] == "float-finetuned" and one["task"] == "mnist")
            ],
            "mnist lenet mcd W8A7 20 draws",
        ),
        (
            "of one commit",
            [{**one, "commit": one["precision"]} for one in sound()],
            "mnist lenet mcd W8A7 20 draws (commit float and W8A7)",
        ),
        ("finite", spoiled(quantised, nll=math.inf), "mnist lenet mcd W8A7 20 draws seed 2 (nll inf)"),
        ("finite", spoiled(quantised, **{"rotation/2/nll": math.nan}), "seed 0 (rotation/2/nll nan)"),
    ],
)
def test_check_names_the_culprit(title: str, rows: Rows, culprit: str) -> None:
    check = found(rows, title)
    assert not check.passed
    assert culprit in check.found
    assert check.found.count(".\n") == 0


@pytest.mark.parametrize(
    ("network", "below", "limit", "above"), [("resnet18", 0.099, 0.1, 0.101), ("resnet8", 0.159, 0.16, 0.161)]
)
def test_the_floor_of_a_task_goes_by_network(network: str, below: float, limit: float, above: float) -> None:
    """An error that tells of a broken ResNet-18 is that of a sound ResNet-8 on the same images."""
    of = partial(classified, "mcd", task="cifar10", network=network)
    assert found(of(error=below), "floor").passed
    check = found(of(error=above), "floor")
    assert not check.passed
    assert f"cifar10 {network} mcd float 20 draws: error {above} > {limit}" in check.found


def test_folds_stand_in_for_seeds() -> None:
    rows = [one for fold in range(5) for one in regressed("mcd", seeds=[0], fold=fold)]
    assert found(rows, "seeds").passed


def test_unfinished_study_is_said_to_be() -> None:
    check = found(sound(), "missing", planned=30)
    assert not check.passed
    assert f"{30 - len(sound())} of 30 planned runs" in check.found


def test_draws_that_are_an_axis_may_differ() -> None:
    rows = [
        one
        for draws in (1, 20)
        for bits in (None, (8, 7))
        for one in classified("mcd", bits, draws=draws, **{"axis:evaluate.draws": draws})
    ]
    assert found(rows, "draws are equal").passed
    assert found(classified("pointwise", draws=1) + classified("mcd"), "draws are equal").passed


def test_noise_of_pointwise_or_of_collapsed_runs_is_not_missed() -> None:
    silent = classified("pointwise", mutual_information=0.0) + classified(
        "pointwise", (8, 7), mutual_information=0.0
    )
    assert found(silent, "noise").passed
    assert found(spoiled(quantised, mutual_information=0.0, error=0.9), "noise").passed


@pytest.mark.parametrize(("before", "passed"), [(0.0009, True), (0.0011, False)])
def test_float_runs_without_noise_have_none_to_lose(before: float, passed: bool) -> None:
    """Below a thousandth of a nat in float there is nothing that a tenth could be lost of."""
    rows = classified("mcd", mutual_information=before)
    rows += classified("mcd", (8, 7), mutual_information=before / 11)
    assert found(rows, "noise").passed == passed


@pytest.mark.parametrize(
    ("confidence", "passed"),
    [(np.linspace(0.05, 1, 200), True), (np.full(200, 0.99), False), (np.linspace(0.5, 1, 200), True)],
)
def test_hollow_bins_are_found_from_details(confidence: np.ndarray, passed: bool) -> None:
    rows = sound()
    details = {one["run"]: {"confidence": confidence} for one in rows if one["precision"] == "W8A7"}
    check = found(rows, "bins", details=details)
    assert check.passed == passed
    assert passed or "(1 of 10 bins)" in check.found


def test_long_lists_are_cut_short() -> None:
    rows = [one for number in range(9) for one in classified("mcd", seeds=[0], task=f"own {number}")]
    assert found(rows, "seeds").found.endswith("and 5 more.")


@pytest.mark.parametrize("column", ["commit", "processor", "instructions", "device", "torch"])
def test_rows_of_two_commits_or_machines_are_found(column: str) -> None:
    """Also in a table, which has no stages; rows of older studies do not say it, and mix with any."""
    rows = classified("mcd")
    alike = [{**one, column: "one"} for one in rows]
    for made, passed in ((rows, True), (alike, True), ([*alike[:-1], rows[-1]], True)):
        assert found(made, "versions").passed is passed
    mixed = found([*alike[:-1], {**rows[-1], column: "other"}], "versions")
    assert not mixed.passed
    assert column in mixed.found
    assert "one, other" in mixed.found


@pytest.mark.parametrize(("second", "passed"), [("2.6", True), ("2.7", False)])
def test_mixed_versions_are_found_in_the_store(tmp_path: Path, second: str, passed: bool) -> None:
    header = {"name": "tiny", "question": "", "runs": 0, "format": 1}
    (tmp_path / "study.json").write_text(json.dumps(header))
    for key, torch in (("a", "2.6"), ("b", second)):
        (tmp_path / "float" / key).mkdir(parents=True)
        done = {"seconds": 1, "device": "cpu (x86_64)", "versions": {"torch": torch}}
        (tmp_path / "float" / key / "done.json").write_text(json.dumps(done))
    (check,) = [one for one in check_all(Frame.read(tmp_path)) if "versions" in one.title]
    assert check.passed == passed
    assert passed or "torch 2.6, 2.7" in check.found
