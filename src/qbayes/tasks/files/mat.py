"""Numeric arrays out of a MATLAB level-5 file, every length checked before it is used.

The format: 128 bytes of header, then elements, each a tag (type, number of bytes), its data, and padding
to 8 bytes. A matrix element holds flags, dimensions, name and numbers; it may be deflated as a whole.
General readers were built for trusted files: ``scipy.io.loadmat`` (1.17) takes 8 GB for a file of 184 bytes
that declares a cell array, and can bring the interpreter down on damaged ones.
"""

import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qbayes.errors import BadFile

_MATRIX, _DEFLATED = 14, 15
# how numbers are stored, and what class of array they belong to (the format's miXXX and mxXXX codes).
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800
_MOST_BYTES = 2**30


@dataclass(frozen=True)
class _Element:
    kind: int
    data: memoryview


class _Damaged(Exception):
    """The bytes do not follow the format."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The real numeric arrays of the file by name; others are passed over."""
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror or error}", "check its rights") from error
    try:
        return _arrays(content)
    except (_Damaged, zlib.error) as error:
        raise BadFile(
            f"{path} must be a sound MATLAB level-5 file", f"{error}", "move it away and fetch it again"
        ) from error


def _arrays(content: memoryview) -> dict[str, np.ndarray]:
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
    if order is None or struct.unpack(order + "H", content[124:126])[0] != 0x0100:
        raise _Damaged("its header is not that of a level-5 file")
    arrays: dict[str, np.ndarray] = {}
    rest = content[128:]
    while len(rest):
        element, rest = _take(rest, order, padded=False)
        if element.kind == _DEFLATED:
            element, _ = _take(_inflate(element.data), order)
        if element.kind == _MATRIX:
            arrays.update(_array(element.data, order))
    return arrays


def _take(data: memoryview, order: str, padded: bool = True) -> tuple[_Element, memoryview]:
    """The first element and what follows it."""
    if len(data) < 8:
        raise _Damaged("it ends within a tag")
    kind, size = struct.unpack(order + "II", data[:8])
    if kind >> 16:  # the short form: size and type share four bytes, the data follows in the other four
        kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, 8
    else:
        start, end = 8, 8 + size + (-size % 8 if padded else 0)
    # the last element's padding may be left out.
    if start + size > len(data) or (start == 4 and size > 4):
        raise _Damaged(f"an element of {size} bytes, of which {max(0, len(data) - start)} are there")
    return _Element(kind, data[start : start + size]), data[end:]


def _inflate(data: memoryview) -> memoryview:
    stream = zlib.decompressobj()
    content = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise _Damaged("a deflated part is cut short or far too large")
    return memoryview(content)


def _array(data: memoryview, order: str) -> dict[str, np.ndarray]:
    flags, data = _take(data, order)
    shape, data = _take(data, order)
    name, data = _take(data, order)
    if len(flags.data) != 8 or len(shape.data) < 8 or len(shape.data) % 4:
        raise _Damaged("an array without class or dimensions")
    word = struct.unpack(order + "I", flags.data[:4])[0]
    if word & 0xFF not in _CLASSES or word & _COMPLEX:
        return {}
    numbers, _ = _take(data, order)
    if numbers.kind not in _STORED:
        raise _Damaged(f"numbers of the unknown type {numbers.kind}")
    stored = np.dtype(order + _STORED[numbers.kind])
    dimensions = struct.unpack(f"{order}{len(shape.data) // 4}i", shape.data)
    if min(dimensions) < 0 or math.prod(dimensions) * stored.itemsize != len(numbers.data):
        raise _Damaged(f"dimensions {dimensions}, but {len(numbers.data)} bytes of {stored}")
    array = np.frombuffer(numbers.data, stored).reshape(dimensions, order="F")
    return {bytes(name.data).decode("latin-1"): array.astype(_CLASSES[word & 0xFF], copy=False)}
