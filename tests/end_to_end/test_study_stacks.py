"""A study whose networks are trained in stacks, float and quantised: what it gives, and what kills cost."""

import csv
import json
import shutil
import statistics
import time
from pathlib import Path

import pytest

from end_to_end.studies import ALONE, STACKED, kill, run, start, write_study
from qbayes.lab.study.run import run_study
from qbayes.lab.study.spec.study import Study

SCORES = ("rmse", "nll")


@pytest.fixture(scope="module")
def stacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacked")
    found = run("run", write_study(folder, STACKED), "--store", folder / "s", *ALONE)
    assert found.returncode == 0, found.stderr
    return folder / "s"


def rows(store: Path) -> dict[str, dict[str, str]]:
    with (store / "results.csv").open(encoding="utf-8", newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file)}


def test_float_and_quantised_posteriors_say_how_many_were_stacked(stacked: Path) -> None:
    found: dict[str, list[int]] = {"float": [], "quantised": []}
    for stage, sizes in found.items():
        for path in stacked.glob(f"{stage}/*/posterior.json"):
            provenance = json.loads(path.read_text())["provenance"]
            sizes.append((provenance["quantised"] if stage == "quantised" else provenance)["stacked"])
    # sghmc's two members of each of the four folds are networks of one stack.
    assert sorted(found["float"]) == [4] * 12
    assert sorted(found["quantised"]) == [4] * 16 + [8] * 8


def test_scores_are_those_of_one_by_one_within_the_spread_of_folds(stacked: Path, tmp_path: Path) -> None:
    run_study(Study.from_toml(STACKED), tmp_path / "s", device="cpu", workers=1, stack=False)
    one_by_one, found = rows(tmp_path / "s"), rows(stacked)
    assert one_by_one.keys() == found.keys()
    assert len(found) == 36
    for score in SCORES:
        for method in ("pointwise", "mcd", "sghmc"):
            for precision in ("float", "W8A8", "W4A4"):
                pairs = [
                    (float(row[score]), float(found[key][score]))
                    for key, row in one_by_one.items()
                    if (row["method"], row["precision"]) == (method, precision)
                ]
                spread = statistics.stdev(alone for alone, _ in pairs)
                assert all(abs(alone - other) < 0.1 * spread for alone, other in pairs), (method, precision)


def test_killed_while_stacks_are_fine_tuned_it_ends_with_the_same_table(
    stacked: Path, tmp_path: Path
) -> None:
    study, store = write_study(tmp_path, STACKED), tmp_path / "s"
    arguments = ("run", study, "--store", store, "--device", "cpu", "--no-report")
    for done in (1, 9):
        process = start(*arguments)
        deadline = time.monotonic() + 120
        while len(list(store.glob("quantised/*/done.json"))) < done and time.monotonic() < deadline:
            time.sleep(0.01)
        kill(process.pid)
        process.communicate()
        assert len(list(store.glob("scores/*/done.json"))) < 36
    assert run(*arguments, "--workers", "1").returncode == 0
    assert (store / "results.csv").read_bytes() == (stacked / "results.csv").read_bytes()


def test_a_bit_width_more_changes_no_stack(stacked: Path, tmp_path: Path) -> None:
    store = tmp_path / "s"
    shutil.copytree(stacked, store)
    before = {path: path.stat().st_mtime_ns for path in store.glob("*/*/done.json")}
    wider = write_study(tmp_path, STACKED.replace('"W4A4"]', '"W4A4", "W3A3"]'))
    assert run("run", wider, "--store", store, *ALONE).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(store.glob("quantised/*/done.json"))) == 36
    assert len(list(store.glob("float/*/done.json"))) == 12
