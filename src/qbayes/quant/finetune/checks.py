"""Checks of what ``quantize`` and ``fine_tune`` are asked for: what belongs together."""

from qbayes.errors import BadInput
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature, Standardize
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.precision import Precision
from qbayes.tasks import Task

_SAME_SCALE = 1e-3


def check_parts(posterior: NetworkPosterior, task: Task, precision: Precision, tuning: FineTuning) -> None:
    """Raise unless the float posterior, the task, the precision and its fine-tuning belong together."""
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
            'call qb.quantize(posterior, task, "W8A8")',
        )
    if not isinstance(tuning, FineTuning):
        raise BadInput(
            "how quantize trains must be a FineTuning",
            type(tuning).__name__,
            "call qb.quantize(posterior, task, precision, qb.FineTuning(epochs=3))",
        )
    _check_signature(posterior.signature, task)


def check_rows(tuning: FineTuning, task: Task) -> None:
    """Raise where the best epoch is to be kept and nothing says which one is."""
    if tuning.keep == "best" and "validation" not in task.splits:
        raise BadInput(
            "choosing the best epoch needs validation rows",
            f"'{task.name}' has none",
            "load the task with validation=0.1, or keep the last epoch",
        )


def check_control(precision: Precision, epochs: int) -> None:
    """Raise where a float network cannot have the fine-tuning that belongs to a precision."""
    check_keeps(precision)
    if epochs < 1:
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
