"""A row of the results: what a run was, what it scored, what it costs, and by what it was scored.

Nothing in it depends on the clock.
"""

from collections.abc import Mapping
from typing import Any

import torch

from qbayes.integer.compare import compare_ops
from qbayes.integer.posterior import ProgramPosterior
from qbayes.integer.program import Program
from qbayes.integer.structure.cost import cost
from qbayes.lab.study.plan.stages import evaluate_values
from qbayes.lab.study.plan.weight_spread import weight_spread
from qbayes.lab.study.spec.choose_section import CHOOSE
from qbayes.lab.study.spec.sections import (
    CONTROL,
    FLOAT,
    ROWS_OF,
    is_control,
    mixed_of,
    named,
    precision_of,
    scheme_of,
    training_of,
)
from qbayes.lab.study.store.table import CANDIDATE, CHOSEN
from qbayes.metrics import Scores
from qbayes.metrics.scores import to_json_numbers
from qbayes.posterior.network import NetworkPosterior
from qbayes.provenance import provenance
from qbayes.tasks import Task

_FLOAT_BITS = 32
# rows on which two backends are compared code by code.
_COMPARED_ROWS, _COMPARED_DRAWS = 64, 2
Row = dict[str, Any]


def identity(run: Mapping[str, Any]) -> Row:
    """What the run is, known before it starts."""
    task, task_options = named(run["task"], "task", "digits")
    method, options = named(run["method"], "method", "mcd")
    values = evaluate_values(run)
    choose = run.get(CHOOSE, {})
    shared = {
        **{mark: choose[mark] for mark in (CANDIDATE, CHOSEN) if mark in choose},
        "task": task,
        "fold": next((task_options[key] for key in ("split", "fold") if key in task_options), None),
        "network": named(run["network"], "network", "lenet")[0],
        "method": method,
        "recipe": options.get("preset", "default"),
        "seed": run["seed"],
        "draws": values["draws"],
        "scheme": scheme_of(run["precision"], mixed_of(run["quantize"])),
    }
    if run["precision"] == FLOAT:
        bits = {"precision": FLOAT, "weight": _FLOAT_BITS, "activation": _FLOAT_BITS}
        return {**shared, **bits, "training": FLOAT, "backend": FLOAT}
    if is_control(run["precision"]):
        bits = {"precision": CONTROL, "weight": _FLOAT_BITS, "activation": _FLOAT_BITS}
        return {**shared, **bits, "training": training_of(run["quantize"], task), "backend": FLOAT}
    precision = precision_of(run["precision"])
    return {
        **shared,
        "precision": precision.label,
        "weight": precision.weight,
        "activation": precision.activation,
        "training": training_of(run["quantize"], task),
        "backend": values["backend"],
    }


def measured_row(
    run: Mapping[str, Any],
    found: Scores,
    task: Task,
    deployed: NetworkPosterior | Program,
    posterior: NetworkPosterior | ProgramPosterior,
) -> Row:
    """Scores and costs of a run, ready for JSON: a score that is not finite is "inf", "-inf" or "nan".

    It says what it was scored by: commit, versions, processor, the device of ``posterior`` and the backend
    that ran, where the study says ``auto``. A float run also says how spread its weights are:
    ``spread/LAYER``, ``deviation/LAYER``.
    """
    as_trained = run["precision"] == FLOAT
    ran = {"backend": posterior.backend.name} if isinstance(posterior, ProgramPosterior) else {}
    return {
        **identity(run),
        **ran,
        **to_json_numbers(found.flat()),
        **_size(deployed),
        **(weight_spread(deployed) if isinstance(deployed, NetworkPosterior) and as_trained else {}),
        "test_rows": found.meta["rows"],
        "train_rows": task.train_rows,
        **{name: found.meta[name] for name in ROWS_OF if name in found.meta},
        "classes": _classes(task),
        "target_deviation": _deviation(task, str(evaluate_values(run)["split"])),
        **_agreement(run, deployed, task),
        **provenance(posterior.device),
    }


def _size(deployed: NetworkPosterior | Program) -> Row:
    if isinstance(deployed, NetworkPosterior):
        held = [value for member in deployed.members for value in member.values()]
        return {"bytes": sum(value.numel() * value.element_size() for value in held)}
    found = cost(deployed, variance=False)
    return {
        "bytes": found.bytes,
        "weights": found.weights,
        "macs": found.macs(),
        "bit_operations": found.bit_operations(),
    }


def _classes(task: Task) -> int | None:
    return task.signature.likelihood.to_json()["classes"] if task.kind == "classification" else None


def _deviation(task: Task, split: str) -> float | None:
    """The deviation of a regression's targets, in their units: what an answer by the mean alone errs."""
    if task.kind == "classification":
        return None
    targets = torch.cat([y for _, y in task.batches(split, 4096)]).double()
    return targets.std(0, unbiased=False).mean().item()


def _agreement(run: Mapping[str, Any], deployed: NetworkPosterior | Program, task: Task) -> Row:
    """The share of codes on which onednn and the reference agree, each op fed the same input."""
    if isinstance(deployed, NetworkPosterior) or not evaluate_values(run)["agreement"]:
        return {}
    x, _ = next(iter(task.batches("test", _COMPARED_ROWS)))
    apart = compare_ops(deployed, "reference", "onednn", x, _COMPARED_DRAWS)
    codes = sum(op.codes for op in apart)
    return {"agreement/onednn": sum(op.share_equal * op.codes for op in apart) / max(1, codes)}
