"""Stages float → quantised → program → scores, keyed by the hash of all they depend on.

A key is the start of a sha256 over canonical JSON: the resolved values (presets and defaults filled in, keys
sorted), the data's fingerprint, the key of the stage before, and the stage's version. So five bit-widths
share one float training, and a changed default is another key, not a stale result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.study.plan.tasks import CONFUSION, Facts, Tasks, check_network
from qbayes.lab.study.spec.sections import (
    EVALUATE,
    FINETUNED,
    FLOAT,
    MIXED,
    OF_THE_START,
    ROWS_OF,
    START,
    fine_tuning_of,
    is_control,
    mixed_of,
    named,
    precision_of,
    start_of,
)
from qbayes.lab.study.store.keys import canonical, digest
from qbayes.methods import METHODS, Method, make_method
from qbayes.metrics.choice import check_enough
from qbayes.quant.finetune.checks import check_control
from qbayes.quant.observers import QUANTIZERS
from qbayes.quant.observers.mse import Mse
from qbayes.quant.precision import Precision
from qbayes.training.budget import Budget, resolve_arithmetic

# how the grid of drawn weights is found: another word where another rule gives other numbers.
GAUSSIAN_GRID = "drawn"


@dataclass(frozen=True)
class Keys:
    """The keys of a run's stages; a float run has neither quantised posterior nor program.

    The control has no program: ``quantised`` is the float posterior with the fine-tuning of a quantised one.

    ``start`` is that of the float posterior from which the training of ``float`` starts.
    """

    float: str
    quantised: str | None
    program: str | None
    scores: str
    start: str | None = None


class Resolver:
    """Sections into the values that the verbs take, and into keys. Each distinct section is resolved once."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._texts: dict[int, tuple[Any, str]] = {}
        self._hashed: dict[tuple[str, ...], str] = {}

    def keys(self, run: Mapping[str, Any]) -> Keys:
        float_key, before = self._float(run), start_of(run)
        start = None if before is None else self._float(before)
        evaluate = self._text(run["evaluate"])
        if run["precision"] == FLOAT:
            return Keys(float_key, None, None, self._scores(float_key, evaluate, run), start)
        # the seed and the threads are those of the float key.
        parts = ("quantised", float_key, self._text(run["precision"]), self._text(run["quantize"]))
        quantised = self._once(
            parts, lambda: {"float": float_key, **quantised_values(run, self._tasks.facts(run["task"]))}
        )
        if is_control(run["precision"]):
            return Keys(float_key, quantised, None, self._scores(quantised, evaluate, run), start)
        program = self._once(("program", quantised), lambda: {"quantised": quantised})
        return Keys(float_key, quantised, program, self._scores(program, evaluate, run), start)

    def _float(self, run: Mapping[str, Any]) -> str:
        names = ("task", "network", "method", "training", "seed", "threads")

        def values() -> dict[str, Any]:
            before, facts = start_of(run), self._tasks.facts(run["task"])
            start = {} if before is None else {START: self._float(before)}
            self._check_network(run, facts)
            return {**float_values(run, facts), **start}

        return self._once(("float", *(self._text(run[name]) for name in names)), values)

    def _check_network(self, run: Mapping[str, Any], facts: Facts) -> None:
        parts = ("network", self._text(run["network"]), facts.kind, str((facts.input_shape, facts.outputs)))
        if parts not in self._hashed:
            check_network(run["network"], facts)
            self._hashed[parts] = ""

    def _scores(self, of: str, evaluate: str, run: Mapping[str, Any]) -> str:
        def values() -> dict[str, Any]:
            evaluated = evaluate_values(run)
            _check_rows(evaluated, self._tasks.facts(run["task"]))
            return {"of": of, "evaluate": evaluated}

        return self._once(("scores", of, evaluate), values)

    def _once(self, parts: tuple[str, ...], values: Callable[[], Mapping[str, Any]]) -> str:
        """The key of a stage, which ``parts`` begin with; its values are resolved at the first call alone."""
        if parts not in self._hashed:
            self._hashed[parts] = digest(parts[0], values())
        return self._hashed[parts]

    def _text(self, value: Any) -> str:
        """Its canonical JSON. Points share their sections: the same object need not be written twice."""
        held = self._texts.get(id(value))
        if held is None or held[0] is not value:
            held = self._texts[id(value)] = (value, canonical(value))
        return held[1]


