"""A row of the results: what a run was, what it scored, what it costs, and by what it was scored.

Nothing in it depends on the clock. A row of a float run also says how spread its weights are: what a uniform
grid must cover, layer by layer.

The paper explains the fall of SGHMC at few weight bits by weights that are "more spread" than those of other
methods. How large weights are cannot be it, since the scale of a grid follows them; how far the largest one
stands out can. A grid of n bits over ``± max |w|`` has steps of ``2 max |w| / (2ⁿ − 1)``, and rounding to it
adds noise with the share

    rounding / rms(w) = spread / (√3 (2ⁿ − 1)),    spread = max |w| / rms(w),    rms(w) = √(mean w²)

so every doubling of the spread costs one bit. It is 1 for weights ± c, √3 for uniform ones, and about 4 for
ten thousand Gaussian ones.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.integer.compare import compare_ops
from qbayes.integer.posterior import ProgramPosterior
from qbayes.integer.program import Program
from qbayes.integer.structure.cost import cost
from qbayes.lab.study.plan.stages import answers_in_float, evaluate_values
from qbayes.lab.study.spec.sections import (
    CHOOSE,
    FLOAT,
    ROWS_OF,
    label_of,
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
from qbayes.posterior.sites import point_state
from qbayes.provenance import provenance
from qbayes.tasks import Task

SPREAD, DEVIATION = "spread/", "deviation/"
_RHO, _MEAN, _WEIGHT = "weight_rho", "weight_mean", "weight"
_DIGITS = 6  # the last ones hang on the order in which a device adds
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
    if answers_in_float(run):
        label, weight, activation, backend = label_of(run["precision"]), _FLOAT_BITS, _FLOAT_BITS, FLOAT
    else:
        precision, backend = precision_of(run["precision"]), values["backend"]
        label, weight, activation = precision.label, precision.weight, precision.activation
    trained = FLOAT if run["precision"] == FLOAT else training_of(run["quantize"], task)
    bits = {"precision": label, "weight": weight, "activation": activation}
    return {**shared, **bits, "training": trained, "backend": backend}


def make_row(
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


def weight_spread(posterior: NetworkPosterior) -> dict[str, float]:
    """``spread/LAYER`` and ``deviation/LAYER`` for every layer with a matrix of weights.

    Each member has a grid of its own, so ``spread`` is the mean over members of ``max |w| / rms(w)``; of
    Gaussian weights it is that of their means, which have a grid of their own too. ``deviation`` is that of
    a weight drawn from the posterior, over the layer, its members and the noise:
    ``√(mean(μ² + σ²) − mean(μ)²)`` with σ = 0 where there is no noise. A layer of zeros has no spread, and
    one with weights that are not finite has neither.
    """
    members = [_moments(network) for network in posterior.networks]
    found: dict[str, float] = {}
    for layer in members[0]:
        of_layer = torch.stack([moments[layer] for moments in members]).cpu()
        for name, number in ((SPREAD, _spread(of_layer)), (DEVIATION, _weight_deviation(of_layer))):
            if math.isfinite(number):
                found[f"{name}{layer}"] = float(f"{number:.{_DIGITS}g}")
    return found


def _spread(of_layer: Tensor) -> float:
    largest, _, square, _ = of_layer.unbind(-1)
    return (largest / square.sqrt()).mean().item()


def _weight_deviation(of_layer: Tensor) -> float:
    _, mean, square, variance = of_layer.mean(0)
    return (square + variance - mean.square()).clamp_min(0).sqrt().item()


def _moments(network: nn.Module) -> dict[str, Tensor]:
    """By layer: max |w|, and the means of w, of w² and of the noise's variance."""
    sigmas = _sigmas(network)
    found: dict[str, Tensor] = {}
    for layer, weights in _matrices(point_state(network, network.state_dict())).items():
        w = weights.double()
        variance = sigmas[layer].double().square().mean() if layer in sigmas else w.new_zeros(())
        found[layer] = torch.stack([w.abs().max(), w.mean(), w.square().mean(), variance])
    return found


def _sigmas(network: nn.Module) -> dict[str, Tensor]:
    """By layer, σ of its Gaussian weights: named as if it were their mean, whose name the network knows."""
    state = {
        name.removesuffix(_RHO) + _MEAN: F.softplus(value)
        for name, value in network.state_dict().items()
        if name.endswith(_RHO)
    }
    return _matrices(point_state(network, state))


def _matrices(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By layer; a network that is a single layer has no name for it."""
    return {
        name.removesuffix(_WEIGHT).removesuffix(".") or "(the network)": value
        for name, value in state.items()
        if name.rpartition(".")[2] == _WEIGHT and value.ndim > 1
    }
