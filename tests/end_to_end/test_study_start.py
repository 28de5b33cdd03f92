"""Studies in which one method's training starts from another's posterior."""

from pathlib import Path

import pytest
import torch

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.store.store import Store
from qbayes.posterior.storage.save import load_posterior

STUDY = """
[run]
task = {name = "diabetes", split = 0}
network = {name = "mlp", hidden = [20], noise = "constant"}
method = "bbb"
training = {epochs = 2, batch_size = 64, least_steps = 0, start = START}
evaluate = {draws = 3}

[axes]
precision = ["float", "W8A8"]
quantize = [{epochs = 0}]
"""


def study(start: str) -> qb.Study:
    return qb.Study.from_toml(STUDY.replace("START", start), "start")


def test_training_starts_from_the_posterior_of_the_other_method(tmp_path: Path) -> None:
    done = qb.run_study(study('"pointwise"'), tmp_path / "store", device="cpu", workers=1)
    assert (done.done, done.failed) == (2, 0)
    store = Store(tmp_path / "store")
    assert len(store.done_keys("float")) == 2
    task = qb.load_task("diabetes", split=0)
    first, budget = qb.recipe("pointwise", task)
    build = lambda: qb.network("mlp", task, hidden=[20], noise="constant")  # noqa: E731
    begun = qb.fit(build, task, first, budget, seed=0, device="cpu", progress=False)
    method, budget = qb.recipe("bbb", task, budget={"epochs": 2, "batch_size": 64, "least_steps": 0})
    wanted = qb.fit(build, task, method, budget, seed=0, start=begun, device="cpu", progress=False)
    plan = make_plan(study('"pointwise"'), Tasks(None))
    found = load_posterior(store.stage("float", plan.runs[0].keys.float), build())
    for name, value in wanted.members[0].items():
        torch.testing.assert_close(found.members[0][name], value, rtol=1e-5, atol=1e-6)


SHARED = """
[run]
task = {name = "diabetes", split = 0}
network = {name = "mlp", hidden = [20], noise = "constant"}
method = "bbb"

[axes]
"method + training" = [
  {method = "pointwise", training = {}},
  {method = "bbb", training = {epochs = 2}},
  {method = "bbb", training = {epochs = 2, start = "pointwise"}},
]
precision = ["float", "W8A8"]
"""


def test_where_a_run_starts_is_part_of_its_key_and_shared() -> None:
    plan = make_plan(qb.Study.from_toml(SHARED, "shared"), Tasks(None))
    floats = [run.keys for run in plan.runs if run.keys.quantised is None]
    assert len({keys.float for keys in floats}) == 3
    assert [keys.start for keys in floats] == [None, None, floats[0].float]
    jobs = {job.id: job for job in plan.jobs()}
    assert jobs[f"float:{floats[2].float}"].needs == (f"float:{floats[0].float}",)
    assert len([job for job in jobs.values() if job.kind == "float"]) == 3


def test_runs_say_that_what_they_start_from_failed(tmp_path: Path) -> None:
    # a decay that no number survives.
    diverging = study('{name = "pointwise", optimizer = "sgd", weight_decay = 1e38}')
    done = qb.run_study(diverging, tmp_path / "store", device="cpu", workers=1)
    assert (done.done, done.failed) == (0, 2)
    assert all("the posterior that training starts from" in reason for reason in done.reasons.values())
    again = qb.run_study(diverging, tmp_path / "store", device="cpu", workers=1)
    assert (again.done, again.failed) == (0, 2)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ('"pointwse"', "did you mean 'pointwise'"),
        ('{name = "mcd", rat = 0.1}', "did you mean 'rate'"),
        ("3", "method must be a table"),
    ],
)
def test_a_start_is_checked_before_anything_runs(start: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        study(start)
