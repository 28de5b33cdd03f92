"""FashionMNIST: 70,000 articles of clothing in the form of MNIST (Xiao, Rasul, Vollgraf, 2017)."""

from qbayes.tasks.dataset import DATASETS
from qbayes.tasks.files.idx import idx_dataset

FASHION_MNIST = DATASETS.register("fashion_mnist")(
    idx_dataset(
        "fashion_mnist",
        summary="60,000 + 10,000 articles of clothing, 28 × 28 grey, 10 classes",
        terms="MIT",
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        md5={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        labels=[
            "T-shirt",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Boot",
        ],
        confusion_data="mnist",
    )
)
