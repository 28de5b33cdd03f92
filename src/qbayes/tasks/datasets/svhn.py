"""SVHN, test part: 26,032 street-view house numbers, 32 × 32 colour (Netzer et al., 2011).

``test_32x32.mat`` holds ``X`` (32, 32, 3, rows) uint8 and ``y`` (rows, 1), where 10 stands for the digit 0.
It serves for testing and as confusion data of CIFAR-10; there is no training part.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadFile
from qbayes.tasks.base import Task
from qbayes.tasks.dataset import DATASETS, DataFile, Dataset
from qbayes.tasks.files.mat import read_arrays


def load(data: Path, variant: str) -> Task:
    (path,) = SVHN.need(data)
    x, y = read_mat(path)
    return Task.for_testing(x, y, labels=[str(digit) for digit in range(10)], name="svhn")


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """``(rows, 3, 32, 32)`` uint8 and labels 0 … 9."""
    content = read_arrays(path)
    x, y = content.get("X"), content.get("y")
    if x is None or y is None:
        raise _refuse(path, f"arrays {', '.join(content) or 'none'}")
    rows = y.size
    if x.dtype != np.uint8 or rows == 0 or x.shape != (32, 32, 3, rows):
        raise _refuse(path, f"X {x.dtype} {x.shape}, y {y.dtype} {y.shape}")
    if not np.isin(y, np.arange(1, 11)).all():
        raise _refuse(path, f"labels {y.min()} … {y.max()}, not the whole numbers 1 … 10")
    labels = torch.from_numpy(y.reshape(-1).astype(np.int64))
    return torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1))), labels % 10


def lend(data: Path) -> Tensor:
    return read_mat(*SVHN.need(data))[0]


def check(path: Path) -> None:
    read_mat(path)


def _refuse(path: Path, why: str) -> BadFile:
    return BadFile(
        f"{path} must be a MATLAB file with X (32, 32, 3, rows) uint8 and y (rows, 1), 1 … 10",
        why,
        "move it away and run 'qbayes data fetch svhn', or supply a sound file",
    )


SVHN = DATASETS.register("svhn")(
    Dataset(
        name="svhn",
        summary="26,032 house numbers, 32 × 32 colour, 10 classes; test only",
        kind="classification",
        terms="for research, non-commercial",
        load=load,
        files=(
            DataFile(
                "test_32x32.mat",
                "md5:eb5a983be6a315427106f1b164d9cef3",
                "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            ),
        ),
        check=check,
        lend=lend,
    )
)
