"""Keys hold all that a result depends on; what is trained together is alike in all but its rows and seed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from qbayes.lab.study.plan.plan import Plan, make_plan
from qbayes.lab.study.plan.stacks import stacks_of
from qbayes.lab.study.plan.tasks import Facts, Tasks
from qbayes.lab.study.spec.study import Study

FOLDS = [{"name": "diabetes", "split": [0, 1, 2, 3, 4, 5]}]
RUN: Mapping[str, Any] = {
    "task": "diabetes",
    "network": {"name": "mlp", "hidden": [8], "noise": "constant"},
    "method": "mcd",
    "training": {"epochs": 2},
}


class Told(Tasks):
    """Tasks whose facts are changed, fold by fold."""

    def __init__(self, by_fold: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__(None)
        self._by_fold = by_fold

    def facts(self, section: Any) -> Facts:
        fold = 0 if isinstance(section, str) else section.get("split", 0)
        return dataclasses.replace(super().facts(section), **self._by_fold.get(fold, {}))


def planned(run: Mapping[str, Any], tasks: Tasks | None = None, **axes: Any) -> Plan:
    content = {"run": {**RUN, **run}, **({"axes": axes} if axes else {})}
    return make_plan(Study.from_content(content), tasks or Tasks(None))


def counts(plan: Plan) -> tuple[int, int, int]:
    return len(plan.keys("float")), len(plan.keys("quantised")), len(plan.keys("scores"))


def stacked(plan: Plan, stage: str, tasks: Tasks | None = None) -> list[int]:
    """How many posteriors of a stage each stack has."""
    stacks = stacks_of(plan, tasks or Tasks(None))
    names = [stacks[key] for key in plan.keys(stage) if key in stacks]
    return [names.count(name) for name in dict.fromkeys(names)]


def test_other_data_have_other_keys_under_the_same_name() -> None:
    before, after = (planned({}, Told({0: {"fingerprint": mark}})).runs[0].keys for mark in ("one", "two"))
    assert before.float != after.float
    assert before.scores != after.scores


def test_each_recipe_of_one_plan_has_a_key_of_its_own() -> None:
    plan = planned(
        {"precision": "W8A8"}, quantize=[{"epochs": 1}, {"epochs": 2}, {"epochs": 2, "freeze": 0.1}]
    )
    assert counts(plan) == (1, 3, 3)


def test_each_precision_and_each_evaluation_of_one_plan_has_a_key_of_its_own() -> None:
    plan = planned({}, precision=["float", "W8A8", "W4A4"], evaluate={"draws": [1, 2]})
    assert counts(plan) == (1, 2, 6)


def test_the_backend_and_its_agreement_do_not_concern_a_float_run() -> None:
    evaluations = [{}, {"backend": "onednn"}, {"agreement": True}]
    assert [counts(planned({"evaluate": one})) for one in evaluations] == [(1, 0, 1)] * 3
    assert len({planned({"evaluate": one}).runs[0].keys.scores for one in evaluations}) == 1
    quantised = {planned({"evaluate": one, "precision": "W8A8"}).runs[0].keys.scores for one in evaluations}
    assert len(quantised) == 3


def test_where_training_starts_is_part_of_its_key() -> None:
    trainings = [
        {"epochs": 2},
        {"epochs": 2, "start": "pointwise"},
        {"epochs": 2, "start": "pointwise", "start_training": {"epochs": 1}},
    ]
    keys = [planned({"training": training}).runs[0].keys for training in trainings]
    assert len({one.float for one in keys}) == len({one.start for one in keys}) == 3
    assert keys[0].start is None
    # what it starts from is what a run of that method trains.
    alone = planned({"method": "pointwise", "training": {"epochs": 1}}).runs[0].keys
    assert keys[2].start == alone.float


def test_three_networks_of_one_shape_are_a_stack_and_two_are_none() -> None:
    assert stacked(planned({}, seed=[0, 1, 2]), "float") == [3]
    assert stacked(planned({}, seed=[0, 1]), "float") == []


def test_tasks_of_other_numbers_of_rows_are_trained_apart() -> None:
    """Networks of one stack take their steps together: an epoch must have as many for each."""
    tasks = Told({fold: {"train_rows": 300 + fold // 3} for fold in range(6)})
    plan = planned({}, tasks, task=FOLDS)
    assert stacked(plan, "float", tasks) == [3, 3]
    assert stacked(planned({}, task=FOLDS), "float") == [6]


def test_what_starts_from_another_posterior_is_trained_alone() -> None:
    plan = planned({"training": {"epochs": 2, "start": "pointwise"}}, task=FOLDS)
    stacks = stacks_of(plan, Tasks(None))
    assert not {run.keys.float for run in plan.runs} & set(stacks)


def test_posteriors_with_bits_for_each_layer_are_fine_tuned_alone() -> None:
    tuning = {"epochs": 1}
    assert stacked(planned({"precision": "W4A4", "quantize": tuning}, task=FOLDS), "quantised") == [6]
    mixed = {**tuning, "mixed": "bit_operations"}
    assert stacked(planned({"precision": "W4A4", "quantize": mixed}, task=FOLDS), "quantised") == []


def test_what_failed_is_not_left() -> None:
    plan = planned({}, seed=[0, 1, 2])
    first, second, third = plan.keys("scores")
    plan.done, plan.failed = {"scores": {first}}, {"scores": {second: "no memory"}}
    assert plan.left("scores") == [third]
