"""Options that several commands have, written once: plain ones, and those that a dataclass gives."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from qbayes.options import Option, options_of, type_of

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a float or quantised posterior, or a .qbayes file.")
]
TaskSet = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Option of the task: split=3.")]
Preset = Annotated[str, typer.Option(help="Recipe for the options that are not given: default or paper.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the data sets (else QBAYES_DATA).")]
OwnNetwork = Annotated[
    str | None, typer.Option(help="package.module:factory of a network of your own; it is imported.")
]
Device = Annotated[str, typer.Option(help="Device to run on: auto, cpu, cuda, …")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same bits.")]
NoiseSeed = Annotated[int, typer.Option(help="Key of the noise.")]
Draws = Annotated[int, typer.Option(help="Draws from the posterior.")]
BackendName = Annotated[
    str | None,
    typer.Option(
        help="On integers: auto, reference, onednn, triton, onnxruntime or openvino; quantised folders too."
    ),
]

Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in the folder.")]
OverwriteFolder = Annotated[bool, typer.Option("--overwrite", help="Replace a posterior in the folder.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace that file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, no summary.")]
Command = Callable[..., None]
# options that the user gave, by name.
Given = Mapping[str, Any]
NOTHING: Given = MappingProxyType({})


def given(**options: Any) -> dict[str, Any]:
    """Those options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


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
    return _in_place_of(parameter, known)


def with_flags_of_targets(parameter: str) -> Callable[[Command], Command]:
    """Give a command the options of all export targets.

    Args:
        parameter: The name of the command's parameter for those that the user gave.
    """
    from qbayes.export.base import flags

    known: dict[str, inspect.Parameter] = {}
    for name, by_target in flags().items():
        first = next(iter(by_target.values()))
        text = " ".join(f"{target}: {described.help}" for target, described in by_target.items())
        option = typer.Option(
            f"--{name.replace('_', '-')}", help=text, metavar=first.metavar, show_default=False
        )
        known[name] = _optional(name, first.kind, option)
    return _in_place_of(parameter, known)


def _in_place_of(parameter: str, known: Mapping[str, inspect.Parameter]) -> Callable[[Command], Command]:
    """Put these options in the place of one parameter, which gets those that were given."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            chosen = {name: value for name in known if (value := given.pop(name, None)) not in (None, [])}
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
    return _optional(name, plain, typer.Option(*names, help=text, show_default=False))


def _optional(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """A parameter of the command line that need not be given."""
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
