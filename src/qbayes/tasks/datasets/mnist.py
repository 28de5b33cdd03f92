"""MNIST: 70,000 handwritten digits, 28 × 28 grey (LeCun, Cortes, Burges)."""

from pathlib import Path

from torch import Tensor

from qbayes.tasks.base import Task
from qbayes.tasks.dataset import DATASETS, Confusion, DataFile, Dataset, borrow
from qbayes.tasks.idx import check_idx, read_idx_images, read_idx_labels

_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FILES = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def load(
    data: Path,
    variant: str,
    *,
    validation: float = 0.1,
    seed: int = 0,
    confusion: Confusion = "auto",
) -> Task:
    x_train, y_train, x_test, y_test = MNIST.need(data)
    x_confusion, confusion_name = borrow("fashion_mnist", data, confusion)
    return Task.from_arrays(
        read_idx_images(x_train),
        read_idx_labels(y_train),
        read_idx_images(x_test),
        read_idx_labels(y_test),
        kind="classification",
        validation=validation,
        seed=seed,
        labels=[str(digit) for digit in range(10)],
        x_confusion=x_confusion,
        confusion_name=confusion_name,
        name="mnist",
    )


def lend(data: Path) -> Tensor:
    (path,) = MNIST.need(data, "t10k-images-idx3-ubyte.gz")
    return read_idx_images(path)


MNIST = DATASETS.register("mnist")(
    Dataset(
        name="mnist",
        summary="60,000 + 10,000 handwritten digits, 28 × 28 grey, 10 classes",
        kind="classification",
        terms="CC BY-SA 3.0",
        load=load,
        files=tuple(DataFile(name, f"md5:{md5}", _URL + name) for name, md5 in _FILES.items()),
        check=check_idx,
        lend=lend,
        confusion="fashion_mnist",
    )
)
