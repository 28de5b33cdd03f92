"""The tables of the README that stand on published rows of images."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from published_controls import BITS, Controlled
from published_images import ECE, ERROR
from published_numbers import METHODS, NONE, Lines, Studies, named, signed, table

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import Pair, score

Three = tuple[float, float, float]


def mnist_floats(studies: Studies) -> dict[str, Three]:
    """Error, NLL and ECE of each method, the mean over the seeds of the study."""
    return {method: _three(studies["mnist"].floats(method=method)) for method in METHODS}


def _three(rows: Sequence[Row]) -> Three:
    error, nll, ece = (mean(float(row[name]) for row in rows) for name in ("error", "nll", "ece"))
    return error, nll, ece


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


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"mnist": mnist}
