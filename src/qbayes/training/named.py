"""Networks and methods by name, as the command line and TOML write them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from qbayes.errors import BadInput
from qbayes.methods import METHODS, Method, make_method
from qbayes.tasks import Task
from qbayes.training.networks import network

NetworkLike = nn.Module | Callable[[], nn.Module] | str | Mapping[str, Any]
MethodLike = Method | str | Mapping[str, Any]


def resolve_network(given: NetworkLike, task: Task) -> nn.Module | Callable[[], nn.Module]:
    """A network that was given by name, as a function that makes it for the task; others as they are.

    Args:
        given: ``"lenet"``, or a table with the name and options: ``{"name": "lenet", "style": "relu"}``.
        task: Says the inputs and outputs.
    """
    if not isinstance(given, str | Mapping):
        return given
    name, options = split_name(given, "network", "lenet")
    return lambda: network(name, task, **options)


def resolve_method(given: MethodLike, task: Task) -> Method:
    """A method that was given by name, as its preset has it for the task; others as they are.

    Args:
        given: ``"mcd"``, or a table with the name and options: ``{"name": "mcd", "rate": 0.2}``. The key
            ``preset`` chooses another preset than the default's.
        task: Its name and kind choose the values of the preset.
    """
    if not isinstance(given, str | Mapping):
        return given
    name, options = split_name(given, "method", "mcd")
    preset = METHODS[name].preset(str(options.pop("preset", "default")), task.name, task.kind)
    return make_method(name, **{**preset.method, **options})


def split_name(given: str | Mapping[str, Any], what: str, example: str) -> tuple[str, dict[str, Any]]:
    """The name in a table, and its other keys; a string alone is a name."""
    if isinstance(given, str):
        return given, {}
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str) or not name:
        raise BadInput(f"{what} must have a name", f"name = {name!r}", f'for example name = "{example}"')
    return name, options
