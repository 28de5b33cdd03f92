"""Options of commands that are derived from a dataclass: one option for each of its fields."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qbayes.options import Option, options_of, type_of

Command = Callable[..., None]
# options that the user gave, by name.
Given = Mapping[str, Any]
NOTHING: Given = MappingProxyType({})


def with_options_of(kind: type, parameter: str, **help: str) -> Callable[[Command], Command]:
    """Give a command the options of a dataclass.

    The command has one parameter for all of them, with those that the user gave. In its place the command
    line gets an option for each field.

    Example:
        >>> from qbayes.training.budget import Budget
        >>> @with_options_of(Budget, "budget")
        ... def train(budget: Given = NOTHING, seed: int = 0) -> None:
        ...     print(budget, seed)
        >>> train(epochs=3, clip=None, seed=1)
        {'epochs': 3} 1

    Args:
        kind: A dataclass with ``qbayes.options.option`` fields.
        parameter: The name of the command's parameter.
        help: Other texts for some of the options, by name.
    """
    known = {name: _parameter(kind, name, one, help.get(name)) for name, one in options_of(kind).items()}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {name: value for name in known if (value := given.pop(name, None)) is not None}
            command(**{parameter: chosen}, **given)

        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(command).parameters.values():
            own = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += known.values() if one.name == parameter else [own]
        # typer asks both; what functools.wraps left would lead it back to the command.
        del run.__wrapped__
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _parameter(kind: type, name: str, described: Option, help: str | None) -> inspect.Parameter:
    """One option of the command line; without a value it is for the recipe to decide."""
    flag, plain = name.replace("_", "-"), type_of(kind, name)
    choices = ", ".join(described.limit.choices)
    text = (help or described.help) + (f" One of {choices}." if choices else "")
    names = [f"--{flag}/--no-{flag}"] if plain is bool else [f"--{flag}"]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[plain | None, typer.Option(*names, help=text, show_default=False)],
    )
