"""CIFAR-10, official binary version: 60,000 colour images 32 × 32 (Krizhevsky, 2009).

A record is one label byte and 3 × 1024 pixel bytes, channel by channel. Nothing is unpickled.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadFile, BadInput, unknown_name
from qbayes.tasks.augment import BORDERS, Augment, CropAndFlip, Cutout, InTurn
from qbayes.tasks.base import Task
from qbayes.tasks.dataset import DATASETS, Archive, Confusion, DataFile, Dataset, borrow

_ARCHIVE = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"
)
_FOLDER = "cifar-10-batches-bin"
_FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
# the mean of all training pixels, 0 … 255: about 0 where the network sees it.
_GREY = 121.0
_MOST_BYTES = 2**30


def load(
    data: Path,
    variant: str,
    *,
    validation: float = 0.1,
    seed: int = 0,
    augment: bool = True,
    cutout: int = 0,
    padding: int = 4,
    border: str = "reflect",
    confusion: Confusion = "auto",
) -> Task:
    varied = augmentation(augment, cutout, padding, border)
    parts = [read_records(path) for path in CIFAR10.need(data)]
    x_confusion, confusion_name = borrow("svhn", data, confusion)
    return Task.from_arrays(
        torch.cat([x for x, _ in parts[:-1]]),
        torch.cat([y for _, y in parts[:-1]]),
        *parts[-1],
        kind="classification",
        validation=validation,
        seed=seed,
        labels=_CLASSES,
        augment=varied,
        x_confusion=x_confusion,
        confusion_name=confusion_name,
        name="cifar10",
    )


def augmentation(augment: bool, cutout: int = 0, padding: int = 4, border: str = "reflect") -> Augment | None:
    """Of training images: windows, mirrors and, where asked for, a grey square of ``cutout`` pixels.

    Windows lie up to ``padding`` pixels beyond the image, whose ``border`` is black or reflects.
    """
    if border not in BORDERS:
        raise unknown_name("border", str(border), BORDERS)
    if type(padding) is not int or not 0 <= padding < _SIDE:
        raise BadInput(f"padding must be 0 … {_SIDE - 1} pixels", f"{padding!r}", "try 4")
    if type(cutout) is not int or not 0 <= cutout <= _SIDE or (cutout and not augment):
        raise BadInput(
            f"cutout must be the side of a square, 0 … {_SIDE} pixels, of images that are augmented",
            f"cutout={cutout!r} and augment={augment!r}",
            "give 0 for none, or 8 to 16 with augment=True",
        )
    window = CropAndFlip(padding=padding, border="reflect" if border == "reflect" else "black")
    if cutout:
        return InTurn((window, Cutout(cutout, fill=_GREY)))
    return window if augment else None


def read_records(path: Path) -> tuple[Tensor, Tensor]:
    """``(rows, 3, 32, 32)`` uint8 and labels of one binary file."""
    try:
        size = path.stat().st_size
        if size == 0 or size % _RECORD or size > _MOST_BYTES:
            raise _refuse(path, f"{size} bytes, not a whole number of records")
        records = torch.from_numpy(np.fromfile(path, np.uint8).reshape(-1, _RECORD))
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror or error}", "check its rights") from error
    labels = records[:, 0].long()
    if int(labels.max()) >= len(_CLASSES):
        raise _refuse(path, f"a label {int(labels.max())}, above {len(_CLASSES) - 1}")
    return records[:, 1:].reshape(-1, 3, _SIDE, _SIDE), labels


def lend(data: Path) -> Tensor:
    return read_records(*CIFAR10.need(data, f"{_FOLDER}/test_batch.bin"))[0]


def check(path: Path) -> None:
    read_records(path)


def _refuse(path: Path, why: str) -> BadFile:
    return BadFile(
        f"{path} must hold records of {_RECORD} bytes: a label 0 … 9 and 3 × 32 × 32 pixels",
        why,
        "move it away and run 'qbayes data fetch cifar10', or supply a sound file",
    )


CIFAR10 = DATASETS.register("cifar10")(
    Dataset(
        name="cifar10",
        summary="50,000 + 10,000 photographs, 32 × 32 colour, 10 classes",
        kind="classification",
        terms="for research",
        load=load,
        files=tuple(
            DataFile(f"{_FOLDER}/{name}", f"sha256:{sha256}", archive=_ARCHIVE)
            for name, sha256 in _FILES.items()
        ),
        check=check,
        lend=lend,
        confusion="svhn",
    )
)
