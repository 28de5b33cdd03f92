"""Which posteriors of a plan are trained together, as one stacked program: float ones, and quantised ones.

Stacks are fixed by the plan, not by what is done: a study that was stopped trains a stack that is not whole
again from its checkpoint, or from the start, and ends with the same bits.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from qbayes.lab.study.plan.plan import Plan
from qbayes.lab.study.plan.runs import PlannedRun
from qbayes.lab.study.plan.stages import method_and_budget, quantised_values
from qbayes.lab.study.plan.tasks import Facts, Tasks, make_network
from qbayes.lab.study.spec.sections import FLOAT, fine_tuning_of, is_trained, mixed_of, named, precision_of
from qbayes.lab.study.store.keys import canonical
from qbayes.quant.finetune.stacked import cannot_stack_quantised
from qbayes.quant.observers import QUANTIZERS
from qbayes.quant.precision import RANGES, Precision
from qbayes.training.budget import Budget
from qbayes.training.stacked.fit import StackJob, cannot_stack, module_of
from qbayes.training.stacked.key import key_of

# Networks of one stack: more gain little on a CPU, and a stack that is lost is lost whole. A GPU takes more.
MOST = 30
MOST_ON_A_GPU = 200
# A stack of fewer gains too little over its overhead (benchmarks/stacked.py).
FEWEST = 3
# Runs that are alike, by what they have in common and by key.
Groups = dict[str, dict[str, Mapping[str, Any]]]
# Where a step is bound by starting operations, stacking pays; convolutions are bound by arithmetic.
PAYS = ("mlp",)


def stacks_of(plan: Plan, tasks: Tasks, most: int = MOST) -> dict[str, str]:
    """The name of the stack of every key, float or quantised, that has one; ``most`` networks in each."""
    possible = [run for run in plan.runs if run.reason is None]
    planned = [run for run in possible if named(run.point.run["network"], "network", "mlp")[0] in PAYS]
    return {**_float_stacks(planned, tasks, most), **_stacks_of_quantised(planned, tasks, most)}


def stack_job(run: Mapping[str, Any], tasks: Tasks) -> StackJob:
    task = tasks.load(run["task"])
    method, budget = method_and_budget(run, tasks.facts(run["task"]))
    return StackJob(lambda: make_network(run["network"], task), task, method, budget, run["seed"])


def _float_stacks(planned: Iterable[PlannedRun], tasks: Tasks, most: int) -> dict[str, str]:
    groups: Groups = defaultdict(dict)
    for run in planned:
        if run.keys.start is None:
            alike = canonical(_alike(run.point.run, tasks.facts(run.point.run["task"])))
            groups[alike].setdefault(run.keys.float, run.point.run)
    found: dict[str, str] = {}
    for runs in groups.values():
        if len(runs) >= FEWEST and cannot_stack(stack_job(next(iter(runs.values())), tasks)) is None:
            found |= _name_stacks(dict.fromkeys(runs, 1), most)
    return found


def _stacks_of_quantised(planned: Iterable[PlannedRun], tasks: Tasks, most: int) -> dict[str, str]:
    """Of one precision each, so that a bit-width that is added later adds stacks and changes none.

    Only where there are too few networks of one precision are bit-widths trained together.
    """
    groups: Groups = defaultdict(dict)
    shapes = _Shapes(tasks)
    for planned_run in planned:
        run, key = planned_run.point.run, planned_run.keys.quantised
        # where each posterior has bits of its own for every layer, no two have the same grids.
        if key is not None and is_trained(run["quantize"]) and mixed_of(run["quantize"]) is None:
            groups[_alike_quantised(run, shapes, with_bits=True)].setdefault(key, run)
    wider: Groups = defaultdict(dict)
    for alike, runs in groups.items():
        first = next(iter(runs.values()))
        enough = len(runs) * _members(first, tasks) >= FEWEST
        wider[alike if enough else _alike_quantised(first, shapes, with_bits=False)] |= runs
    found: dict[str, str] = {}
    trouble: dict[str, str | None] = {}
    for runs in wider.values():
        first = next(iter(runs.values()))
        members = _members(first, tasks)
        if len(runs) * members >= FEWEST and _can_be_tuned(first, shapes, trouble):
            found |= _name_stacks(dict.fromkeys(runs, members), most)
    return found


def _can_be_tuned(run: Mapping[str, Any], shapes: "_Shapes", trouble: dict[str, str | None]) -> bool:
    """Whether a stack of such runs works; ``trouble`` remembers what was tried, which bits do not change."""
    mixed = _alike_quantised(run, shapes, with_bits=False)
    if mixed not in trouble:
        job = stack_job(run, shapes.tasks)
        precision = precision_of(run["precision"])
        tuning = fine_tuning_of(run["quantize"]).resolve(precision, job.task)
        trouble[mixed] = (
            ("its rows are mixed" if tuning.mixup else None)
            or cannot_stack(job)
            or cannot_stack_quantised(module_of(job), job.task, precision, tuning.budget)
        )
    return trouble[mixed] is None


def _members(run: Mapping[str, Any], tasks: Tasks) -> int:
    """How many networks a posterior of this run has."""
    method, budget = method_and_budget(run, tasks.facts(run["task"]))
    return method.count_members(budget.epochs)


def _alike(run: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """What networks of a stack have in common: all but the rows themselves and the seed."""
    method, budget = method_and_budget(run, facts)
    return {
        "network": run["network"],
        "method": method.to_json(),
        "budget": budget.to_json(),
        "kind": facts.kind,
        "rows": facts.train_rows,
        "inputs": facts.input_shape,
        "threads": run["threads"],
    }


def _alike_quantised(run: Mapping[str, Any], shapes: "_Shapes", *, with_bits: bool) -> str:
    assert run["precision"] != FLOAT
    precision = precision_of(run["precision"])
    values = quantised_values(run, shapes.tasks.facts(run["task"]))
    values |= {"precision": (precision if with_bits else _without_bits(precision)).to_json()}
    values.pop("seed")
    return canonical({**shapes.alike(run), "quantize": values})


class _Shapes:
    """What trained networks have in common that one program can run, however each of them was trained.

    So networks whose learning rate or prior held-out rows chose are fine-tuned together all the same.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._known: dict[str, str] = {}

    def alike(self, run: Mapping[str, Any]) -> dict[str, Any]:
        alike = _alike(run, self.tasks.facts(run["task"]))
        how = canonical(alike)
        if how not in self._known:
            job = stack_job(run, self.tasks)
            # of a budget that all share: the module alone, and the rows, are to tell them apart.
            method, _ = named(run["method"], "method", "mcd")
            self._known[how] = key_of(module_of(job), job.task, Budget(), method)
        given = {name: alike[name] for name in ("network", "kind", "rows", "inputs", "threads")}
        return {**given, "shape": self._known[how], "members": _members(run, self.tasks)}


def _without_bits(precision: Precision) -> Precision:
    """One value for all precisions whose networks may be trained together."""
    rules = [QUANTIZERS[getattr(precision, name)] for name in RANGES]
    if all(rule.learned or not rule.needs_bits for rule in rules):
        return replace(precision, weight=8, activation=8)
    return precision


def _name_stacks(networks: Mapping[str, int], most: int) -> dict[str, str]:
    """The stack of each key, which brings so many networks: as few as possible, as equal as possible."""
    keys = list(networks)
    count = -(-len(keys) // max(1, most // max(networks.values())))
    size, longer = divmod(len(keys), count)
    found: dict[str, str] = {}
    for index in range(count):
        first = index * size + min(index, longer)
        part = keys[first : first + size + (index < longer)]
        name = "stack-" + hashlib.sha256("".join(part).encode()).hexdigest()[:16]
        found |= dict.fromkeys(part, name)
    return found
