"""FashionMNIST: 70,000 articles of clothing in the form of MNIST (Xiao, Rasul, Vollgraf, 2017)."""

from pathlib import Path

from torch import Tensor

from qbayes.tasks.base import Task
from qbayes.tasks.dataset import DATASETS, Confusion, DataFile, Dataset, borrow
from qbayes.tasks.idx import check_idx, read_idx_images, read_idx_labels

_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FILES = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_CLASSES = ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"]


def load(
    data: Path,
    variant: str,
    *,
    validation: float = 0.1,
    seed: int = 0,
    confusion: Confusion = "auto",
) -> Task:
    x_train, y_train, x_test, y_test = FASHION_MNIST.need(data)
    x_confusion, confusion_name = borrow("mnist", data, confusion)
    return Task.from_arrays(
        read_idx_images(x_train),
        read_idx_labels(y_train),
        read_idx_images(x_test),
        read_idx_labels(y_test),
        kind="classification",
        validation=validation,
        seed=seed,
        labels=_CLASSES,
        x_confusion=x_confusion,
        confusion_name=confusion_name,
        name="fashion_mnist",
    )


def lend(data: Path) -> Tensor:
    (path,) = FASHION_MNIST.need(data, "t10k-images-idx3-ubyte.gz")
    return read_idx_images(path)


FASHION_MNIST = DATASETS.register("fashion_mnist")(
    Dataset(
        name="fashion_mnist",
        summary="60,000 + 10,000 articles of clothing, 28 × 28 grey, 10 classes",
        kind="classification",
        terms="MIT",
        load=load,
        files=tuple(DataFile(name, f"md5:{md5}", _URL + name) for name, md5 in _FILES.items()),
        check=check_idx,
        lend=lend,
        confusion="mnist",
    )
)
