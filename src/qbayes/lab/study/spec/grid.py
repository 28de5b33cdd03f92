"""What varies: axes, and the runs that they span.

An axis names a key of the run (``seed``, ``method.rate``), a whole section (``precision``), or several
sections joined by ``+`` that vary together. Its values are a list. In a table inside that list, a list stands
for all its values::

    precision = ["float", {weight = 8, activation = [3, 4, 5, 6, 7]}, {weight = [3, 4, 5, 6], activation = 7}]

is the float run and nine others, and no point is written by hand. Sections that vary together may be joined
once more inside a table, for what several of its rows share::

    "method + precision + quantise" = [
      {method = "mcd", "precision + quantise" = [{precision = "W8A8", quantise = {epochs = 1}}, …]},
    ]
"""

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.errors import BadInput, nearest
from qbayes.lab.study.spec.sections import (
    NAMED,
    SECTIONS,
    check_section,
    is_control,
    label_of,
    network_options,
)
from qbayes.networks import NETWORKS

# keys of which one value is a list itself: there, a list of lists varies.
_LISTS: Mapping[str, frozenset[str]] = {
    "precision": frozenset({"overrides"}),
    "method": frozenset({"rates"}),
    "task": frozenset({"labels", "input_range"}),
}
_JOINED = "+"
# more take longer to plan than anybody waits; the largest study that comes with qbayes has 13,000.
MOST_RUNS = 100_000
_MOST_AXES = 20
_MANY = 10**18

# what a value is called on its axis, and what it puts into the run.
_Choice = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Axis:
    """What one axis may be: its path, and for each value what it is called and what it puts into the run.

    With ``key`` that is one key of a section, and else whole sections. It is called by the keys that vary:
    ``{"method": "mcd", "method.rate": 0.1}``.
    """

    path: str
    choices: tuple[_Choice, ...]
    key: str = ""


@dataclass(frozen=True)
class Point:
    """One run as sections, and where it lies on each axis."""

    run: Mapping[str, Any]
    place: Mapping[str, Any]


