"""Presets: a method's options and a budget, for one kind of task or one data set.

A method may carry presets of its own, under ``default/…``. Others are files in ``presets/``, found by their
name: ``presets/paper.toml`` is ``--preset paper``. A file has a table for each method and task that it knows,
``[mcd.uci]``, and says nothing of other methods.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

DEFAULT = "default"
_SUFFIX = ".toml"


@dataclass(frozen=True)
class Preset:
    """A method's options and its training budget for one kind of task.

    Attributes:
        method: Options of the method, by name.
        budget: Options of ``Budget``, by name.
        start: The method whose trained network the budget goes on from; without one the budget is too short.
    """

    method: Mapping[str, Any] = field(default_factory=dict[str, Any])
    budget: Mapping[str, Any] = field(default_factory=dict[str, Any])
    start: str = ""


@functools.cache
def preset_names() -> tuple[str, ...]:
    """``default``, and the names of the files."""
    found = (one.name for one in resources.files("qbayes.methods").joinpath("presets").iterdir())
    return (DEFAULT, *sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)))


@functools.cache
def presets_of(method: str) -> Mapping[str, Preset]:
    """What the files have for a method, by ``PRESET/TASK``."""
    found: dict[str, Preset] = {}
    for name in preset_names():
        if name != DEFAULT:
            tables = _read(name).get(method, {})
            found |= {f"{name}/{task}": Preset(**values) for task, values in tables.items()}
    return found


@functools.cache
def _read(name: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    file = resources.files("qbayes.methods").joinpath("presets", f"{name}{_SUFFIX}")
    return tomllib.loads(file.read_text(encoding="utf-8"))
