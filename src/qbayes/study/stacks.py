"""Which float posteriors of a plan are trained together, as one stacked program.

Stacks are fixed by the plan, not by what is done: a study that was stopped trains a stack that is not whole
again from its checkpoint, or from the start, and ends with the same bits.
"""

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

from qbayes.study.network import make_network
from qbayes.study.plan import Plan
from qbayes.study.sections import named
from qbayes.study.stages import Tasks, canonical, method_and_budget
from qbayes.training.stacked import StackJob, cannot_stack

# Networks of one stack: more gain little, and a stack that is lost is lost whole.
MOST = 30
# A stack of fewer gains too little over its overhead (benchmarks/stacked.py).
FEWEST = 3
# Where a step is bound by starting operations, stacking pays; convolutions are bound by arithmetic.
PAYS = ("mlp",)


def stacks_of(plan: Plan, tasks: Tasks) -> dict[str, str]:
    """The name of the stack of every float key that has one."""
    groups: dict[str, list[str]] = {}
    runs = {run.keys.float: run.point.run for run in reversed(plan.runs)}
    for key in plan.keys("float"):
        if named(runs[key]["network"], "network", "mlp")[0] in PAYS:
            groups.setdefault(_alike(runs[key], tasks), []).append(key)
    found: dict[str, str] = {}
    for keys in groups.values():
        if len(keys) < FEWEST or cannot_stack(stack_job(runs[keys[0]], tasks)) is not None:
            continue
        for part in _parts(keys):
            name = "stack-" + hashlib.sha256("".join(part).encode()).hexdigest()[:16]
            found |= dict.fromkeys(part, name)
    return found


def stack_job(run: Mapping[str, Any], tasks: Tasks) -> StackJob:
    task = tasks.load(run["task"])
    method, budget = method_and_budget(run, tasks.facts(run["task"]))
    return StackJob(lambda: make_network(run["network"], task), task, method, budget, run["seed"])


def _alike(run: Mapping[str, Any], tasks: Tasks) -> str:
    """What networks of a stack have in common: all but the rows themselves and the seed."""
    facts = tasks.facts(run["task"])
    method, budget = method_and_budget(run, facts)
    shared = {
        "network": run["network"],
        "method": method.to_json(),
        "budget": budget.to_json(),
        "kind": facts.kind,
        "rows": facts.train_rows,
        "inputs": facts.input_shape,
        "threads": run["threads"],
    }
    return canonical(shared)


def _parts(keys: list[str]) -> list[list[str]]:
    """As few parts as possible, as equal as possible."""
    count = -(-len(keys) // MOST)
    size, longer = divmod(len(keys), count)
    ends = [index * size + min(index, longer) for index in range(count + 1)]
    return [keys[first:end] for first, end in itertools.pairwise(ends)]