def read_axes(given: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[Axis, ...]:
    """The axes as written under ``[axes]``; every value is checked in the run it makes."""
    written = list(_flatten(given))
    # before a list is made of any of them.
    _check_count(len(written), math.prod(max(1, _count(path, values)) for path, values in written))
    axes: list[Axis] = []
    for path, values in written:
        try:
            axes.append(_axis(path, values, run))
        except BadInput as error:
            raise BadInput(f"[axes] {path}: {error.must}", error.got, error.do) from error
    _check_apart(axes)
    return tuple(axes)


def _flatten(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """``method.rate = […]`` is a table in a table to TOML."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _check_count(axes: int, spanned: int) -> None:
    if axes > _MOST_AXES:
        raise BadInput(
            f"[axes] must have at most {_MOST_AXES} axes", f"{axes}", "put what does not vary under [run]"
        )
    if spanned > MOST_RUNS:
        raise BadInput(
            f"[axes] must span at most {MOST_RUNS:,} runs",
            f"{spanned:,}" if spanned < _MANY else "more than anybody can count",
            "leave values out, or make several studies of them",
        )


def _count(path: str, values: Any) -> int:
    """How many choices the values of an axis stand for."""
    return sum(_stands_for(path, value) for value in values) if isinstance(values, list) else 1


def _stands_for(path: str, value: Any) -> int:
    if not isinstance(value, Mapping):
        return 1
    if _JOINED not in path:
        return math.prod(len(_options(path, key, value)) for key in value)
    return math.prod(sum(_stands_for(part, one) for one in _as_list(held)) for part, held in value.items())


def _axis(path: str, values: Any, run: Mapping[str, Any]) -> Axis:
    if not isinstance(values, list) or not _count(path, values):
        raise BadInput("an axis must be a list of values", f"{values!r}", "for example seed = [0, 1, 2]")
    sections = _parts(path)
    if len(sections) > 1:
        return Axis(path, _name_choices([one for value in values for one in _join(sections, value, run)]))
    section, _, key = path.partition(".")
    if section not in SECTIONS:
        raise BadInput("an axis must name a key of [run]", f"'{path}'", nearest(section, SECTIONS))
    if key:
        _check_key(section, key, run)
        for value in values:
            _change(run, section, {key: value})
        return Axis(path, tuple(({path: _plain(value)}, {section: value}) for value in values), key)
    expanded = [one for value in values for one in _expand(section, value)]
    return Axis(path, _name_choices([({section: one}, _change(run, section, one)) for one in expanded]))


def _check_key(section: str, key: str, run: Mapping[str, Any]) -> None:
    """The key must be one that the section may hold: its values are checked with the rest."""
    held = run[section]
    if isinstance(held, str) and section == "precision":
        raise BadInput(
            f"an axis over precision.{key} needs bits in [run]",
            f"precision = '{held}'",
            "write [run.precision] with weight and activation, or vary precision itself",
        )
    if not isinstance(held, str | Mapping):
        raise BadInput(f"{section} must have keys to vary one", f"{section} = {held!r}", f"vary {section}")


def _join(sections: list[str], value: Any, run: Mapping[str, Any]) -> Iterator[_Choice]:
    """Sections that vary together."""
    unknown = [section for section in sections if section not in SECTIONS]
    if unknown:
        raise BadInput(
            "an axis must name sections of [run]", f"'{unknown[0]}'", nearest(unknown[0], SECTIONS)
        )
    for given in _together(sections, value):
        changed: dict[str, Any] = {}
        for section, one in given.items():
            changed |= _change(run, section, one)
        yield given, changed


def _together(sections: list[str], value: Any) -> Iterator[dict[str, Any]]:
    """What each section is, in every choice that a table stands for; a list stands for all its values."""
    named = [part for key in value for part in _parts(key)] if isinstance(value, Mapping) else []
    if sorted(named) != sorted(sections):
        raise BadInput(
            f"each value must be a table of {' and '.join(sections)}",
            f"{sorted(value) if isinstance(value, Mapping) else value!r}",
            "name each of these sections once in every value",
        )
    options: list[list[dict[str, Any]]] = []
    for key in sorted(value, key=lambda key: sections.index(_parts(key)[0])):
        held = _as_list(value[key])
        if len(parts := _parts(key)) > 1:
            options.append([one for table in held for one in _together(parts, table)])
        else:
            options.append([{parts[0]: one} for each in held for one in _expand(parts[0], each)])
    for chosen in itertools.product(*options):
        merged = {section: one for part in chosen for section, one in part.items()}
        yield {section: merged[section] for section in sections}


def _parts(path: str) -> list[str]:
    return [part.strip() for part in path.split(_JOINED)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _expand(section: str, value: Any) -> Iterator[Any]:
    """The product over the lists in a table; a key whose values are lists varies over a list of lists."""
    if not isinstance(value, Mapping):
        yield value
        return
    for chosen in itertools.product(*(_options(section, key, value) for key in value)):
        yield dict(zip(value, chosen, strict=True))


def _options(section: str, key: str, value: Mapping[str, Any]) -> list[Any]:
    held = value[key]
    if not isinstance(held, list):
        return [held]
    if _holds_lists(section, key, value) and not (held and isinstance(held[0], list)):
        return [held]
    return held


def _holds_lists(section: str, key: str, value: Mapping[str, Any]) -> bool:
    name = value.get("name")
    if section == "network" and isinstance(name, str) and name in NETWORKS:
        parameter = network_options(name).get(key)
        return parameter is not None and isinstance(parameter.default, tuple | list)
    return key in _LISTS.get(section, frozenset())


def _change(run: Mapping[str, Any], section: str, value: Any) -> dict[str, Any]:
    """The section with ``value`` in it, checked: merged into a table, or in place of another name."""
    merged = _merge(run[section], section, value) if isinstance(value, Mapping) else value
    check_section(section, merged)
    return {section: merged}


def _merge(held: Any, section: str, value: Mapping[str, Any]) -> dict[str, Any]:
    base = _as_table(held) if section in NAMED else held
    if not isinstance(base, Mapping):
        return dict(value)
    renamed = section in NAMED and value.get("name", base.get("name")) != base.get("name")
    # the control has the bits of no layer: it takes the place of a precision, and the other way round.
    other = section == "precision" and is_control(value) != is_control(base)
    return dict(value) if renamed or other else {**base, **value}


def _name_choices(choices: list[_Choice]) -> tuple[_Choice, ...]:
    """Each choice by its name or bits, and by its other keys where those vary under one name.

    What a method always has, such as a budget of its own, is no place on an axis.
    """
    places = [_place(given) for given, _ in choices]
    values: dict[tuple[object, ...], set[str]] = defaultdict(set)
    paths = {path for place in places for path in place}
    for place, path in itertools.product(places, paths):
        values[path, *(place.get(name) for name in NAMED if "." in path)].add(json.dumps(place.get(path)))
    varies = {under[0] for under, seen in values.items() if len(seen) > 1}
    kept = [{path: value for path, value in place.items() if path in varies} for place in places]
    return tuple((place, sections) for place, (_, sections) in zip(kept, choices, strict=True))


def _place(given: Mapping[str, Any]) -> dict[str, Any]:
    place: dict[str, Any] = {}
    for section, value in given.items():
        if not isinstance(value, Mapping):
            place[section] = _plain(value)
            continue
        rest = dict(value)
        if section in NAMED and "name" in rest:
            place[section] = rest.pop("name")
        if section == "precision":
            place[section] = label_of(value)
            rest = {key: one for key, one in rest.items() if key not in ("weight", "activation")}
        place |= {f"{section}.{key}": _plain(one) for key, one in rest.items()}
    return place


def _check_apart(axes: list[Axis]) -> None:
    """Two axes must not set the same key: the later one would undo the earlier."""
    seen: dict[str, str] = {}
    for axis in axes:
        for path in _parts(axis.path):
            for other, whose in seen.items():
                if path == other or path.startswith(f"{other}.") or other.startswith(f"{path}."):
                    raise BadInput(
                        "[axes] must not vary the same thing twice",
                        f"'{whose}' and '{axis.path}'",
                        "make one axis of them",
                    )
            seen[path] = axis.path


def points(run: Mapping[str, Any], axes: tuple[Axis, ...]) -> Iterator[Point]:
    for chosen in itertools.product(*(axis.choices for axis in axes)):
        merged = dict(run)
        for axis, (_, sections) in zip(axes, chosen, strict=True):
            for section, value in sections.items():
                merged[section] = {**_as_table(merged[section]), axis.key: value} if axis.key else value
        yield Point(merged, {path: value for place, _ in chosen for path, value in place.items()})


def _as_table(section: Any) -> Mapping[str, Any]:
    return {"name": section} if isinstance(section, str) else section


def _plain(value: Any) -> Any:
    plain = isinstance(value, str | int | float | bool)
    return value if plain else json.dumps(value, sort_keys=True, ensure_ascii=False)
