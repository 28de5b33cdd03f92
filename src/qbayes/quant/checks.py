"""Checks of what ``quantize`` and ``fine_tune`` are asked for: what belongs together."""

from qbayes.errors import BadInput, unknown_name
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature
from qbayes.posterior.transform import Standardize
from qbayes.quant.precision import Precision
from qbayes.tasks import Task
from qbayes.training.budget import Budget

KEEPS = ("last", "best")
_SAME_SCALE = 1e-3


def check_asked(posterior: NetworkPosterior, task: Task, precision: Precision, keep: str) -> None:
    """Raise unless the float posterior, the task and the precision belong together."""
    if not isinstance(posterior, NetworkPosterior) or posterior.quantised is not None:
        raise BadInput(
            "a float posterior is needed to quantise",
            f"one at {Precision.from_json(posterior.quantised).label}"
            if isinstance(posterior, NetworkPosterior)
            else type(posterior).__name__,
            "give what qb.fit made, or load that posterior",
        )
    if not isinstance(task, Task) or not isinstance(precision, Precision):
        raise BadInput(
            "quantize takes a posterior, a Task and a Precision",
            f"{type(task).__name__} and {type(precision).__name__}",
            "call qb.quantize(posterior, task, qb.Precision(weight=8, activation=8))",
        )
    if keep not in KEEPS:
        raise unknown_name("choice of the epoch to keep", str(keep), KEEPS)
    if keep == "best" and "validation" not in task.splits:
        raise BadInput(
            "choosing the best epoch needs validation rows",
            f"'{task.name}' has none",
            "load the task with validation=0.1, or keep the last epoch",
        )
    _check_signature(posterior.signature, task)


def check_control(precision: Precision, budget: Budget) -> None:
    """Raise where a float network cannot have the fine-tuning that belongs to a precision."""
    check_keeps(precision)
    if budget.epochs < 1:
        raise BadInput(
            "fine-tuning in float needs an epoch",
            "epochs=0, which would leave the float posterior as it is",
            "give the epochs of the quantised posteriors, or compare with the float posterior",
        )


def check_keeps(precision: Precision) -> None:
    """Raise where the fine-tuning of a precision does not leave the deviations as they are."""
    if precision.gaussian != "keep":
        raise BadInput(
            "fine-tuning in float is that of weights which keep their noise",
            f"gaussian='{precision.gaussian}', whose fine-tuning trains the deviations too",
            "give gaussian='keep'",
        )


def _check_signature(signature: Signature, task: Task) -> None:
    if task.signature.input_shape != signature.input_shape:
        raise BadInput(
            "the task must have the posterior's inputs",
            f"{task.signature.input_shape} instead of {signature.input_shape}",
            f"quantise on '{signature.task}'",
        )
    if task.signature.likelihood != signature.likelihood:
        raise BadInput(
            "the task must have the posterior's kind and number of outputs",
            f"'{task.name}' asks for {task.signature.likelihood.to_json()}",
            f"quantise on '{signature.task}'",
        )
    pairs = ((signature.transform, task.signature.transform), (signature.target, task.signature.target))
    if not all(_same_scale(one, other) for one, other in pairs):
        raise BadInput(
            "the task must scale inputs and targets as in the posterior's training",
            f"other means or deviations in '{task.name}': other training rows",
            "load the task with the same rows and validation share for fit and quantize",
        )


def _same_scale(one: Standardize | None, other: Standardize | None) -> bool:
    """Whether two scales agree to a thousandth of a deviation."""
    if one is None or other is None:
        return one is other
    shifted = ((one.mean - other.mean).abs() <= _SAME_SCALE * one.std).all()
    return bool(shifted & ((one.std - other.std).abs() <= _SAME_SCALE * one.std).all())
