"""A network made for a task: its inputs and outputs are the task's."""

from typing import Any

from torch import nn

from qbayes.networks import build_network
from qbayes.tasks import Task


def network(name: str, task: Task, **options: Any) -> nn.Module:
    """A network made for a task, with fresh weights.

    Example:
        >>> import qbayes as qb
        >>> network = qb.network("mlp", qb.load_task("digits"), hidden=(50, 50))
        >>> network.architecture.outputs
        (10,)

    Args:
        name: One of our networks (``mlp``, ``lenet``, ``resnet8``, ``resnet18``), or a factory of one's own
            as ``package.module:factory``, which is imported.
        task: Its inputs and outputs are the network's.
        **options: Options of the network, such as ``hidden`` of ``mlp``.

    Returns:
        A module. Its ``architecture`` says how to build it again.

    Raises:
        BadInput: The name or an option is unknown, or the network cannot read the task's inputs.
    """
    return build_network(name, task.signature.input_shape, outputs_of(task), task.kind, **options)


def outputs_of(task: Task) -> tuple[int, ...]:
    """The number of classes, or the shape of the targets."""
    likelihood = task.signature.likelihood.to_json()
    return (likelihood["classes"],) if task.kind == "classification" else tuple(likelihood["shape"])
