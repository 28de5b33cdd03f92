"""The idx format of MNIST and its like: a big-endian header, then unsigned bytes, gzipped.

Header: two zero bytes, the type (8: unsigned byte), the number of axes, then each length in four bytes.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadFile

_UNSIGNED_BYTE = 8
_MOST_ROWS = 10**6  # a header that says more is not one of these files


def read_idx(path: Path, inner: tuple[int, ...]) -> Tensor:
    """The uint8 array of a gzipped idx file whose rows must have the shape ``inner``."""
    try:
        with gzip.open(path, "rb") as file:
            shape = _read_shape(path, file.read(4 + 4 * (1 + len(inner))), inner)
            size = math.prod(shape)
            # one byte more than there should be: reading to the end also makes gzip check its CRC.
            data = file.read(size + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(path, f"the gzip stream is broken: {error}") from error
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror or error}", "check its rights") from error
    if len(data) != size:
        less_or_more = "more" if len(data) > size else f"{len(data)} bytes"
        raise _damaged(path, f"its header says {shape}, {size} bytes; there are {less_or_more}")
    return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(shape).copy())


def read_idx_images(path: Path) -> Tensor:
    """``(rows, 1, 28, 28)``."""
    return read_idx(path, (28, 28))[:, None]


def read_idx_labels(path: Path) -> Tensor:
    labels = read_idx(path, ())
    if int(labels.max()) > 9:
        raise _damaged(path, f"a label {int(labels.max())}, above 9")
    return labels.long()


def check_idx(path: Path) -> None:
    """Raise unless the file has the form that its name says."""
    if "labels" in path.name:
        read_idx_labels(path)
    else:
        read_idx_images(path)


def _read_shape(path: Path, header: bytes, inner: tuple[int, ...]) -> tuple[int, ...]:
    axes = 1 + len(inner)
    magic = bytes((0, 0, _UNSIGNED_BYTE, axes))
    if len(header) < 4 + 4 * axes or header[:4] != magic:
        raise _damaged(path, f"it begins with {header[:4].hex(' ') or 'nothing'}, not {magic.hex(' ')}")
    shape = struct.unpack(f">{axes}I", header[4:])
    if shape[1:] != inner or not 0 < shape[0] <= _MOST_ROWS:
        raise _damaged(path, f"its header says {shape}, not (rows, {', '.join(map(str, inner))})")
    return shape


def _damaged(path: Path, why: str) -> BadFile:
    return BadFile(
        f"{path} must be an idx file of unsigned bytes, gzipped",
        why,
        "move it away and run 'qbayes data fetch' again, or supply a sound file",
    )
