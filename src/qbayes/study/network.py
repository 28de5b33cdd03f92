"""The network of a section, made for a task."""

from typing import Any

from torch import nn

from qbayes.study.sections import named
from qbayes.tasks import Task
from qbayes.training.networks import network


def make_network(section: Any, task: Task) -> nn.Module:
    name, options = named(section, "network", "lenet")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    return network(name, task, **plain)
