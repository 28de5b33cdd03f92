"""A study with the control: float networks with the fine-tuning of quantised ones, for every method."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import qbayes as qb
from end_to_end.studies import ALONE, STACKED, run, write_study
from qbayes.lab.analysis.checks import check_all
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.pairs import paired
from qbayes.lab.paper.claims import judge_all
from qbayes.lab.report.charts.chart import draw_all
from qbayes.lab.report.page.data import table
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.table import ORIGIN, read_table
from qbayes.posterior.storage.save import WEIGHTS
from qbayes.provenance import provenance

METHODS = ("pointwise", "mcd", "bbb", "sghmc")
# a method that trains for a second each, and all that a row may hold.
CONTROLLED = """
[study]
name = "controlled"
question = "Is it the bits, or the training?"

[run]
task = "digits"
network = {name = "lenet", style = "relu"}
method = "pointwise"
training = {epochs = 2, batch_size = 128}
quantize = {epochs = 1, distill = 1.0, equalize = true, match_temperature = true}
evaluate = {draws = 2, shift_rows = 30, ood_rows = 20}

[axes]
method = [
  "pointwise",
  {name = "mcd", rate = 0.2},
  "bbb",
  {name = "sghmc", members = 2, every = 1},
]
precision = ["float", "W4A4", {finetuned = "W4A4"}]
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("controlled")
    done = run("run", write_study(folder, CONTROLLED), "--store", folder / "store", *ALONE)
    assert done.returncode == 0, done.stderr
    assert "12 of 12 runs done" in done.stdout
    return folder / "store"


def rows_of(store: Path, precision: str) -> dict[str, dict[str, Any]]:
    """By method; a study of one seed."""
    return {str(row["method"]): dict(row) for row in Frame.read(store).where(precision=precision).rows}


def test_a_row_says_what_it_is_and_whose_fine_tuning_it_has(store: Path) -> None:
    control, plain = rows_of(store, "float-finetuned"), rows_of(store, "float")
    assert set(control) == set(plain) == set(METHODS)
    for method, row in control.items():
        assert (row["weight"], row["activation"], row["backend"]) == (32, 32, "float")
        # the recipe of digits trains on labels, this study with a teacher.
        assert (row["training"], row["scheme"]) == ("imitation", "as W4A4")
        assert row["bytes"] == plain[method]["bytes"]
        assert row["float"] == plain[method]["float"]
        assert row["nll"] != plain[method]["nll"]
        assert (row["shift_rows"], row["ood_rows"]) == (30, 20)
        assert row.keys() >= {"unshifted/ece", "rotation/5/ece", "confusion/auroc"}
        assert not any(name.startswith("spread/") for name in row)


def test_every_row_says_where_it_comes_from_and_the_table_has_the_study(store: Path, tmp_path: Path) -> None:
    origin = provenance(torch.device("cpu"))
    for row in Frame.read(store).rows:
        assert {name: row[name] for name in ORIGIN} == origin
    assert json.loads((store / "study.json").read_text())["text"] == CONTROLLED
    small = tmp_path / "small.csv"
    assert run("export", store, small).returncode == 0
    table_of = read_table(small)
    assert table_of.header["text"] == CONTROLLED
    assert Study.from_toml(str(table_of.header["text"])) == Study.from_toml(CONTROLLED)
    assert all({name: row[name] for name in ORIGIN} == origin for row in table_of.rows)
    # a row of before there was such a thing is read as it is.
    old = tmp_path / "old"
    shutil.copytree(store, old)
    lines = [json.loads(line) for line in (old / "results.jsonl").read_text().splitlines()]
    bare = [{name: value for name, value in row.items() if name not in ORIGIN} for row in lines]
    (old / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bare))
    assert len(Frame.read(old).rows) == 12
    written = run("report", old, "--out", tmp_path / "page")
    assert written.returncode == 0, written.stderr


