"""What is left of the uncertainty: factors on float's, and the worst of each in words."""

import math
from collections.abc import Callable, Mapping, Sequence

from published_controls import BITS, WAYS, Controlled
from published_images import AUROC
from published_numbers import METHODS, NONE, Lines, Studies, named, table

from qbayes.lab.analysis.intervals import Unit, estimate
from qbayes.lab.analysis.pairs import Pair, score


def bounded(studies: Studies, study: str = "mnist") -> Lines:
    """What is left of the uncertainty: factors on float's, and the worst of each in words."""
    found = Controlled(studies[study])
    lines: dict[tuple[str, str, str], list[Pair]] = {
        (method, bits, training): found.bits(method, bits, training)
        for method in found.held.present("method", METHODS)
        for bits in BITS
        for training in WAYS
    }
    lines = {key: pairs for key, pairs in lines.items() if pairs}
    rows = []
    before = ("", "")
    for (method, bits, training), pairs in lines.items():
        shown = [named(method) if method != before[0] else "", bits if (method, bits) != before else ""]
        before = (method, bits)
        cells = [
            _times(pairs, name) for name in ("mutual_information", "confusion/mutual_information", "ece")
        ]
        auroc = found.cell(pairs, AUROC) if _scored(pairs, AUROC[0]) else NONE
        rows.append([*shown, WAYS[training], *cells, auroc])
    head = ["", "bits", "", "mutual information", "the same, FashionMNIST", "ECE", "AUROC"]
    legend = (
        "The first three are factors on float's score, the geometric mean over the seeds with its 95 % "
        "interval; AUROC is a difference. A point network has no mutual information."
    )
    return [*table(head, rows), "", legend, "", *_worst(lines)]


def _worst(lines: Mapping[tuple[str, str, str], Sequence[Pair]]) -> Lines:
    """The statement that holds: how far it goes at each number of bits."""
    said: Lines = []
    for training, words in WAYS.items():
        for bits in BITS:
            here = {m: pairs for (m, b, t), pairs in lines.items() if (b, t) == (bits, training)}
            if here:
                said.append(f"- {bits}, {words}: {_extremes(here)}.")
    return said


def _extremes(here: Mapping[str, Sequence[Pair]]) -> str:
    parts: list[str] = []
    informed = {m: pairs for m, pairs in here.items() if _scored(pairs, "mutual_information", above=0)}
    if informed:
        factors = {m: _factor(pairs, "mutual_information") for m, pairs in informed.items()}
        low, high = min(factors, key=factors.__getitem__), max(factors, key=factors.__getitem__)
        parts.append(
            f"the mutual information of test digits is between ×{factors[low]:.2f} ({named(low)}) and "
            f"×{factors[high]:.2f} ({named(high)}) of float's"
        )
    rises = {m: _factor(pairs, "ece") for m, pairs in here.items() if _scored(pairs, "ece", above=0)}
    if rises:
        worst = max(rises, key=rises.__getitem__)
        parts.append(f"the ECE at most ×{rises[worst]:.1f} ({named(worst)})")
    return ", ".join(parts)


def _scored(pairs: Sequence[Pair], name: str, above: float = -math.inf) -> bool:
    return all(
        pair.has(name) and min(score(pair.quantised, name), score(pair.float, name)) > above for pair in pairs
    )


def _logs(pairs: Sequence[Pair], name: str) -> dict[Unit, float]:
    return {pair.unit: math.log(score(pair.quantised, name) / score(pair.float, name)) for pair in pairs}


def _factor(pairs: Sequence[Pair], name: str) -> float:
    return math.exp(estimate(_logs(pairs, name)).value)


def _times(pairs: Sequence[Pair], name: str) -> str:
    """``×0.65 [0.60, 0.70]``: the geometric mean, since a factor has no sign."""
    if not _scored(pairs, name, above=0):
        return NONE
    found = estimate(_logs(pairs, name))
    low, high = found.bounds()
    ends = "" if low is None or high is None else f" [{math.exp(low):.2f}, {math.exp(high):.2f}]"
    return f"×{math.exp(found.value):.2f}{ends}"


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"bounded": bounded}
