"""What README and how-to-choose say of CIFAR-10: by the rows there are, or that they are not there."""

import shutil
import sys
from pathlib import Path

import pytest

import cifar10_rows
from cifar10_rows import FLOAT_ERROR, made
from qbayes.lab.report.export_csv import publish

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
from published_cifar_words import HOW_TO_CHOOSE, README
from published_numbers import Studies
from published_readme import results

BEFORE = "| CIFAR-10, slim ResNet-18 | 7.06 % / 0.302 / 4.6 % | 6.44 % / 0.203 / 0.67 % |"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("images_float.csv", "mnist.csv"):
        shutil.copy(published.RESULTS / name, tmp_path)
    return tmp_path


def test_before_the_study_the_float_rows_are_those_of_before(folder: Path) -> None:
    lines = HOW_TO_CHOOSE["float"](Studies(folder))
    assert any(line.startswith(BEFORE) for line in lines)
    assert "CIFAR-10 one seed" in lines[-2]
    assert "`sghmc` 0.3 points worse" in lines[-1]
    assert (
        "**Not there yet**: the paper's CIFAR-10 study, run and published."
        in README["status"](Studies(folder))[0]
    )


def test_a_study_with_a_method_missing_does_not_take_their_place(folder: Path) -> None:
    frame = made("cifar10", keep=lambda row: row["method"] != "sghmc")
    publish(frame, folder / "cifar10.csv")
    studies = Studies(folder)
    assert any(line.startswith(BEFORE) for line in HOW_TO_CHOOSE["float"](studies))
    left = 129 - len(frame.rows)
    assert f"{left} of 129 runs of the paper's CIFAR-10 study, and ResNet-8" in README["status"](studies)[0]


def test_complete_studies_take_their_place(folder: Path) -> None:
    cifar10_rows.publish_all(folder)
    studies = Studies(folder)
    lines = HOW_TO_CHOOSE["float"](studies)
    (slim,) = [line for line in lines if line.startswith("| CIFAR-10, slim ResNet-18 |")]
    assert [cell.split(" %")[0] for cell in slim.split(" | ")[1:]] == [
        f"{100 * FLOAT_ERROR[method]:.2f}" for method in ("pointwise", "mcd", "bbb", "sghmc")
    ]
    # 8.0, 7.2, 8.2 and 7.8 against 8.13, 7.22, 8.27 and 7.70.
    assert lines[-1].endswith("`sghmc` 0.1 points worse; `pointwise`, `mcd`, `bbb` as good or better.")
    assert any(line.startswith("| CIFAR-10, ResNet-8 |") for line in lines)
    assert README["status"](studies) == ["Version 0.1."]
    lines = results(studies)
    assert any(line.startswith("| CIFAR-10, ResNet-8: error | 4 × 3 |") for line in lines)
    assert any(line.startswith("| CIFAR-10, slim ResNet-18: ECE | 4 × 1 |") for line in lines)


def test_how_to_choose_says_what_arithmetic_costs(folder: Path) -> None:
    assert HOW_TO_CHOOSE["cpu speed"](Studies(folder)) == []
    cifar10_rows.publish_all(folder)
    epoch, step = HOW_TO_CHOOSE["cpu speed"](Studies(folder))
    assert f"takes {159 / 285:.2f} of its time in float32" in epoch
    assert "costs 2.50 float steps" in step
