"""The idx format of MNIST and its like: a big-endian header, then unsigned bytes, gzipped.

Header: two zero bytes, the type (8: unsigned byte), the number of axes, then each length in four bytes.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadFile
from qbayes.tasks.base import Task
from qbayes.tasks.dataset import Confusion, DataFile, Dataset, borrow

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
        raise _refuse(path, f"the gzip stream is broken: {error}") from error
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror or error}", "check its rights") from error
    if len(data) != size:
        less_or_more = "more" if len(data) > size else f"{len(data)} bytes"
        raise _refuse(path, f"its header says {shape}, {size} bytes; there are {less_or_more}")
    return torch.from_numpy(np.frombuffer(data, np.uint8).reshape(shape).copy())


def read_idx_images(path: Path) -> Tensor:
    """``(rows, 1, 28, 28)``."""
    return read_idx(path, (28, 28))[:, None]


def read_idx_labels(path: Path) -> Tensor:
    labels = read_idx(path, ())
    if int(labels.max()) > 9:
        raise _refuse(path, f"a label {int(labels.max())}, above 9")
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
        raise _refuse(path, f"it begins with {header[:4].hex(' ') or 'nothing'}, not {magic.hex(' ')}")
    shape = struct.unpack(f">{axes}I", header[4:])
    if shape[1:] != inner or not 0 < shape[0] <= _MOST_ROWS:
        raise _refuse(path, f"its header says {shape}, not (rows, {', '.join(map(str, inner))})")
    return shape


def _refuse(path: Path, why: str) -> BadFile:
    return BadFile(
        f"{path} must be an idx file of unsigned bytes, gzipped",
        why,
        "move it away and run 'qbayes data fetch' again, or supply a sound file",
    )


TEST_IMAGES = "t10k-images-idx3-ubyte.gz"


def idx_dataset(
    name: str,
    *,
    summary: str,
    terms: str,
    url: str,
    md5: Mapping[str, str],
    labels: Sequence[str],
    confusion_data: str,
) -> Dataset:
    """The data set whose files (training images and labels, test images and labels) are in ``md5``."""

    def load(
        data: Path, variant: str, *, validation: float = 0.1, seed: int = 0, confusion: Confusion = "auto"
    ) -> Task:
        x_train, y_train, x_test, y_test = dataset.need(data)
        x_confusion, confusion_name = borrow(confusion_data, data, confusion)
        return Task.from_arrays(
            read_idx_images(x_train),
            read_idx_labels(y_train),
            read_idx_images(x_test),
            read_idx_labels(y_test),
            kind="classification",
            validation=validation,
            seed=seed,
            labels=list(labels),
            x_confusion=x_confusion,
            confusion_name=confusion_name,
            name=name,
        )

    def lend(data: Path) -> Tensor:
        (path,) = dataset.need(data, TEST_IMAGES)
        return read_idx_images(path)

    dataset = Dataset(
        name=name,
        summary=summary,
        kind="classification",
        terms=terms,
        load=load,
        files=tuple(DataFile(file, f"md5:{digest}", url + file) for file, digest in md5.items()),
        check=check_idx,
        lend=lend,
        confusion=confusion_data,
    )
    return dataset
