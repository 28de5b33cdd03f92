"""Ops as JSON: a list of the fields of a frozen dataclass in their order, decoded by their declared types.

Decoding is strict: a bool is no number, 1.0 is no whole number, and nothing may be missing or too much. What
it accepts therefore encodes to the same JSON again.
"""

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from qbayes.errors import BadInput

T = TypeVar("T")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

# any count, size or offset of a sane program; far below what overflows in a product of two.
LARGEST_NUMBER = 1 << 32
LONGEST_TEXT = 1000


def encode(value: object) -> Json:
    """Dataclasses and tuples become lists; numbers, texts and None stay."""
    kind = type(value)
    if kind in _PLAIN:
        return typing.cast(Json, value)
    if isinstance(value, tuple):
        return [encode(part) for part in value]
    if dataclasses.is_dataclass(kind):
        return [encode(getattr(value, name)) for name in field_types(kind)]
    return typing.cast(Json, value)


def decode(kind: type[T], data: Json, where: str) -> T:
    """The value of type ``kind`` (a dataclass, or any type its fields may have) from JSON; else BadInput."""
    return _decode(kind, data, where)


@functools.cache
def field_types(kind: type[Any]) -> Mapping[str, Any]:
    """The fields of a dataclass with their types, in order."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def _decode(hint: Any, data: Json, where: str) -> Any:
    if hint is Any:
        return data
    if hint in _SCALARS:
        return _scalar(hint, data, where)
    origin, arguments = _parts(hint)
    if origin is Literal:
        allowed = arguments
        known = any(type(data) is type(choice) and data == choice for choice in allowed)
        return data if known else _refuse(where, f"one of {', '.join(map(repr, allowed))}", data)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in arguments if part is not type(None)]
        return None if data is None else _decode(inner[0], data, where)
    if origin in (tuple, list, dict):
        return _container(origin, arguments, data, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        named = field_types(hint)
        if not isinstance(data, list) or len(data) != len(named):
            return _refuse(where, f"a list of {', '.join(named)}", data)
        parts = zip(named.items(), data, strict=True)
        return hint(**{name: _decode(inner, part, f"{where}: {name}") for (name, inner), part in parts})
    raise TypeError(f"{where}: a field of type {hint} has no form in a file")


_PLAIN = frozenset({int, float, bool, str, type(None)})
_SCALARS = {int: "a whole number", float: "a finite real number", bool: "true or false", str: "a text"}


def _scalar(hint: type[Any], data: Json, where: str) -> Any:
    right = type(data) is hint
    if isinstance(data, int):
        right = right and abs(data) <= LARGEST_NUMBER
    elif isinstance(data, float):
        right = right and math.isfinite(data)
    elif isinstance(data, str):
        right = right and len(data) <= LONGEST_TEXT
    return data if right else _refuse(where, _SCALARS[hint], data)


def _container(origin: type[Any], parts: tuple[Any, ...], data: Json, where: str) -> Any:
    if origin is dict:
        if not isinstance(data, dict):
            return _refuse(where, "a JSON object", data)
        return {name: _decode(parts[1], item, f"{where}: {name!r:.80}") for name, item in data.items()}
    if not isinstance(data, list):
        return _refuse(where, "a list", data)
    if origin is list or parts[-1:] == (Ellipsis,):
        return origin(_decode(parts[0], item, where) for item in data)
    if len(parts) != len(data):
        return _refuse(where, f"a list of {len(parts)}", data)
    return tuple(_decode(part, item, where) for part, item in zip(parts, data, strict=True))


def _refuse(where: str, must: str, data: Json) -> typing.NoReturn:
    shown = repr(data)
    raise BadInput(
        f"{where} must be {must}",
        shown if len(shown) < 80 else f"{shown[:80]} …",
        "check the program's source",
    )
