"""Studies in which held-out rows choose hyper-parameters."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qbayes as qb
from qbayes.errors import BadFile, BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.export_csv import publish
from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.run import Outcome
from qbayes.lab.study.store.store import Store
from qbayes.posterior.storage.save import load_posterior
from qbayes.tasks.base import split_rows

STUDY = """
[run]
task = "uci/mine"
network = {name = "mlp", hidden = [8], noise = "row"}
method = "pointwise"
training = {epochs = 4, least_steps = 0, batch_size = 32, learning_rate = 1e-2}
choose = {CHOOSE}
quantize = {epochs = 0}
evaluate = {draws = 2}

[axes]
task = [{name = "uci/mine", split = [0, 1, 2]}]
precision = ["float", "W4A4"]
"""
RATES = "validation = 0.2, training = {learning_rate = [1e-3, 3e-2]}, method = {weight_decay = [0.0, 3.0]}"
BY_RMSE = f'by = "rmse", {RATES}'
ROWS, SPLITS = 120, 3


def study(choose: str = BY_RMSE) -> qb.Study:
    return qb.Study.from_toml(STUDY.replace("CHOOSE", choose), "choosing")


def write_data(folder: Path, garbage: bool = False) -> Path:
    """A table whose test rows (of split 0) are garbage, or are not."""
    noise = np.random.default_rng(0)
    x = noise.normal(size=(ROWS, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.1 * noise.normal(size=ROWS)
    if garbage:
        _, test = split_rows(ROWS, 0, splits=20)
        y[test], x[test] = 1e6 * noise.normal(size=len(test)), 1e3
    (folder / "uci" / "mine").mkdir(parents=True)
    np.savetxt(folder / "uci" / "mine" / "data.txt", np.column_stack([x, y]))
    return folder


def run(folder: Path, data: Path, choose: str = BY_RMSE, **how: Any) -> Outcome:
    return qb.run_study(study(choose), folder, data_dir=data, device="cpu", workers=1, **how)


def held_out(frame: Frame, fold: int) -> dict[str, float]:
    """The held-out RMSE of each candidate of a split."""
    return {row["candidate"]: row["rmse"] for row in frame.candidates if row["fold"] == fold}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    folder = tmp_path_factory.mktemp("store")
    done = run(folder, data)
    assert (done.done, done.failed, done.left) == (4 * SPLITS + 2 * SPLITS, 0, 0)
    return folder


def test_each_split_takes_the_candidate_with_the_lowest_held_out_score(store: Path) -> None:
    frame = Frame.read(store)
    assert len(frame.rows) == frame.planned == 2 * SPLITS
    for row in frame.rows:
        scores = held_out(frame, row["fold"])
        assert len(scores) == 4
        assert row["chosen"] == min(scores, key=scores.__getitem__)


def test_the_chosen_network_is_trained_on_all_training_rows(store: Path, data: Path) -> None:
    plan = make_plan(study(), Tasks(data), Store(store))
    assert plan.waiting == 0
    (planned,) = (
        run
        for run in plan.runs
        if "chosen" in run.row() and run.row()["fold"] == 0 and run.keys.program is None
    )
    chosen = dict(part.split("=") for part in planned.row()["chosen"].split(", "))
    task = qb.load_task("uci/mine", data, split=0)
    assert task.train_rows == round(0.9 * ROWS)
    budget = {"epochs": 4, "least_steps": 0, "batch_size": 32}
    rate, decay = float(chosen["training.learning_rate"]), float(chosen["method.weight_decay"])
    method, budget = qb.recipe(
        "pointwise", task, budget={**budget, "learning_rate": rate}, weight_decay=decay
    )
    build = lambda: qb.network("mlp", task, hidden=[8], noise="row")  # noqa: E731
    wanted = qb.fit(build, task, method, budget, seed=0, device="cpu", progress=False)
    found = load_posterior(Store(store).stage("float", planned.keys.float), build())
    for name, value in wanted.members[0].items():
        torch.testing.assert_close(found.members[0][name], value, rtol=1e-5, atol=1e-6)


def test_test_rows_have_no_part_in_the_choice(store: Path, tmp_path: Path) -> None:
    run(tmp_path / "store", write_data(tmp_path, garbage=True))
    before, after = Frame.read(store), Frame.read(tmp_path / "store")
    assert held_out(after, 0) == held_out(before, 0)
    tested = [next(row for row in frame.rows if row["fold"] == 0) for frame in (before, after)]
    assert tested[0]["chosen"] == tested[1]["chosen"]
    # … while what the runs score on them is another thing.
    assert tested[1]["rmse"] > 1000 * tested[0]["rmse"]


def test_a_table_of_results_is_enough_to_go_on_from(store: Path, data: Path, tmp_path: Path) -> None:
    lender = tmp_path / "lender"
    lender.mkdir()
    for name in ("study.json", "results.jsonl"):
        shutil.copyfile(store / name, lender / name)
    done = run(tmp_path / "store", data, lenders=[lender])
    assert (done.done, done.left) == (6 * SPLITS, 0)
    assert Store(tmp_path / "store").done_keys("float") == set()
    assert {row["run"]: row["chosen"] for row in Frame.read(tmp_path / "store").rows} == {
        row["run"]: row["chosen"] for row in Frame.read(store).rows
    }


def test_the_candidates_are_published_apart(store: Path, tmp_path: Path) -> None:
    frame = Frame.read(store)
    table = Frame.read(publish(frame, tmp_path / "runs.csv", digits=17))
    assert (len(table.rows), table.candidates) == (2 * SPLITS, ())
    assert {row["chosen"] for row in table.rows} == {row["chosen"] for row in frame.rows}
    apart = Frame.read(publish(frame.of_candidates(), tmp_path / "candidates.csv", digits=17))
    assert apart.rows == ()
    assert [held_out(apart, fold) for fold in range(SPLITS)] == [
        held_out(frame, fold) for fold in range(SPLITS)
    ]
    with pytest.raises(BadInput, match="candidates must be there"):
        table.of_candidates()


def test_before_the_candidates_are_scored_nothing_else_is_planned(data: Path) -> None:
    plan = make_plan(study(), Tasks(data))
    assert (len(plan.runs), plan.waiting) == (4 * SPLITS, 2 * SPLITS)


def test_a_study_that_was_stopped_among_its_candidates_goes_on(
    data: Path, store: Path, tmp_path: Path
) -> None:
    stopped = run(tmp_path, data, minutes=1e-6)
    assert (stopped.done, stopped.left) == (0, 6 * SPLITS)
    assert Frame.read(tmp_path).planned == 2 * SPLITS
    done = run(tmp_path, data)
    assert (done.done, done.left) == (6 * SPLITS, 0)
    whole = {row["run"]: row["rmse"] for row in Frame.read(store).rows}
    assert {row["run"]: row["rmse"] for row in Frame.read(tmp_path).rows} == whole


def test_a_candidate_that_fails_is_not_chosen(data: Path, tmp_path: Path) -> None:
    done = run(
        tmp_path, data, "validation = 0.2, method = {optimizer = ['sgd', 'adam'], weight_decay = [1e38]}"
    )
    # plain descent does not survive the decay, which Adam divides by itself.
    assert (done.done, done.failed) == (3 * SPLITS, SPLITS)
    assert {row["chosen"] for row in Frame.read(tmp_path).rows} == {
        'method.optimizer="adam", method.weight_decay=1e+38'
    }


def test_runs_without_any_candidate_say_why(data: Path, tmp_path: Path) -> None:
    none = "validation = 0.2, method = {optimizer = ['sgd'], weight_decay = [1e38, 2e38]}"
    done = run(tmp_path, data, none)
    assert (done.done, done.failed, done.left) == (0, 4 * SPLITS, 0)
    reasons = [str(row["reason"]) for row in Frame.read(tmp_path).failed]
    assert len(reasons) == 2 * SPLITS
    assert all("none of 2 candidates has a score on the held-out rows: float: " in one for one in reasons)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        ("validaton = 0.2", "did you mean 'validation'"),
        ('by = "ece"', "the score to choose by must be a known name"),
        ("validation = 1.5, " + "method = {weight_decay = [0.0, 1.0]}", "above 0 and below 1"),
        ("method = {weight_decay = 0.1}", "choose.method.weight_decay must be a list"),
        ("method = {name = ['mcd', 'bbb']}", "stay with the run's method"),
        ("epochs = [1, 2]", "the key of choose must be a known name"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_where_it_is_read(choose: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        study(choose)


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        ("validation = 0.2, method = {rate = [0.1, 0.2]}", "rate"),
        ("validation = 0.2", "among 2 to 100 candidates"),
        ("validation = 0.2, method = {weight_decay = [0.1]}", "among 2 to 100 candidates"),
        ("validation = 0.2, training = {epochs = [0, 1]}", "float training needs an epoch"),
        ("method = {weight_decay = [0.0, 1.0]}", "a choice must have held-out rows"),
        ('by = "error", validation = 0.2, method = {weight_decay = [0.0, 1.0]}', "a score of regression"),
    ],
)
def test_a_candidate_that_cannot_be_is_refused_before_anything_runs(
    data: Path, tmp_path: Path, choose: str, message: str
) -> None:
    with pytest.raises((BadInput, BadFile), match=message):
        run(tmp_path / "store", data, choose)
    assert not (tmp_path / "store").exists()


def test_a_grid_of_settings_is_named_by_what_it_sets() -> None:
    texts: list[Mapping[str, Any]] = [dict(run.row()) for run in make_plan(digits(), Tasks(None)).runs]
    assert sorted(str(row["candidate"]) for row in texts) == [
        "method.rate=0.1, training.epochs=1",
        "method.rate=0.1, training.epochs=2",
        "method.rate=0.2, training.epochs=1",
        "method.rate=0.2, training.epochs=2",
    ]


def digits() -> qb.Study:
    """The data set keeps held-out rows of its own: a choice need not ask for any."""
    text = """
    [run]
    task = "digits"
    network = {name = "mlp", hidden = [8]}
    method = "mcd"
    choose = {method = {rate = [0.1, 0.2]}, training = {epochs = [1, 2]}}
    """
    return qb.Study.from_toml(text, "digits-choice")


def test_held_out_rows_of_the_task_itself_choose_and_train_nothing(tmp_path: Path) -> None:
    """The chosen candidate is the network of the run: trained once, scored on held-out and on test rows."""
    text = """
    [run]
    task = {name = "diabetes", validation = 0.2}
    network = {name = "mlp", hidden = [8]}
    method = "pointwise"
    training = {epochs = 2, least_steps = 0}
    choose = {training = {learning_rate = [1e-3, 1e-2]}}
    quantize = {epochs = 0}

    [axes]
    precision = ["float", "W8A8"]
    """
    done = qb.run_study(qb.Study.from_toml(text, "own"), tmp_path, device="cpu", workers=1)
    assert (done.done, done.left) == (4, 0)
    assert len(Store(tmp_path).done_keys("float")) == 2
    frame = Frame.read(tmp_path)
    (floating,) = (row for row in frame.rows if row["precision"] == "float")
    (kept,) = (row for row in frame.candidates if row["candidate"] == floating["chosen"])
    assert (kept["float"], kept["test_rows"]) == (floating["float"], 80)
    assert floating["test_rows"] == 44
    # errors over test rows are those of the runs, paired with the float run and not with a candidate.
    assert [any(name.startswith("row_error/") for name in row) for row in frame.candidates] == [False, False]
    assert all(row["row_error/rmse"] > 0 for row in frame.rows)
