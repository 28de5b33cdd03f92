"""The tables of the README that stand on published rows of images."""

import csv
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from published_controls import BITS, Controlled
from published_float import CIFAR
from published_images import ECE, ERROR
from published_numbers import METHODS, NONE, Lines, Missing, Studies, named, number, signed, table

from qbayes.report.frame import Row
from qbayes.report.pairs import Pair, score

# float errors on CIFAR-10 in per cent, read off the poster of the paper's authors.
PAPERS = {"pointwise": 8.13, "mcd": 7.22, "bbb": 8.27, "sghmc": 7.70}
Three = tuple[float, float, float]
# the recipe of each method among the float rows of CIFAR-10.
RECIPES = {"pointwise": "pointwise", "mcd": "mcd", "bbb": "bbb from pointwise", "sghmc": "sghmc"}


def floats(studies: Studies) -> Lines:
    """Error, NLL and ECE of the four methods in float."""
    seeds = min(len(studies["mnist"].floats(method=method)) for method in METHODS)
    cifar = _cifar(studies)
    rows = [
        [f"MNIST, LeNet, {seeds} seeds", *map(_written, mnist_floats(studies).values())],
        ["CIFAR-10, slim ResNet-18, one seed", *(_written(_three([cifar[method]])) for method in METHODS)],
        ["the paper's CIFAR-10 error", *(f"{number(PAPERS[method], 2)} %" for method in METHODS)],
    ]
    worse = [named(method) for method in METHODS if 100 * float(cifar[method]["error"]) > PAPERS[method]]
    legend = f"On CIFAR-10 {' and '.join(worse) or 'no method'} errs more than the paper's float network."
    return [*table(["error / NLL / ECE", *map(named, METHODS)], rows), "", legend]


def _cifar(studies: Studies) -> dict[str, Row]:
    path = studies.path(CIFAR)
    if not path.is_file():
        raise Missing(f"{path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        found = {row["recipe"]: row for row in csv.DictReader(file) if row["task"] == "cifar10"}
    return {method: found[recipe] for method, recipe in RECIPES.items()}


def mnist_floats(studies: Studies) -> dict[str, Three]:
    """Error, NLL and ECE of each method, the mean over the seeds of the study."""
    return {method: _three(studies["mnist"].floats(method=method)) for method in METHODS}


def _three(rows: Sequence[Row]) -> Three:
    error, nll, ece = (mean(float(row[name]) for row in rows) for name in ("error", "nll", "ece"))
    return error, nll, ece


def _written(numbers: Three) -> str:
    error, nll, ece = numbers
    return f"{number(100 * error, 2)} % / {number(nll, 4)} / {number(100 * ece, 2)} %"


def mnist(studies: Studies) -> Lines:
    """Points of error and of ECE that the bits cost on MNIST, beside the control."""
    found = Controlled(studies["mnist"])
    ways: Mapping[str, Callable[[str, str], list[Pair]]] = {
        "calibrated": lambda method, bits: found.bits(method, bits, "calibrated"),
        "fine-tuned": lambda method, bits: found.bits(method, bits, "trained"),
        "float, fine-tuned alike": lambda method, bits: found.control(method, bits, "trained"),
    }
    rows: list[list[str]] = []
    for method in METHODS:
        first = named(method)
        for words, pairs_of in ways.items():
            cells = [_both(pairs_of(method, bits)) for bits in BITS]
            if any(cell != NONE for cell in cells):
                rows.append([first, words, *cells])
                first = ""
    seeds = sorted({len(found.bits("mcd", bits, "trained")) for bits in BITS} - {0})
    legend = (
        f"Difference to float in points of error / ECE, mean over {' or '.join(map(str, seeds))} seeds "
        "(negative is better)."
    )
    control = "" if found else " These rows have no control: what fine-tuning gains may be the training's."
    return [*table(["", "", *BITS], rows), "", legend + control]


def _both(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return NONE
    changes = (
        factor * mean(score(pair.quantised, name) - score(pair.float, name) for pair in pairs)
        for name, _, factor, _ in (ERROR, ECE)
    )
    return " / ".join(signed(change, 2) for change in changes)


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"float": floats, "mnist": mnist}
