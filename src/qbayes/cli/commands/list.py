"""``qbayes list``: what is registered, with options and their defaults."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from qbayes.cli.console import check_choice, out, print_json

REGISTRIES = (
    "methods",
    "networks",
    "tasks",
    "metrics",
    "quantizers",
    "backends",
    "targets",
    "engines",
    "options",
)
# how an option, or the member itself, is named on the command line.
_HOW = {
    "methods": "set an option with: qbayes fit … --set key=value",
    "networks": "set an option with: qbayes fit … --network-set key=value",
    "tasks": "set an option with: qbayes fit … --task-set key=value",
    "quantizers": "choose one with: qbayes quantize … --set weight_range=name --set activation_range=name",
    "backends": "choose one with: qbayes evaluate model.qbayes --backend name",
    "engines": "choose some with: qbayes bench --engines name,name",
    "targets": "choose one with: qbayes export --target name model.qbayes FILE",
    "options": "set one with: qbayes quantize … --name value; fit has those of Budget. "
    "In a study they stand under [run.quantize] and [run.training]",
}


def list_registries(
    registry: Annotated[str | None, typer.Argument(help=f"{', '.join(REGISTRIES)}; by default all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List methods, networks, tasks, metrics, range quantisers, backends, targets, engines and options.

    \b
    Examples:
      qbayes list
      qbayes list methods
    """
    chosen = REGISTRIES if registry is None else (check_choice("the registry", registry, REGISTRIES),)
    found = {name: _READERS[name]() for name in chosen}
    if as_json:
        print_json(found)
        return
    for name, members in found.items():
        _print_registry(name, members)


def _methods() -> dict[str, Any]:
    from qbayes.methods import METHODS

    return {name: _method(METHODS[name]) for name in METHODS}


def _method(kind: type[Any]) -> dict[str, Any]:
    options = {field.name: _default(field) for field in dataclasses.fields(kind)}
    presets = {
        name: {"method": dict(preset.method), "budget": dict(preset.budget)}
        for name, preset in kind.all_presets().items()
    }
    return {
        "summary": _first_sentence(sys.modules[kind.__module__].__doc__),
        "options": options,
        "presets": presets,
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _networks() -> dict[str, Any]:
    from qbayes.networks import NETWORKS

    given = ("input_shape", "outputs", "kind")
    found: dict[str, Any] = {}
    for name in NETWORKS:
        factory = NETWORKS[name]
        parameters = inspect.signature(factory).parameters.values()
        options = {p.name: p.default for p in parameters if p.name not in given}
        found[name] = {
            "summary": _first_sentence(sys.modules[factory.__module__].__doc__),
            "options": options,
        }
    return found


def _tasks() -> dict[str, Any]:
    from qbayes.tasks import DATASETS

    return {
        name: {
            "summary": DATASETS[name].summary,
            "kind": DATASETS[name].kind,
            "options": DATASETS[name].options(),
        }
        for name in DATASETS
    }


def _metrics() -> dict[str, Any]:
    from qbayes.metrics import METRICS

    return {
        name: {"summary": shown.label, "unit": shown.unit, "better": shown.better}
        for name, shown in METRICS.items()
    }


def _quantizers() -> dict[str, Any]:
    from qbayes.quant.observers import QUANTIZERS

    return {name: {"summary": _first_sentence(QUANTIZERS[name].__doc__)} for name in QUANTIZERS}


def _backends() -> dict[str, Any]:
    from qbayes.integer.backends.base import BACKENDS

    return {name: _backend(BACKENDS[name]) for name in BACKENDS}


def _backend(kind: type[Any]) -> dict[str, Any]:
    tolerance = dataclasses.asdict(kind.tolerance)
    return {"summary": _first_sentence(kind.__doc__), "tolerance": tolerance}


def _targets() -> dict[str, Any]:
    from qbayes.export.base import TARGETS

    return {name: {"summary": TARGETS[name].summary} for name in TARGETS}


def _engines() -> dict[str, Any]:
    from qbayes.lab.bench.engines.base import ENGINES

    return {
        name: {"summary": ENGINES[name].title, "by_default": ENGINES[name].by_default} for name in ENGINES
    }


def _options() -> dict[str, Any]:
    from qbayes.quant.finetune.fine_tuning import FineTuning
    from qbayes.training.budget import Budget

    return {kind.__name__: {"options": options_table(kind)} for kind in (FineTuning, Budget)}


def options_table(kind: type) -> dict[str, dict[str, Any]]:
    """The options of a dataclass: what each is for, its type, and its value where no recipe has one."""
    from qbayes.options import options_of, type_of

    return {
        name: {"summary": one.help, "type": type_of(kind, name).__name__, "default": one.fallback}
        for name, one in options_of(kind).items()
    }


_READERS = {
    "methods": _methods,
    "networks": _networks,
    "tasks": _tasks,
    "metrics": _metrics,
    "quantizers": _quantizers,
    "backends": _backends,
    "targets": _targets,
    "engines": _engines,
    "options": _options,
}


def _first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, without its equation and its reference in brackets."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    sentence = re.sub(r", ``[^`]*``", "", paragraph.split(". ")[0])
    return sentence.partition(" (")[0].rstrip(".:")


def _print_registry(title: str, members: Mapping[str, Mapping[str, Any]]) -> None:
    from rich import box
    from rich.table import Table

    console = out()

    def show(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        table = Table(
            title=heading, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
        )
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        console.print(table)

    if title == "metrics":
        rows = [(name, one["summary"], one["unit"], one["better"]) for name, one in members.items()]
        show(title, ("name", "what", "unit", "better"), rows)
        return
    if title == "options":
        for kind, member in members.items():
            rows = [
                (name, one["type"], _written(one["default"]), one["summary"])
                for name, one in member["options"].items()
            ]
            show(kind, ("name", "type", "without a recipe", "what"), rows)
        console.print(f"  {_HOW[title]}\n")
        return
    console.print(f"{title}\n", style="bold")
    width = max(14, *(len(name) for name in members))
    for name, member in members.items():
        console.print(f"  {name:{width}} {member['summary']}")
        if "options" in member:
            options = ", ".join(f"{key}={_written(value)}" for key, value in member["options"].items())
            # wrapped by rich, under the summary.
            console.print(_indented(options or "no options"), style="dim", soft_wrap=False)
    console.print(f"\n  {_HOW[title]}\n")


def _indented(text: str) -> Any:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, overflow="fold"), (0, 0, 0, 17))


def _written(value: object) -> str:
    """A default as it would be given on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else str(list(value) if isinstance(value, tuple) else value)
