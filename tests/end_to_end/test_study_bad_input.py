"""What cannot be run is refused with three parts and exit code 2, before anything is written."""

from pathlib import Path

import pytest

from end_to_end.studies import SMALL, run, write_study


def refused(*arguments: str | Path, **environment: str) -> str:
    found = run(*arguments, **environment)
    assert found.returncode == 2, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    assert "got:" in found.stderr
    assert "do:" in found.stderr
    return found.stderr


CASES = {
    "malformed": (SMALL.replace("[run]", "[run"), "TOML"),
    "unknown key": (SMALL.replace("training =", "trainig ="), "training"),
    "axis over a missing key": (SMALL.replace("precision = [", "precison = ["), "precision"),
    "unknown method": (SMALL.replace('"mcd"', '"mcdd"'), "mcd"),
    "missing data": (SMALL.replace('"digits"', '"mnist"'), "qbayes data fetch mnist"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_study_that_cannot_run_starts_nothing(case: str, tmp_path: Path) -> None:
    text, hint = CASES[case]
    path = write_study(tmp_path, text, "Größe und Maß.toml")
    store = tmp_path / "a store with spaces"
    for command in ("run", "plan"):
        found = refused(command, path, "--store", store, QBAYES_DATA=str(tmp_path / "no data"))
        assert hint in found
        if case != "missing data":
            assert "Größe und Maß.toml" in found
    assert not list(store.glob("*/*"))


def test_a_store_of_another_study_or_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    found = refused("run", write_study(tmp_path), "--store", tmp_path / "mine")
    assert "notes.txt" in found
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "study.json").write_text('{"format": 1, "name": "another"}')
    assert "another" in refused("run", write_study(tmp_path), "--store", tmp_path / "other")
    (tmp_path / "other" / "study.json").write_text('{"format": 99, "name": "small"}')
    assert "format 99" in refused("plan", write_study(tmp_path), "--store", tmp_path / "other")


def test_stores_that_are_none(tmp_path: Path) -> None:
    for command in ("status", "report"):
        assert "study.json" in refused(command, tmp_path)
    refused("compare", tmp_path, tmp_path / "none")


def test_tables_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "foreign.csv").write_text("name,score\nada,3\n", encoding="utf-8")
    assert "no column run" in refused("report", tmp_path / "foreign.csv", "--out", tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_executors(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    assert "local" in refused("run", study, "--executor", "lokal")
    assert "--executor ray" in refused("run", study, "--address", "auto")
