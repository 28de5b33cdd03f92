"""Ops as JSON, and their codes as packed bits.

An op is a list of the fields of a frozen dataclass in their order, decoded by their declared types.

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

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadFile, BadInput

WIDEST = 32
_STREAM_BITS = 8
_CODES_AT_ONCE = 1 << 20  # in reading: wide ones take 8 bytes each on the way
_GROUP = 8  # codes: n bits each make exactly n bytes, which fit one 64-bit word


def bytes_packed(count: int, bits: int) -> int:
    """The bytes that ``count`` codes of ``bits`` bits take."""
    _check_width(bits)
    return (count * bits + 7) // 8 if bits <= _STREAM_BITS else count * ((bits + 7) // 8)


def code_range(bits: int, signed: bool) -> tuple[int, int]:
    """Least and greatest integer of ``bits`` bits: ``−2^(n−1) … 2^(n−1) − 1``, or ``0 … 2^n − 1``."""
    _check_width(bits)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def code_type(bits: int, signed: bool) -> torch.dtype:
    """The smallest type of torch that holds every code: what ``unpack`` answers with."""
    if bits <= 8:
        return torch.int8 if signed else torch.uint8
    if bits <= 16:
        return torch.int16 if signed else torch.int32
    return torch.int32 if signed or bits < WIDEST else torch.int64


def pack(codes: Tensor, bits: int, signed: bool) -> bytes:
    """The bytes of ``codes`` (integers of any type and shape), in their logical order."""
    low, high = code_range(bits, signed)
    flat = codes.detach().cpu().contiguous().flatten().numpy()
    if flat.dtype.kind not in "iu":
        raise BadInput("codes must be integers", f"{codes.dtype}", "round them, or quantise the tensor first")
    if flat.size and (flat.min() < low or flat.max() > high):
        raise BadInput(
            f"{'signed' if signed else 'unsigned'} codes of {bits} bits must lie in {low} … {high}",
            f"{flat.min()} … {flat.max()}",
            "clamp the codes, or store them with more bits",
        )
    return _pack_stream(flat, bits) if bits <= _STREAM_BITS else _pack_bytes(flat, bits)


def _pack_stream(flat: np.ndarray, bits: int) -> bytes:
    groups = -(-flat.size // _GROUP)
    # two's complement modulo 2^n: the cast wraps, the mask keeps the lower n bits.
    padded = np.zeros(groups * _GROUP, dtype=np.uint8)
    padded[: flat.size] = flat.astype(np.uint8) & np.uint8((1 << bits) - 1)
    words = np.zeros(groups, dtype="<u8")
    for place, column in enumerate(padded.reshape(groups, _GROUP).T):
        words |= column.astype(np.uint64) << np.uint64(place * bits)
    stream = words.view(np.uint8).reshape(groups, 8)[:, :bits]
    return stream.tobytes()[: bytes_packed(flat.size, bits)]


def _pack_bytes(flat: np.ndarray, bits: int) -> bytes:
    wide = flat.astype("<i8").view(np.uint8).reshape(-1, 8)
    return wide[:, : (bits + 7) // 8].tobytes()


def unpack(data: bytes | memoryview, count: int, bits: int, signed: bool) -> Tensor:
    """The ``count`` codes that ``pack`` wrote, as a vector of ``code_type(bits, signed)``."""
    if len(data) != bytes_packed(count, bits):
        raise BadFile(
            f"{count} codes of {bits} bits must take {bytes_packed(count, bits)} bytes",
            f"{len(data)}",
            "the file is damaged: restore or export it again",
        )
    codes, right = unpack_rows(np.frombuffer(data, dtype=np.uint8)[None], count, bits, signed)
    if not right.all():
        raise refuse_unused_bits()
    return codes[0]


def unpack_rows(packed: np.ndarray, count: int, bits: int, signed: bool) -> tuple[Tensor, np.ndarray]:
    """``count`` codes from each row of bytes, and which rows have nothing in the bits that carry no code."""
    _check_width(bits)
    codes = torch.empty((len(packed), count), dtype=code_type(bits, signed))
    right = np.empty(len(packed), dtype=bool)
    step = max(1, _CODES_AT_ONCE // max(count, 1))
    read = _unpack_stream if bits <= _STREAM_BITS else _unpack_bytes
    for start in range(0, len(packed), step):
        some = slice(start, start + step)
        found, right[some] = read(packed[some], count, bits, signed)
        codes[some] = torch.from_numpy(found)
    return codes, right


def _unpack_stream(packed: np.ndarray, count: int, bits: int, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    rows, groups = len(packed), -(-count // _GROUP)
    padded = np.zeros((rows, groups * bits), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    parts = np.zeros((rows * groups, 8), dtype=np.uint8)
    parts[:, :bits] = padded.reshape(-1, bits)
    words = parts.view("<u8")[:, 0]
    codes = np.empty((rows * groups, _GROUP), dtype=np.uint8)
    for place in range(_GROUP):
        codes[:, place] = (words >> np.uint64(place * bits)) & np.uint64((1 << bits) - 1)
    flat = codes.reshape(rows, -1)
    kept, right = flat[:, :count], (flat[:, count:] == 0).all(1)
    if not signed:
        return kept, right
    # the sign bit moved to bit 7 and back, arithmetically, copies it into the bits above.
    shift = 8 - bits
    return (kept << np.uint8(shift)).view(np.int8) >> np.int8(shift), right


def _unpack_bytes(packed: np.ndarray, count: int, bits: int, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    width = (bits + 7) // 8
    parts = np.zeros((len(packed) * count, 8), dtype=np.uint8)
    parts[:, :width] = packed.reshape(-1, width)
    shift = np.int64(64 - 8 * width)
    codes = parts.view("<i8")[:, 0].reshape(len(packed), count)
    codes = codes << shift >> shift if signed else codes
    low, high = code_range(bits, signed)
    return codes, (codes.clip(low, high) == codes).all(axis=1)


def refuse_unused_bits() -> BadFile:
    return BadFile(
        "bits that carry no code must be as packing leaves them",
        "others",
        "the file is damaged or was not written by qbayes: restore or export it again",
    )


def _check_width(bits: int) -> None:
    if not 1 <= bits <= WIDEST:
        raise BadInput(f"codes must have 1 to {WIDEST} bits", f"{bits}", "choose another width")


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
