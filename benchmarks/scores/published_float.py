"""The tables of docs/results/float.md: float posteriors before any quantisation."""

import csv
from collections.abc import Callable, Mapping

from published_images import MNIST, SCORES, spread
from published_numbers import METHODS, Lines, Missing, Studies, named, number, table

CIFAR = "images_float"


def mnist(studies: Studies) -> Lines:
    """Mean and deviation over the seeds of the study of MNIST."""
    held = studies[MNIST.ours]
    found = {method: held.floats(method=method) for method in held.present("method", METHODS)}
    rows = [
        [named(method), str(len(some)), *(spread(some, one) for one in SCORES)]
        for method, some in found.items()
    ]
    legend = "Mean and deviation over the seeds; AUROC: telling MNIST from FashionMNIST by entropy."
    return [*table(["", "seeds", *(label for _, label, _, _ in SCORES)], rows), "", legend]


def cifar10(studies: Studies) -> Lines:
    """The slim ResNet-18, one seed of each recipe."""
    path = studies.path(CIFAR)
    if not path.is_file():
        raise Missing(f"{path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        held = [row for row in csv.DictReader(file) if row["task"] == "cifar10"]
    rows = [
        [
            row["recipe"],
            row["epochs"],
            number(100 * float(row["error"]), 2),
            number(float(row["nll"]), 3),
            number(100 * float(row["ece"]), 2),
        ]
        for row in held
    ]
    return [
        *table(["", "epochs", "error, %", "NLL", "ECE, %"], rows),
        "",
        "One seed: a difference of half a point of error is nothing.",
    ]


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"mnist": mnist, "cifar10": cifar10}
