"""The tables of docs/how-to-choose.md that stand on published rows."""

import csv
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import published_digits
import published_float
from published_controls import BITS, Controlled
from published_images import ECE, ERROR, NLL, Score
from published_numbers import METHODS, NONE, Lines, Missing, Studies, named, number, signed, table

from qbayes.lab.analysis.pairs import Pair, score

RATES = "rates"
# calibration does where it costs no more than this: points of error, and a share of float's NLL.
MOST_ERROR, MOST_NLL = 0.1, 0.1
COLUMNS: tuple[Score, ...] = (ERROR, NLL, ECE)


def bits(studies: Studies) -> Lines:
    """For which methods calibration does at each precision, and what is lost at worst, both ways."""
    found = Controlled(studies["mnist"])
    rows = []
    for name in BITS:
        runs = {
            training: {
                method: pairs
                for method in found.held.present("method", METHODS)
                if (pairs := found.bits(method, name, training))
            }
            for training in ("calibrated", "trained")
        }
        if runs["trained"]:
            enough = [named(method) for method, pairs in runs["calibrated"].items() if _does(pairs)]
            does = ", ".join(enough) or ("none" if runs["calibrated"] else NONE)
            rows.append([name, does, *(_worst(found, some) for some in runs.values())])
    head = ["numbers", "calibration does for", "lost at worst, calibrated", "lost at worst, fine-tuned"]
    legend = (
        "MNIST. Lost: the largest mean change to float of any method, points of error / NLL / points of ECE. "
        f"Calibration does where it costs {MOST_ERROR:g} points of error at most, and no more than a tenth "
        "of float's NLL."
    )
    return [*table(head, rows), "", legend]


def _does(pairs: Sequence[Pair]) -> bool:
    floats, after = (mean(score(side, "nll") for side in sides) for sides in _sides(pairs))
    error = 100 * mean(score(pair.quantised, "error") - score(pair.float, "error") for pair in pairs)
    return error <= MOST_ERROR and after - floats <= MOST_NLL * floats


def _sides(pairs: Sequence[Pair]) -> tuple[list[Mapping[str, object]], list[Mapping[str, object]]]:
    return [pair.float for pair in pairs], [pair.quantised for pair in pairs]


def _worst(found: Controlled, runs: Mapping[str, Sequence[Pair]]) -> str:
    if not runs:
        return NONE
    worst = [max(found.change(pairs, one).value for pairs in runs.values()) for one in COLUMNS]
    return " / ".join(signed(value, one[3]) for value, one in zip(worst, COLUMNS, strict=True))


def rates(studies: Studies) -> Lines:
    """NLL on held-out rows by the rate of fine-tuning, mean over methods and seeds."""
    path = studies.path(RATES)
    if not path.is_file():
        raise Missing(f"{path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        held = list(csv.DictReader(file))
    tried = sorted({(float(row["rate"]), int(row["steps"])) for row in held if row["bits"] != "float"})
    widths = sorted({int(row["bits"]) for row in held if row["bits"] != "float"}, reverse=True)
    rows = []
    for rate, steps in tried:
        cells = []
        for width in widths:
            here = [
                row
                for row in held
                if row["bits"] == str(width) and (float(row["rate"]), int(row["steps"])) == (rate, steps)
            ]
            nll, information = (
                mean(float(row[name]) for row in here) for name in ("nll", "mutual_information")
            )
            cells.append(f"{number(nll, 3)} / {number(information, 3)}")
        rows.append([f"{rate:g}, {steps} steps", *cells])
    seeds = len({row["seed"] for row in held})
    legend = (
        f"NLL / mutual information on held-out rows of digits, mean over four methods and {seeds} seeds. The "
        "rows are older than the record of where rows come from."
    )
    return [*table(["rate", *(f"W{width}A{width}" for width in widths)], rows), "", legend]


TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    "bits": bits,
    "rates": rates,
    "mnist": published_float.mnist,
    **published_digits.TABLES,
}
