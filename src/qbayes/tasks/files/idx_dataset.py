"""Data sets published as MNIST is: four gzipped idx files of images and labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from qbayes.tasks.base import Task
from qbayes.tasks.dataset import Confusion, DataFile, Dataset, borrow
from qbayes.tasks.files.idx import check_idx, read_idx_images, read_idx_labels

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
