"""The demo trains, scores, draws, and keeps its hands off folders that are not its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qbayes.cli.demo_figure import Panel, draw

Cli = Callable[..., Any]

PNG = b"\x89PNG\r\n\x1a\n"


def test_demo_runs_twice_in_its_own_folder(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    first = cli("demo", "--out", folder, "--epochs", 1, "--draws", 1)
    assert first.code == 0, first.err
    for words in ("pointwise", "mcd", "bbb", "sghmc", "AUROC", "seconds", str(folder / "digits.png")):
        assert words in first.out
    again = cli("demo", "--out", folder, "--epochs", 2, "--draws", 2, "--seed", 1, "--json")
    assert again.code == 0, again.err
    scores = json.loads((folder / "scores.json").read_text())
    assert again.json["scores"] == scores
    assert {name: scores[name]["meta"]["method"]["name"] for name in scores} == {
        name: name for name in ("pointwise", "mcd", "bbb", "sghmc")
    }
    assert all(set(scores[name]["shifted"]["rotation"]) == set("12345") for name in scores)
    assert (folder / "digits.png").read_bytes().startswith(PNG)


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
