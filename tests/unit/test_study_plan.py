"""Plans: what is shared is planned once, and keys depend on what results depend on, and on nothing else."""

import copy
import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from qbayes.errors import BadInput
from qbayes.lab.study.plan import stages
from qbayes.lab.study.plan.plan import Plan, make_plan
from qbayes.lab.study.plan.stacks import stacks_of
from qbayes.lab.study.plan.stages import Resolver, quantised_values
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.spec.sections import DEFAULTS
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store import keys

CONTENT: dict[str, Any] = {
    "run": {
        "task": "digits",
        "network": {"name": "lenet", "style": "relu"},
        "method": {"name": "mcd", "rate": 0.2},
        "training": {"epochs": 3},
        "precision": {"weight": 4, "activation": 4},
        "quantize": {"epochs": 1},
        "evaluate": {"draws": 4, "shifts": False},
    },
    "axes": {"seed": [0, 1], "precision": ["float", "W8A8", "W4A4"]},
}


def planned(content: dict[str, Any]) -> Any:
    return make_plan(Study.from_content(content), Tasks(None))


def changed(path: str, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(CONTENT)
    section, _, key = path.partition(".")
    if key:
        content["run"][section][key] = value
    else:
        content["run"][section] = value
    return {"run": content["run"]}


def keys_of(content: dict[str, Any]) -> stages.Keys:
    (run,) = planned({"run": content["run"]}).runs
    return run.keys


def test_float_trainings_are_shared_by_the_precisions() -> None:
    plan = planned(CONTENT)
    counts = {stage: len(plan.keys(stage)) for stage in keys.STAGES}
    assert counts == {"float": 2, "quantised": 4, "program": 4, "scores": 6}
    assert len(plan.jobs()) == 2 + 6


def test_one_more_width_adds_no_float_training() -> None:
    wider = copy.deepcopy(CONTENT)
    wider["axes"]["precision"].append("W3A3")
    before, after = planned(CONTENT), planned(wider)
    assert before.keys("float") == after.keys("float")
    assert set(before.keys("scores")) < set(after.keys("scores"))
    assert len(after.keys("quantised")) == len(before.keys("quantised")) + 2


def test_draws_share_a_program() -> None:
    content = copy.deepcopy(CONTENT)
    content["axes"] = {"evaluate": {"draws": [1, 2, 5]}}
    plan = planned(content)
    assert len(plan.keys("program")) == 1
    assert len(plan.keys("scores")) == 3
    (float_job, answers) = plan.jobs()
    assert answers.needs == (float_job.id,)
    assert len(answers.runs) == 3


# what changes which stages: everything behind the first that depends on it, nothing before.
CHANGES = [
    ("task", {"name": "digits", "split": 1}, 0),
    ("network.style", "paper", 0),
    ("method.rate", 0.3, 0),
    ("training.epochs", 4, 0),
    ("seed", 5, 0),
    ("threads", 2, 0),
    ("precision.weight", 3, 1),
    ("precision.noise", 4, 1),
    ("quantize.epochs", 2, 1),
    ("quantize.keep", "best", 1),
    ("quantize.match_temperature", True, 1),
    ("evaluate.draws", 5, 3),
    ("evaluate.seed", 1, 3),
    ("evaluate.ood_rows", 100, 3),
    ("evaluate.backend", "onednn", 3),
]


@pytest.mark.parametrize(("path", "value", "first"), CHANGES, ids=[path for path, _, _ in CHANGES])
def test_a_change_makes_new_keys_from_the_stage_on_that_it_concerns(
    path: str, value: Any, first: int
) -> None:
    before, after = keys_of(CONTENT), keys_of(changed(path, value))
    same = [getattr(before, stage) == getattr(after, stage) for stage in keys.STAGES]
    assert same == [index < first for index in range(4)]


def test_spelling_out_a_default_changes_no_key() -> None:
    base = keys_of(CONTENT)
    assert keys_of(changed("method.placement", "default")) == base
    assert keys_of(changed("precision.noise", 8)) == base
    assert keys_of(changed("evaluate.backend", "reference")) == base
    assert keys_of(changed("task", {"name": "digits"})) == base
    assert keys_of(changed("precision", "W4A4")) == base
    assert keys_of(changed("quantize.mixup", 0.0)) == base
    assert keys_of(changed("quantize.match_temperature", False)) == base


def test_rows_of_a_choice_count_where_something_is_scored_on_them() -> None:
    with_shifts = changed("evaluate.shifts", True)
    chosen = copy.deepcopy(with_shifts)
    chosen["run"]["evaluate"]["shift_rows"] = 100
    assert keys_of(chosen).program == keys_of(with_shifts).program
    assert keys_of(chosen).scores != keys_of(with_shifts).scores
    assert keys_of(changed("evaluate.shift_rows", 100)) == keys_of(CONTENT), "nothing is shifted"


def test_a_control_shares_the_float_training_and_has_no_program() -> None:
    quantised, control = keys_of(CONTENT), keys_of(changed("precision", {"finetuned": "W4A4"}))
    assert control.float == quantised.float
    assert control.quantised not in (None, quantised.quantised)
    assert control.program is None
    assert control.scores != quantised.scores
    assert keys_of(changed("precision", {"finetuned": "W4A3"})) != control
    tuned = changed("precision", {"finetuned": "W4A4"})
    tuned["run"]["quantize"]["learning_rate"] = 0.5
    assert keys_of(tuned).quantised != control.quantised
    tuned = changed("precision", {"finetuned": "W4A4"})
    tuned["run"]["evaluate"]["backend"] = "onednn"
    assert keys_of(tuned) == control, "a float posterior has no backend"


def test_the_default_rate_of_a_control_is_that_of_its_precision() -> None:
    facts = Tasks(None).facts("diabetes")
    run = {**DEFAULTS, "task": "diabetes", "network": "mlp", "method": "pointwise"}
    rates = [
        quantised_values({**run, "precision": precision}, facts)["budget"]["learning_rate"]
        for bits in ("W8A8", "W4A8", "W3A3")
        for precision in (bits, {"finetuned": bits})
    ]
    assert rates[0::2] == rates[1::2]
    assert rates[0] < rates[2] < rates[4]


def test_a_control_without_an_epoch_is_refused() -> None:
    content = changed("precision", {"finetuned": "W4A4"})
    content["run"]["quantize"] = {"epochs": 0}
    with pytest.raises(BadInput, match="fine-tuning in float needs an epoch"):
        keys_of(content)


def test_more_rows_than_there_are_are_refused_before_anything_runs() -> None:
    content = changed("evaluate.shifts", True)
    content["run"]["evaluate"]["shift_rows"] = 450
    with pytest.raises(BadInput, match=r"450 of 449 rows of the split 'test' of task 'digits'"):
        keys_of(content)
    content["run"]["evaluate"]["shift_rows"] = 449
    keys_of(content)


@pytest.mark.parametrize("quantize", [{"mixed": "bit_operations"}, {}], ids=["bits by layer", "bits by name"])
def test_bits_between_layers_count_where_some_have_fewer_bits(quantize: dict[str, Any]) -> None:
    """At W8A8 they change nothing, unless some layers have bits of their own."""
    named = {} if quantize else {"overrides": {"hidden": {"activation": 2}}}

    def distinct(tuning: dict[str, Any], **more: Any) -> int:
        found: set[str | None] = set()
        for bits in ("none", 6, 8):
            content = changed("precision", {"weight": 8, "activation": 8, "elementwise_bits": bits, **more})
            content["run"]["quantize"] = {**content["run"]["quantize"], **tuning}
            found.add(keys_of(content).quantised)
        return len(found)

    assert distinct(quantize, **named) == 3
    assert distinct({}) == 1


@pytest.mark.parametrize(
    ("method", "precision", "concerned"),
    [
        ("bbb", {}, True),
        ("bbb", {"weight_range": "mse"}, True),
        ("bbb", {"weight_range": "minmax"}, False),
        ("bbb", {"weight_range": "minmax", "overrides": {"hidden": {"weight_range": "mse"}}}, True),
        ("bbb", {"preset": "paper"}, False),
        ("mcd", {}, False),
        ("pointwise", {}, False),
        ("sghmc", {}, False),
    ],
)
def test_the_rule_for_drawn_weights_is_in_the_keys_of_what_is_drawn(
    method: str, precision: dict[str, Any], concerned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of all else stand from before there was such a rule."""
    content = changed("precision", precision)
    content["run"]["method"] = {"name": method}
    before = keys_of(content)
    monkeypatch.setattr(stages, "GAUSSIAN_GRID", "another")
    after = keys_of(content)
    assert before.float == after.float
    assert (before.quantised != after.quantised) is concerned
    assert (before.scores != after.scores) is concerned


def test_the_order_of_keys_changes_nothing() -> None:
    turned = copy.deepcopy(CONTENT)
    turned["run"] = {
        name: dict(reversed(value.items())) if isinstance(value, dict) else value
        for name, value in reversed(CONTENT["run"].items())
    }
    assert keys_of(turned) == keys_of(CONTENT)


def test_a_new_version_of_a_stage_makes_new_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys_of(CONTENT)
    monkeypatch.setattr(keys, "VERSIONS", {**keys.VERSIONS, "program": 2})
    after = keys_of(CONTENT)
    assert (before.float, before.quantised) == (after.float, after.quantised)
    assert before.program != after.program
    assert before.scores != after.scores


def test_what_does_not_concern_a_float_run_does_not_repeat_it() -> None:
    content = copy.deepcopy(CONTENT)
    content["axes"] = {"precision": ["float", "W4A4"], "quantize": {"epochs": [0, 1]}}
    plan = planned(content)
    assert [run.row()["precision"] for run in plan.runs].count("float") == 1
    assert len(plan.runs) == 3


def test_a_hundred_thousand_runs_resolve_each_distinct_stage_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning grows with the runs only by looking keys up: nothing is resolved twice."""
    calls = {"float": 0, "quantised": 0}
    real_float, real_quantised = stages.float_values, stages.quantised_values

    def counted_float(*arguments: Any) -> Any:
        calls["float"] += 1
        return real_float(*arguments)

    def counted_quantised(*arguments: Any) -> Any:
        calls["quantised"] += 1
        return real_quantised(*arguments)

    monkeypatch.setattr(stages, "float_values", counted_float)
    monkeypatch.setattr(stages, "quantised_values", counted_quantised)
    content = copy.deepcopy(CONTENT)
    bits = [f"W{w}A{a}" for w, a in itertools.product(range(2, 9), range(2, 9))]
    content["axes"] = {"seed": list(range(20)), "precision": bits, "evaluate": {"draws": list(range(1, 103))}}
    plan = planned(content)
    assert len(plan.runs) == 20 * 49 * 102
    assert calls == {"float": 20, "quantised": 20 * 49}
    assert len(plan.jobs()) == 20 + 20 * 49


def test_threads_are_part_of_every_training_and_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that other threads share out have other bits. In one plan, too, where keys are remembered."""
    hashed: dict[str, Mapping[str, Any]] = {}
    digest = keys.digest

    def noted(stage: str, values: Mapping[str, Any]) -> str:
        hashed[stage] = values
        return digest(stage, values)

    monkeypatch.setattr(stages, "digest", noted)
    keys_of(changed("threads", 3))
    assert [hashed[stage]["threads"] for stage in ("float", "quantised")] == [3, 3]
    content = copy.deepcopy(CONTENT)
    content["axes"] = {"threads": [1, 2], "precision": ["float", "W8A8"]}
    plan = planned(content)
    assert [len(plan.keys(stage)) for stage in keys.STAGES] == [2, 2, 2, 4]


def test_keys_are_hexadecimal_and_differ() -> None:
    plan = planned(CONTENT)
    made = [key for stage in keys.STAGES for key in plan.keys(stage)]
    assert len(made) == len(set(made))
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in made)


def test_the_resolver_does_not_mistake_one_section_for_another() -> None:
    """Sections are remembered by object: a new object at an old address must not take its place."""
    resolver = Resolver(Tasks(None))
    base = Study.from_content({"run": CONTENT["run"]}).run
    seen = {resolver.keys({**base, "evaluate": {"draws": draws}}).scores for draws in range(1, 400)}
    assert len(seen) == 399


def diabetes(**axes: Any) -> Any:
    content = {
        "run": {
            "task": "diabetes",
            "network": {"name": "mlp", "hidden": [8], "noise": "constant"},
            "method": "pointwise",
            "training": {"epochs": 2},
        },
        "axes": axes,
    }
    return planned(content)


def test_networks_of_one_shape_are_trained_together() -> None:
    plan = diabetes(
        task=[{"name": "diabetes", "split": [0, 1, 2, 3]}], method=["pointwise", "mcd"], seed=[0, 1]
    )
    stacks = stacks_of(plan, Tasks(None))
    assert set(stacks) == set(plan.keys("float"))
    assert sorted(list(stacks.values()).count(name) for name in set(stacks.values())) == [8, 8]
    jobs = [job for job in plan.jobs(stacks) if job.kind == "float"]
    assert [len(job.payload["stages"]) for job in jobs] == [8, 8]
    methods = [{run["method"] for _, run in job.payload["stages"]} for job in jobs]
    assert methods == [{"pointwise"}, {"mcd"}]


def test_stacks_are_cut_evenly_and_do_not_depend_on_what_is_done() -> None:
    plan = diabetes(seed=list(range(70)))
    stacks = stacks_of(plan, Tasks(None))
    sizes = [list(stacks.values()).count(name) for name in dict.fromkeys(stacks.values())]
    assert sizes == [24, 23, 23]
    plan.done = {"float": set(plan.keys("float")[:30])}
    assert stacks_of(plan, Tasks(None)) == stacks
    # one posterior is missing: its stack is trained whole, the others are not.
    plan.done = {"float": set(plan.keys("float")[1:])}
    (job,) = [job for job in plan.jobs(stacks) if job.kind == "float"]
    assert len(job.payload["stages"]) == 24


def test_networks_of_other_threads_are_trained_apart() -> None:
    plan = tuned(threads=[1, 2], precision=["W8A8"])
    stacks = stacks_of(plan, Tasks(None))
    assert sizes(stacks, plan.keys("float")) == sizes(stacks, plan.keys("quantised")) == [4, 4]
    for job in plan.jobs(stacks):
        assert len({run["threads"] for _, run in job.payload.get("stages", job.payload.get("runs"))}) == 1


def test_two_networks_and_convolutions_are_not_stacked() -> None:
    assert stacks_of(diabetes(seed=[0, 1]), Tasks(None)) == {}
    assert stacks_of(planned({**CONTENT, "axes": {"seed": [0, 1, 2, 3]}}), Tasks(None)) == {}


def tuned(**axes: Any) -> Plan:
    """Four folds of an MLP, fine-tuned."""
    return diabetes(task=[{"name": "diabetes", "split": [0, 1, 2, 3]}], **axes)


def sizes(stacks: Mapping[str, str], keys: list[str]) -> list[int]:
    """How many of the keys each stack has."""
    names = [stacks[key] for key in keys if key in stacks]
    return [names.count(name) for name in dict.fromkeys(names)]


def test_fine_tuning_is_stacked_by_precision_and_starts_when_its_floats_are_there() -> None:
    plan = tuned(precision=["float", "W8A8", "W4A4"])
    stacks = stacks_of(plan, Tasks(None))
    assert sizes(stacks, plan.keys("quantised")) == [4, 4]
    jobs = {job.id: job for job in plan.jobs(stacks)}
    (trained,) = [job for job in jobs.values() if job.kind == "float"]
    fine = [job for job in jobs.values() if job.kind == "quantised"]
    assert [job.needs for job in fine] == [(trained.id,)] * 2
    for job in fine:
        assert len({str(run["precision"]) for _, run in job.payload["stages"]}) == 1
    of_precisions = [job for job in jobs.values() if job.kind == "answers" and job.payload["quantised"]]
    assert {job.needs for job in of_precisions} == {(job.id,) for job in fine}
    # a bit-width more leaves the stacks of the others as they are.
    wider = stacks_of(tuned(precision=["float", "W8A8", "W4A4", "W2A2"]), Tasks(None))
    assert stacks.items() < wider.items()


def test_too_few_networks_of_one_precision_are_stacked_over_bit_widths() -> None:
    one_rate = [{"learning_rate": 1e-3}]
    plan = diabetes(precision=["W8A8", "W4A4", "W3A3"], quantize=one_rate)
    assert sizes(stacks_of(plan, Tasks(None)), plan.keys("quantised")) == [3]
    searching = [{"weight": w, "activation": w, "weight_range": "mse"} for w in (8, 4, 3)]
    assert stacks_of(diabetes(precision=searching, quantize=one_rate), Tasks(None)) == {}
    # by default the rate of a regression depends on the bits.
    assert stacks_of(diabetes(precision=["W8A8", "W4A4", "W3A3"]), Tasks(None)) == {}


def test_members_count_as_networks_of_a_stack() -> None:
    method = {"name": "sghmc", "members": 20, "every": 1}
    plan = tuned(method=[method], training=[{"epochs": 40}], precision=["W8A8"])
    assert sizes(stacks_of(plan, Tasks(None)), plan.keys("quantised")) == [1, 1, 1, 1]
    assert sizes(stacks_of(plan, Tasks(None), 200), plan.keys("quantised")) == [4]
    # two networks would not be worth it, the twenty members of one posterior are.
    alone = diabetes(method=[method], training=[{"epochs": 40}], precision=["W8A8"])
    assert sizes(stacks_of(alone, Tasks(None)), alone.keys("quantised")) == [1]


def test_mixed_rows_without_distillation_are_refused_before_anything_runs() -> None:
    with pytest.raises(BadInput, match="mixed rows have no labels"):
        tuned(precision=["W8A8"], quantize=[{"mixup": 0.5, "distill": 0.5}])


def test_a_regression_has_no_temperature_to_match() -> None:
    with pytest.raises(BadInput, match="only class scores"):
        tuned(precision=["W8A8"], quantize=[{"match_temperature": True}])


def test_mixed_rows_are_not_stacked() -> None:
    plain, blends = (tuned(precision=["W8A8"], quantize=[{"mixup": share}]) for share in (0.0, 0.5))
    assert set(plain.keys("quantised")) <= stacks_of(plain, Tasks(None)).keys()
    assert not stacks_of(blends, Tasks(None)).keys() & set(blends.keys("quantised"))
    assert set(plain.keys("quantised")).isdisjoint(blends.keys("quantised"))


def test_what_is_only_calibrated_is_not_stacked() -> None:
    plan = tuned(precision=["W8A8"], quantize=[{"epochs": 0}])
    assert not stacks_of(plan, Tasks(None)).keys() & set(plan.keys("quantised"))


def stacked(method: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The stacks that fine-tune each of these methods' posteriors, by the method's options."""
    content = {
        "run": {
            "task": "diabetes",
            "network": {"name": "mlp", "hidden": [8]},
            "method": "pointwise",
            "training": {"epochs": 2, "least_steps": 0},
            "quantize": {"epochs": 1, "least_steps": 0},
        },
        "axes": {
            "task": [{"name": "diabetes", "split": [0, 1, 2, 3]}],
            "method": method,
            "precision": ["float", "W4A4"],
        },
    }
    tasks = Tasks(None)
    plan = make_plan(Study.from_content(content), tasks)
    names = stacks_of(plan, tasks)
    found: dict[str, set[str]] = {}
    for run in plan.runs:
        if run.keys.quantised is not None:
            found.setdefault(str(run.point.run["method"]), set()).add(names[run.keys.quantised])
    return found


def test_networks_that_were_trained_differently_are_fine_tuned_together() -> None:
    """A decay leaves no trace in the network; a dropout rate does: masks are scaled by it."""
    one, other = stacked([{"name": "pointwise", "weight_decay": decay} for decay in (1e-4, 1e-2)]).values()
    assert one == other
    assert len(one) == 1
    one, other = stacked([{"name": "mcd", "rate": rate} for rate in (0.1, 0.3)]).values()
    assert not one & other
