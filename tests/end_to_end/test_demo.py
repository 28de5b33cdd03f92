"""The demo trains, scores, draws, and keeps its hands off folders that are not its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qbayes.cli.demo import STUDIES, losses
from qbayes.cli.demo_figure import Panel, draw
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.study.spec.study import study_file

Cli = Callable[..., Any]

PNG = b"\x89PNG\r\n\x1a\n"


DIGITS = """
[study]
name = "digits"
question = "Does the demo run?"

[run]
task = "digits"
network = {name = "lenet", style = "relu"}
method = "pointwise"
training = {epochs = 1, batch_size = 128}
quantize = {epochs = 0}
evaluate = {draws = 2, backend = "auto"}

[axes]
method = ["pointwise", "mcd"]
precision = ["float", "W8A8"]
"""
DIABETES = """
[study]
name = "diabetes"

[run]
task = "diabetes"
network = {name = "mlp", hidden = [8], noise = "constant"}
method = "pointwise"
training = {epochs = 2}
quantize = {epochs = 0}

[axes]
task = [{name = "diabetes", split = [0, 1, 2]}]
precision = ["float", "W4A4"]
"""


def test_demo_runs_studies_and_goes_on_where_it_was(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    files = [tmp_path / "digits.toml", tmp_path / "diabetes.toml"]
    for path, text in zip(files, (DIGITS, DIABETES), strict=True):
        path.write_text(text)
    # one worker: every process takes seconds to start, and these studies none to run.
    asked = ["demo", "--out", folder, "--study", files[0], "--study", files[1], "--workers", "1"]
    first = cli(*asked)
    assert first.code == 0, first.err
    for words in ("pointwise", "mcd", "W8A8", "RMSE", "claims", str(folder / "digits.png")):
        assert words in first.out
    for name in ("digits", "diabetes"):
        page = folder / name / "report" / "index.html"
        assert str(page) in first.out
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (folder / "digits.png").read_bytes().startswith(PNG)
    rows = (folder / "digits" / "results.jsonl").read_bytes()
    again = cli(*asked, "--json")
    assert again.code == 0, again.err
    assert [(one["study"], one["done"], one["runs"]) for one in again.json["studies"]] == [
        ("digits", 4, 4),
        ("diabetes", 6, 6),
    ]
    assert (folder / "digits" / "results.jsonl").read_bytes() == rows


def test_the_demo_is_two_of_the_shipped_studies() -> None:
    assert [study_file(name).stem for name in STUDIES] == ["digits", "diabetes"]


def test_demo_refuses_a_folder_of_somebody_else(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    told = cli("demo", "--out", tmp_path)
    assert told.code == 2
    assert "notes.txt" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_demo_without_matplotlib_says_what_to_install(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = cli("demo", "--out", tmp_path / "demo")
    assert told.code == 2
    assert "pip install 'qbayes[report]'" in told.err
    assert not (tmp_path / "demo").exists()


def test_figure_is_a_function_of_plain_numbers() -> None:
    angles = [0.0, 15.0, 30.0, 45.0, 60.0, 75.0]
    image = [[0.0, 1.0], [1.0, 0.0]]

    def panel(ece: float) -> Panel:
        return Panel("mcd", [ece] * 6, [ece] * 6, [0.1, 0.2], [2.0], ["3"] * 6, [0.9] * 6, "3")

    figures = [draw([panel(ece)], [image] * 6, angles) for ece in (0.1, 0.1, 0.4)]
    assert figures[0].startswith(PNG)
    assert figures[0] == figures[1]
    assert figures[0] != figures[2]


def frame_of(score: str, values: dict[tuple[str, str], list[float]]) -> Frame:
    rows = tuple(
        {"run": f"{method}{width}{seed}", "method": method, "precision": width, "seed": seed, score: value}
        for (method, width), seeds in values.items()
        for seed, value in enumerate(seeds)
    )
    return Frame("x", "", {}, rows, (), len(rows), None)


def test_the_verdict_names_the_largest_loss_and_who_has_it() -> None:
    frame = frame_of(
        "error",
        {
            ("mcd", "float"): [0.02, 0.04],
            ("mcd", "W8A8"): [0.01, 0.04],
            ("mcd", "W2A2"): [0.10, 0.12],
            ("bbb", "float"): [0.03, 0.03],
            ("bbb", "W8A8"): [0.03, 0.03],
            ("bbb", "W2A2"): [0.04, 0.04],
        },
    )
    assert losses(frame) == "the most that a method loses, in points of error: W8A8 nothing, W2A2 8.00 (mcd)"
    table = frame_of("rmse", {("sghmc", "float"): [50.0], ("sghmc", "W4A4"): [51.0]})
    assert losses(table) == "the most that a method loses, in % of its RMSE in float: W4A4 2.0 (sghmc)"
    assert losses(frame_of("rmse", {("mcd", "float"): [1.0]})) == "float alone was run"
