"""When the paper's mask takes everything: the scale S of each product, and which networks still answer."""

import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from published_numbers import (
    ACTIVATIONS,
    NONE,
    Lines,
    Missing,
    Studies,
    mean_and_deviation,
    number,
    table,
)

from qbayes.lab.analysis.pairs import Pair, score
from qbayes.lab.analysis.run_groups import has_collapsed, plain_scheme

NAME = "mask-scale"
# round(1 / S) is 0 from here on: ½ rounds to the even 0.
LIMIT = 2.0
# an error above this is no answer: ten classes, float networks err by a hundredth.
LOST = 0.5
# studies with the paper's mask and with one bit, and what the float networks of each are.
STUDIES = {
    "mnist-mask": "our float networks",
    "mnist": "our float networks",
    "mnist-paper": "the paper's recipe",
}
SCHEMES = {
    "default": "our scheme, mask of one bit",
    "default, mask=product": "our scheme, mask on the product's grid",
    "paper": "the paper's scheme, mask on the product's grid",
    "paper, mask=exact": "the paper's scheme, mask of one bit",
}
TRAININGS = {"calibrated": "calibrated", "trained": "fine-tuned"}
WORDS = {
    ("ours", "once"): "ours, ranges from all rows at once",
    ("ours", "batches"): "ours, ranges set behind every batch",
    ("paper", "once"): "the paper's, calibrated",
    ("paper", "followed"): "the paper's, ranges that follow",
}


@dataclass(frozen=True)
class Masked:
    """One network with the paper's mask: the scale of each product, in the order of the layers."""

    seed: int
    scheme: str
    activation: int
    ranges: str
    scales: tuple[float, ...]
    gains: tuple[float, ...]
    error: float
    # epochs of the script's own training, or the study whose network it is.
    trained: str

    @property
    def lost(self) -> bool:
        return self.error > LOST

    @property
    def largest(self) -> float:
        return max(self.scales)


def read(studies: Studies) -> list[Masked]:
    path = studies.path(NAME)
    if not path.is_file():
        raise Missing(f"{path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("seed", "scheme", "activation", "ranges"))
        found.setdefault(key, []).append(row)
    return [_masked(some) for some in found.values()]


def _masked(rows: Sequence[Mapping[str, str]]) -> Masked:
    first = rows[0]
    return Masked(
        seed=int(first["seed"]),
        scheme=first["scheme"],
        activation=int(first["activation"]),
        ranges=first["ranges"],
        scales=tuple(float(row["scale"]) for row in rows),
        gains=tuple(float(row["gain"]) for row in rows),
        error=float(first["error"]),
        trained=first["epochs"],
    )


def scale(studies: Studies) -> Lines:
    """The largest S of each seed by bits and by how the ranges were set; bold where the answer is lost."""
    networks = read(studies)
    widths = sorted({one.activation for one in networks}, reverse=True)
    rows = []
    for (scheme, ranges), words in WORDS.items():
        here = [one for one in networks if (one.scheme, one.ranges) == (scheme, ranges)]
        cells = [_cell([one for one in here if one.activation == bits]) for bits in widths]
        if here:
            rows.append([words, *cells])
    trained = sorted({one.trained for one in networks})
    told = ", ".join(f"{name} epochs" if name.isdigit() else f"as in `{name}`" for name in trained)
    legend = (
        f"The largest S of the three products, one number a seed; networks trained: {told}. **Bold**: the "
        "network errs on more than half of the test rows."
    )
    return [*table(["", *(f"W8A{bits}" for bits in widths)], rows), "", legend, "", *rule(networks)]


def masks(studies: Studies) -> Lines:
    """Error of MC dropout over activation bits by what it was made from, its scheme and its mask."""
    held = [study for study in STUDIES if study in studies]
    found: dict[tuple[str, str, str], dict[str, list[Pair]]] = {}
    for study in held:
        everything = {"scheme": studies[study].frame.values("scheme"), "training": tuple(TRAININGS)}
        own: dict[tuple[str, str, str], dict[str, list[Pair]]] = {}
        for pair in studies[study].pairs(method="mcd", precision=ACTIVATIONS, **everything):
            row = pair.quantised
            key = (STUDIES[study], plain_scheme(str(row["scheme"])), str(row["training"]))
            own.setdefault(key, {}).setdefault(str(row["precision"]), []).append(pair)
        for key, by_bits in own.items():
            found.setdefault(key, by_bits)
    if not found:
        raise Missing("no rows of mcd over activation bits")
    widths = [bits for bits in ACTIVATIONS if any(bits in by_bits for by_bits in found.values())]
    rows: list[list[str]] = []
    for words in dict.fromkeys(STUDIES.values()):
        for scheme, training in itertools.product(SCHEMES, TRAININGS):
            by_bits = found.get((words, scheme, training))
            if by_bits is not None and len(by_bits) > 1:
                cells = (_errors(by_bits.get(bits, [])) for bits in widths)
                rows.append([words, SCHEMES[scheme], TRAININGS[training], *cells])
    legend = "Error of `mcd` in per cent, mean over the seeds (runs that collapsed)."
    return [*table(["made from", "scheme", "", *widths], rows), "", legend]


def _errors(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return NONE
    mean, _ = mean_and_deviation([100 * score(pair.quantised, "error") for pair in pairs])
    return f"{number(mean, 2)} ({sum(map(has_collapsed, pairs))} of {len(pairs)})"


def _cell(networks: Sequence[Masked]) -> str:
    ordered = sorted(networks, key=lambda one: one.seed)
    numbers = (f"**{number(one.largest, 2)}**" if one.lost else number(one.largest, 2) for one in ordered)
    return " / ".join(numbers) or NONE


def rule(networks: Sequence[Masked]) -> Lines:
    """How well "lost if and only if some S is 2 or more" holds of these networks."""
    above = [one for one in networks if one.largest >= LIMIT]
    below = [one for one in networks if one.largest < LIMIT]
    return [
        f"With an S of 2 or more in some layer {_lost(above)}; with every S below 2 {_lost(below)}. The "
        f"largest S of a network that still answers is {_most(networks, lost=False)}, the smallest of one "
        f"that does not {_most(networks, lost=True)}."
    ]


def _lost(networks: Sequence[Masked]) -> str:
    return f"{sum(one.lost for one in networks)} of {len(networks)} networks lost their answer"


def _most(networks: Sequence[Masked], *, lost: bool) -> str:
    found = [one.largest for one in networks if one.lost == lost]
    return number((min if lost else max)(found), 3) if found else NONE


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"scale": scale, "masks": masks}
