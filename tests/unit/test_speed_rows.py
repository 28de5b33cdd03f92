"""The CSV of the benchmarks of speed, and the lines that the page makes of it."""

import csv
import sys
from pathlib import Path

import pytest

from qbayes.provenance import commit, processor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

from published_cifar_speed import speed
from published_numbers import Missing, Studies
from speed_rows import measured, read_rows, write_rows

EPOCH = {"float32": 200.0, "bf16": 120.0, "small": 60.0, "preset": 100.0, "images": 3.0}
STEP = {"float": 0.2, "labels": 0.25, "imitation": 0.45}


def test_a_row_says_by_what_it_was_measured(tmp_path: Path) -> None:
    write_rows(tmp_path / "speed.csv", measured("train_epoch", "resnet18", "mcd", EPOCH, to="float32"))
    with (tmp_path / "speed.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["work"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(EPOCH)
    assert rows["preset"]["ratio"] == "0.5000"
    assert rows["preset"]["to"] == "float32"
    assert {row["commit"] for row in rows.values()} == {commit()}
    assert {row["processor"] for row in rows.values()} == {processor()}
    assert all(row["instructions"] and row["torch"] and row["qbayes"] for row in rows.values())


def test_what_is_measured_again_takes_its_place_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "speed.csv"
    write_rows(path, measured("train_epoch", "resnet18", "mcd", EPOCH, to="float32"))
    write_rows(path, measured("qat_step", "resnet18, slim", "mcd", STEP, to="float"))
    write_rows(path, measured("train_epoch", "resnet18", "mcd", {**EPOCH, "preset": 150.0}, to="float32"))
    found = {(row["benchmark"], row["work"]): row["ratio"] for row in read_rows(path)}
    assert len(found) == len(read_rows(path)) == len(EPOCH) + len(STEP)
    assert found["train_epoch", "preset"] == "0.7500"
    assert found["qat_step", "labels"] == "1.2500"


def test_another_table_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("run,float\n1,2\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"rows\.csv must be a table of these benchmarks"):
        write_rows(path, measured("qat_step", "resnet18", "mcd", STEP, to="float"))
    assert path.read_text(encoding="utf-8") == "run,float\n1,2\n"


def test_the_page_judges_epochs_and_steps_by_their_ratios(tmp_path: Path) -> None:
    path = tmp_path / "cifar10-speed.csv"
    with pytest.raises(Missing):
        speed(Studies(tmp_path))
    for method, preset, labels in (("pointwise", 100.0, 0.25), ("bbb", 111.0, 0.27)):
        epoch = {**EPOCH, "preset": preset}
        write_rows(path, measured("train_epoch", "resnet18", method, epoch, to="float32"))
        step = {**STEP, "labels": labels}
        write_rows(path, measured("qat_step", "resnet18, slim", method, step, to="float"))
    # of another network, which the aims are not about.
    write_rows(path, measured("train_epoch", "resnet8", "mcd", EPOCH, to="float32"))
    lines = speed(Studies(tmp_path))
    assert "| `pointwise` | 200 | 120 | 100 | 0.500 | ≤ 0.55 ✓ (better 0.5 ✓) |" in lines
    assert "| `bbb` | 200 | 120 | 111 | 0.555 | ≤ 0.55 ✗ (better 0.5 ✗) |" in lines
    assert "| `pointwise` | 200 | 1.25 (≤ 1.5) ✓ | 2.25 (≤ 2) ✗ |" in lines
    assert "| `bbb` | 200 | 1.35 (≤ 1.3) ✗ | 2.25 |" in lines
    assert not any("`mcd`" in line for line in lines)
    assert processor() in lines[-1]