@pytest.mark.parametrize("method", METHODS)
def test_its_scores_are_those_of_the_verb(store: Path, method: str) -> None:
    row = rows_of(store, "float-finetuned")[method]
    task = qb.load_task("digits")
    given = qb.load_posterior(store / "float" / row["float"])
    precision = qb.Precision(weight=4, activation=4)
    how = qb.FineTuning(epochs=1, distill=1.0, equalize=True, match_temperature=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        control = qb.fine_tune(given, task, precision, how, device="cpu", progress=False)
        scores = qb.evaluate(control, task, 2, shift_rows=30, ood_rows=20).flat()
    finally:
        torch.set_num_threads(threads)
    assert len(control.members) == (2 if method == "sghmc" else 1)
    assert {name: row[name] for name in scores} == scores
    # how it was trained is recorded, and is what the quantised posterior beside it had.
    kept = [json.loads(path.read_text()) for path in store.glob("quantised/*/posterior.json")]
    own = [one["provenance"] for one in kept if one["provenance"]["method"]["name"] == method]
    (tuned,) = [one["fine_tuned"] for one in own if "fine_tuned" in one]
    (quantised,) = [one["quantised"] for one in own if "quantised" in one]
    apart = {name for name in tuned if name in quantised and tuned[name] != quantised[name]}
    assert apart <= {"losses", "sharpness", "seconds"}


def test_it_is_a_float_posterior_in_the_store(store: Path) -> None:
    folders = [path.parent for path in store.glob("quantised/*/posterior.json")]
    loaded = {folder: qb.load_posterior(folder) for folder in folders}
    controls = {folder: one for folder, one in loaded.items() if one.quantised is None}
    assert (len(loaded), len(controls)) == (8, 4)
    sizes = {
        (store / "float" / row["float"] / WEIGHTS).stat().st_size for row in rows_of(store, "float").values()
    }
    assert {(folder / WEIGHTS).stat().st_size for folder in controls} == sizes
    assert len(list((store / "program").iterdir())) == 4


def test_reports_list_it_beside_float_and_judge_nothing_by_it(store: Path, tmp_path: Path) -> None:
    frame = Frame.read(store)
    assert {pair.quantised["precision"] for pair in paired(frame)} == {"W4A4"}
    without = frame.where(precision=("float", "W4A4"))
    assert [(one.id, one.verdict, one.table) for one in judge_all(frame)] == [
        (one.id, one.verdict, one.table) for one in judge_all(without)
    ]
    drawn = {chart.name for plate in draw_all(frame) for chart in plate.charts}
    assert drawn == {chart.name for plate in draw_all(without) for chart in plate.charts}
    assert all("float-finetuned" not in check.found for check in check_all(frame) if check.id == "K6")
    written = run("report", store, "--out", tmp_path / "page")
    assert written.returncode == 0, written.stderr
    shown = next(column for column in table(frame.rows)["columns"] if column["name"] == "precision")
    assert "float-finetuned" in shown["words"]
    small = tmp_path / "small.csv"
    assert run("export", store, small, "--digits", "17").returncode == 0
    assert run("compare", store, small).stdout.startswith("12 runs are in both; 0 of ")


def test_members_of_all_folds_are_tuned_as_one_stack(tmp_path: Path) -> None:
    """To the scores that each has alone, up to rounding."""
    text = STACKED.replace('"W8A8", "W4A4"]', '{finetuned = "W4A4"}]')
    path = write_study(tmp_path, text, "stacked.toml")
    both = tmp_path / "stacked", tmp_path / "alone"
    for folder, more in zip(both, ((), ("--no-stack",)), strict=True):
        done = run("run", path, "--store", folder, *ALONE, *more)
        assert done.returncode == 0, done.stderr
    stacks = {
        one.provenance["fine_tuned"].get("stacked")
        for folder in (both[0] / "quantised").iterdir()
        if (one := qb.load_posterior(folder))
    }
    # four folds of three methods, sghmc with two members.
    assert stacks == {4, 8}
    one, other = (
        {
            (row["method"], row["fold"]): row
            for row in Frame.read(folder).where(precision="float-finetuned").rows
        }
        for folder in both
    )
    assert one.keys() == other.keys()
    assert len(one) == 12
    for place, row in one.items():
        assert row["nll"] == pytest.approx(other[place]["nll"], rel=1e-4)
