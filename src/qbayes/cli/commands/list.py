"""``qbayes list``: what is registered, with options and their defaults."""

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from typer import Argument

from qbayes.cli.console import check_choice, out, plain_table, print_json
from qbayes.cli.options import AsJson

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


_READERS: dict[str, Callable[[], dict[str, Any]]] = {}


def _reader(read: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """What a registry holds, by the function's name without its underscore."""
    _READERS[read.__name__.removeprefix("_")] = read
    return read


@_reader
def _methods() -> dict[str, Any]:
    from qbayes.methods import METHODS

    return {name: _method(METHODS[name]) for name in METHODS}


def _method(kind: type[Any]) -> dict[str, Any]:
    options = {field.name: _default(field) for field in dataclasses.fields(kind)}
    presets = {
        name: {"method": dict(preset.method), "budget": dict(preset.budget)}
        for name, preset in kind.all_presets().items()
    }
    summary = _first_sentence(sys.modules[kind.__module__].__doc__)
    return {"summary": summary, "options": options, "presets": presets}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@_reader
def _networks() -> dict[str, Any]:
    from qbayes.lab.study.spec.sections import network_options
    from qbayes.networks import NETWORKS

    return {
        name: {
            "summary": _first_sentence(sys.modules[NETWORKS[name].__module__].__doc__),
            "options": {key: parameter.default for key, parameter in network_options(name).items()},
        }
        for name in NETWORKS
    }


@_reader
def _tasks() -> dict[str, Any]:
    from qbayes.tasks import DATASETS

    members = {name: DATASETS[name] for name in DATASETS}
    return {
        name: {"summary": dataset.summary, "kind": dataset.kind, "options": dataset.options()}
        for name, dataset in members.items()
    }


@_reader
def _metrics() -> dict[str, Any]:
    from qbayes.metrics import METRICS

    return {
        name: {"summary": shown.label, "unit": shown.unit, "better": shown.better}
        for name, shown in METRICS.items()
    }


@_reader
def _quantizers() -> dict[str, Any]:
    from qbayes.quant.observers import QUANTIZERS

    return {name: {"summary": _first_sentence(QUANTIZERS[name].__doc__)} for name in QUANTIZERS}


@_reader
def _backends() -> dict[str, Any]:
    from qbayes.integer.backends.base import BACKENDS

    return {
        name: {
            "summary": _first_sentence(BACKENDS[name].__doc__),
            "tolerance": dataclasses.asdict(BACKENDS[name].tolerance),
        }
        for name in BACKENDS
    }


@_reader
def _targets() -> dict[str, Any]:
    from qbayes.export.base import TARGETS

    return {name: {"summary": TARGETS[name].summary} for name in TARGETS}


@_reader
def _engines() -> dict[str, Any]:
    from qbayes.lab.bench.engines.base import ENGINES

    return {
        name: {"summary": ENGINES[name].title, "by_default": ENGINES[name].by_default} for name in ENGINES
    }


@_reader
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


REGISTRIES = tuple(_READERS)


def list_registries(
    registry: Annotated[str | None, Argument(help=f"{', '.join(REGISTRIES)}; by default all.")] = None,
    as_json: AsJson = False,
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


def _first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, without its equation and its reference in brackets."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    sentence = re.sub(r", ``[^`]*``", "", paragraph.split(". ")[0])
    return sentence.partition(" (")[0].rstrip(".:")


def _print_registry(title: str, members: Mapping[str, Mapping[str, Any]]) -> None:
    console = out()
    if title == "metrics":
        rows = [(name, one["summary"], one["unit"], one["better"]) for name, one in members.items()]
        console.print(plain_table(("name", "what", "unit", "better"), rows, title=title))
        return
    if title == "options":
        for kind, member in members.items():
            rows = [
                (name, one["type"], _spell(one["default"]), one["summary"])
                for name, one in member["options"].items()
            ]
            console.print(plain_table(("name", "type", "without a recipe", "what"), rows, title=kind))
        console.print(f"  {_HOW[title]}\n")
        return
    console.print(f"{title}\n", style="bold")
    width = max(14, *(len(name) for name in members))
    for name, member in members.items():
        console.print(f"  {name:{width}} {member['summary']}")
        if "options" in member:
            options = ", ".join(f"{key}={_spell(value)}" for key, value in member["options"].items())
            # wrapped by rich, under the summary.
            console.print(_indent(options or "no options"), style="dim", soft_wrap=False)
    console.print(f"\n  {_HOW[title]}\n")


def _indent(text: str) -> Any:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(text, overflow="fold"), (0, 0, 0, 17))


def _spell(value: object) -> str:
    """A default as it would be given on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else str(list(value) if isinstance(value, tuple) else value)
