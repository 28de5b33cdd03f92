"""A network made for a task: its inputs and outputs are the task's."""

from typing import Any

from torch import nn

from qbayes.networks import build_network
from qbayes.tasks import Task


def network(name: str, task: Task, **options: Any) -> nn.Module:
    """One of our networks, or ``package.module:factory``, made for a task: ``qb.network("lenet", task)``."""
    return build_network(name, task.signature.input_shape, outputs_of(task), task.kind, **options)


def outputs_of(task: Task) -> tuple[int, ...]:
    """The number of classes, or the shape of the targets."""
    likelihood = task.signature.likelihood.to_json()
    return (likelihood["classes"],) if task.kind == "classification" else tuple(likelihood["shape"])
