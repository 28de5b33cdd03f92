"""What a file of weights holds, by its own header: names, shapes and types, before one number is read."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

from qbayes.errors import BadFile

# a tensor's shape and type.
Form = tuple[tuple[int, ...], torch.dtype]
_LENGTH = 8  # bytes that say how long the header is
_TYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class Damaged(BadFile):
    """What was written whole is so no longer, or is not there: it can be made again, and only that."""


def read_layout(path: Path) -> dict[str, Form]:
    """The tensors of a safetensors file, which must be as long as they ask for."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            text = _header(path, file, size)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise Damaged(
            f"{path} must be readable", f"{error.strerror}", "restore the file beside its JSON"
        ) from None
    except OSError as error:
        raise BadFile(
            f"{path} must be readable", f"{error.strerror}", "check its rights and the disk"
        ) from None
    found = {name: _form(path, name, entry) for name, entry in _entries(path, text).items()}
    wanted = _LENGTH + len(text) + sum(size_of(form) for form in found.values())
    if size != wanted:
        _refuse(path, f"{size} bytes instead of {wanted}")
    return found


def size_of(form: Form) -> int:
    """The bytes of a tensor."""
    shape, dtype = form
    return math.prod(shape) * dtype.itemsize


def _header(path: Path, file: BinaryIO, size: int) -> bytes:
    length = int.from_bytes(file.read(_LENGTH), "little")
    if not 2 <= length <= size - _LENGTH:
        _refuse(path, f"{size} bytes without a header")
    return file.read(length)


def _entries(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"a header that is no JSON: {error}")
    if not isinstance(found, dict):
        _refuse(path, f"a header that is a {type(found).__name__}")
    found.pop("__metadata__", None)
    return found


def _form(path: Path, name: str, entry: Any) -> Form:
    shape, kind = (entry.get("shape"), entry.get("dtype")) if isinstance(entry, dict) else (None, None)
    dtype = _TYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        _refuse(path, f"'{name}' of type {kind!r} and shape {shape!r}")
    return tuple(shape), dtype


def _refuse(path: Path, got: str) -> NoReturn:
    raise Damaged(f"{path} must be a safetensors file", got, "restore it from a copy, or refit")
