"""Digits: 1,797 handwritten digits, 8 × 8 in 17 grey levels, bundled with scikit-learn (Alpaydin, Kaynak).

Confusion data: scikit-learn's two sample photographs, cut into 32 × 32 windows and averaged over 4 × 4
blocks, as the digits were made from 32 × 32 bitmaps.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qbayes.tasks.base import Task, split_rows
from qbayes.tasks.dataset import DATASETS, Confusion, Dataset, MissingFile, borrow
from qbayes.tasks.files.download import file_of_scikit_learn, table_of_scikit_learn

_WHITE = 16
_PHOTOGRAPHS = ("china", "flower")
_WINDOW, _BLOCK = 32, 4
_LUMA = np.array([0.299, 0.587, 0.114])  # grey from red, green, blue (ITU-R BT.601)


def load(
    data: Path,
    variant: str,
    *,
    split: int = 0,
    validation: float = 0.1,
    seed: int = 0,
    confusion: Confusion = "auto",
) -> Task:
    table = table_of_scikit_learn("digits", ",")
    x = torch.from_numpy(table[:, :-1].astype(np.uint8)).view(-1, 1, 8, 8)
    y = torch.from_numpy(table[:, -1].astype(np.int64))
    train, test = (torch.from_numpy(rows) for rows in split_rows(len(x), split, share=0.75))
    x_confusion, confusion_name = borrow("digits", data, confusion)
    return Task.from_arrays(
        x[train],
        y[train],
        x[test],
        y[test],
        kind="classification",
        validation=validation,
        seed=seed,
        labels=[str(digit) for digit in range(10)],
        input_range=(0, _WHITE),
        x_confusion=x_confusion,
        confusion_name=None if confusion_name is None else "photographs",
        name="digits",
    )


def lend(data: Path) -> Tensor:
    """Grey patches ``(520, 1, 8, 8)`` of the photographs, 0 … 16."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingFile(
            "the sample photographs need Pillow to be read",
            f"{error}",
            "pip install pillow, or load digits with confusion=False",
        ) from error
    photographs = (Image.open(file_of_scikit_learn(f"images/{name}.jpg")) for name in _PHOTOGRAPHS)
    return torch.cat([_patches(np.asarray(photograph)) for photograph in photographs])


def _patches(photograph: np.ndarray) -> Tensor:
    grey = torch.from_numpy(photograph @ _LUMA) / 255 * _WHITE
    windows = grey.unfold(0, _WINDOW, _WINDOW).unfold(1, _WINDOW, _WINDOW).reshape(-1, 1, _WINDOW, _WINDOW)
    return torch.nn.functional.avg_pool2d(windows, _BLOCK).round().to(torch.uint8)


DIGITS = DATASETS.register("digits")(
    Dataset(
        name="digits",
        summary="1,797 handwritten digits, 8 × 8 grey, 10 classes; nothing to download",
        kind="classification",
        terms="CC BY 4.0 (UCI), with scikit-learn",
        load=load,
        lend=lend,
        confusion="digits",
    )
)