def _check_rows(values: Mapping[str, Any], facts: Facts) -> None:
    """More rows than there are must be refused here: scores come after hours of training."""
    split = values["split"]
    shifted = facts.rows.get(split) if facts.shifted else None
    places = {
        "shift_rows": (shifted, f"the split '{split}' of task '{facts.name}'"),
        "ood_rows": (facts.rows.get(CONFUSION), f"the confusion data of task '{facts.name}'"),
    }
    for name, (there, where) in places.items():
        if there is not None and name in values:
            check_enough(name, values[name], there, where)


def method_and_budget(run: Mapping[str, Any], facts: Facts) -> tuple[Method, Budget]:
    """As ``qb.recipe``: the method's preset for the task, and what the run says instead."""
    name, options = named(run["method"], "method", "mcd")
    values = METHODS[name].preset(options.pop("preset", "default"), facts.name, facts.kind)
    settings = {name: value for name, value in run["training"].items() if name not in OF_THE_START}
    budget = Budget.from_options(values.budget, **settings).for_rows(facts.train_rows)
    budget = resolve_arithmetic(budget, facts.device, facts.input_shape)
    return make_method(name, **{**values.method, **options}), budget


def float_values(run: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    method, budget = method_and_budget(run, facts)
    if budget.epochs < 1:
        raise BadInput("float training needs an epoch", "training.epochs = 0", "give at least 1")
    name, options = named(run["network"], "network", "lenet")
    return {
        "task": facts.name,
        "data": facts.fingerprint,
        "network": {"name": name, **options},
        "method": method.to_json(),
        "budget": budget.to_json(),
        "seed": run["seed"],
        "threads": run["threads"],
    }


def quantised_values(run: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    precision = precision_of(run["precision"])
    tuning = fine_tuning_of(run["quantize"]).resolve(precision, facts)
    mixed = mixed_of(run["quantize"])
    if is_control(run["precision"]):
        check_control(precision, tuning.epochs)
    tuning.check_for(facts)
    tuning = tuning.with_budget(resolve_arithmetic(tuning.budget, facts.device, facts.input_shape))
    return {
        **tuning.to_key(),
        **({} if mixed is None else {MIXED: mixed}),
        **_of_gaussians(run, precision),
        "precision": _precision_values(precision, mixed),
        **({FINETUNED: True} if is_control(run["precision"]) else {}),
        "seed": run["seed"],
        "threads": run["threads"],
    }


def _of_gaussians(run: Mapping[str, Any], precision: Precision) -> dict[str, Any]:
    """The rule for grids of drawn weights, where there may be such: other keys stand from before it."""
    name, _ = named(run["method"], "method", "mcd")
    options = [dict(given) for _, given in precision.to_json()["overrides"]]
    rules = [precision.weight_range, *(given["weight_range"] for given in options if "weight_range" in given)]
    concerns = METHODS[name].gaussian and precision.gaussian == "keep"
    if not concerns or not any(issubclass(QUANTIZERS[rule], Mse) for rule in rules):
        return {}
    return {"gaussian_grid": GAUSSIAN_GRID}


def _precision_values(precision: Precision, mixed: str | None) -> dict[str, Any]:
    """The precision without bits that change nothing, so that keys from before there were such ones stand.

    Where layers have bits of their own, by name or by their sensitivity, some may have fewer than most.
    """
    values, bits = precision.to_json(), precision.elementwise_bits
    equal = mixed is None and not values["overrides"]
    if bits is None or (equal and bits <= precision.activation):
        values.pop("elementwise_bits")
    return values


def evaluate_values(run: Mapping[str, Any]) -> dict[str, Any]:
    """What is evaluated how; the backend and its agreement do not concern a float network."""
    whole = {**EVALUATE, **run["evaluate"]}
    for rows, scored in ROWS_OF.items():
        # a number of rows that nothing is scored on leaves the keys as they are without it.
        if not whole[scored]:
            whole.pop(rows, None)
    if answers_in_float(run):
        whole.pop("backend")
        whole.pop("agreement")
    return whole


def answers_in_float(run: Mapping[str, Any]) -> bool:
    """Whether a run's scores are those of a float posterior: as it was trained, or the control."""
    return run["precision"] == FLOAT or is_control(run["precision"])
