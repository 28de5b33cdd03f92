"""MNIST: 70,000 handwritten digits, 28 × 28 grey (LeCun, Cortes, Burges)."""

from qbayes.tasks.dataset import DATASETS
from qbayes.tasks.files.idx import idx_dataset

MNIST = DATASETS.register("mnist")(
    idx_dataset(
        "mnist",
        summary="60,000 + 10,000 handwritten digits, 28 × 28 grey, 10 classes",
        terms="CC BY-SA 3.0",
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        md5={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        labels=[str(digit) for digit in range(10)],
        confusion_data="fashion_mnist",
    )
)
