"""The tables of docs/results/noise.md: the bits of ε, σ and the mask, and the number of draws."""

import csv
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import published_made
from published_numbers import (
    METHODS,
    NONE,
    Lines,
    Missing,
    Rows,
    Studies,
    change,
    interval,
    named,
    number,
    signed,
    table,
)

from qbayes.lab.analysis.intervals import Estimate, estimate
from qbayes.lab.analysis.pairs import Pair, score

BITS = (2, 3, 4, 5, 6, 8)
COUNTS = (1, 2, 5, 10, 20, 50, 100)
PRECISIONS = ("float", "W8A8", "W4A4")
# name, label, factor, digits
Score = tuple[str, str, float, int]
SCORES: tuple[Score, ...] = (
    ("error", "error, points", 100, 2),
    ("nll", "NLL", 1, 4),
    ("ece", "ECE, points", 100, 2),
    ("mutual_information", "mutual information", 1, 4),
)
ALONE: tuple[Score, ...] = (("nll", "NLL", 1, 4), ("mutual_information", "mutual information", 1, 4))
LAST = "logits"
ENDS = {"means": "where the means err least (before)", "drawn": "where drawn weights err least"}
MASKS = {"exact": "one bit", "product": "on the product's grid"}


def _changes(pairs: Sequence[Pair]) -> list[str]:
    if not pairs:
        return [NONE] * len(SCORES)
    return [interval(change(pairs, name, factor), digits) for name, _, factor, digits in SCORES]


def _legend(held: Rows) -> str:
    seeds = len(held.frame.values("seed"))
    return f"Change to float, paired, with its 95 % interval over {seeds} seeds; calibrated, 20 draws."


def noise(studies: Studies) -> Lines:
    """Gaussian weights of 4 bits, with ε or σ of 2 to 8: beside float, and beside 8 bits of the same."""
    held = studies["noise-bits"]
    rows = []
    for part, words in (("noise", "ε"), ("sigma", "σ")):
        most = _by_bits(held, part, BITS[-1])
        for place, bits in enumerate(BITS):
            pairs = _by_bits(held, part, bits)
            alone = [NONE] * len(ALONE) if bits == BITS[-1] else [_less(pairs, most, one) for one in ALONE]
            changes = _changes(pairs)
            rows.append(["" if place else words, str(bits), *changes, *alone])
    head = ["`bbb`, W4A4", "bits", *(label for _, label, _, _ in SCORES)]
    head += [f"{label} less that of {BITS[-1]} bits" for _, label, _, _ in ALONE]
    return [*table(head, rows), "", _legend(held), "", *_told(held)]


def _by_bits(held: Rows, part: str, bits: int) -> list[Pair]:
    return held.pairs(training="calibrated", method="bbb", scheme=f"default, {part}={bits}")


def _less(pairs: Sequence[Pair], most: Sequence[Pair], one: Score) -> str:
    name, _, factor, digits = one
    return interval(_apart(pairs, most, name).scaled(factor), digits)


def _apart(pairs: Sequence[Pair], most: Sequence[Pair], name: str) -> Estimate:
    """Paired: the same float network, the same noise, other bits."""
    base = {pair.unit: score(pair.quantised, name) for pair in most}
    return estimate({pair.unit: score(pair.quantised, name) - base[pair.unit] for pair in pairs})


def _told(held: Rows) -> Lines:
    """The most that fewer bits lose of NLL, and the most that the interval leaves open."""
    said: Lines = []
    for part, words in (("noise", "ε"), ("sigma", "σ")):
        most = _by_bits(held, part, BITS[-1])
        found = {bits: _apart(_by_bits(held, part, bits), most, "nll") for bits in BITS[:-1]}
        worst = max(found, key=lambda bits: found[bits].value)
        ends = [high for one in found.values() if (high := one.bounds()[1]) is not None]
        open_ = f"; the intervals leave room for {number(max(ends), 4)} at most" if ends else ""
        said.append(
            f"- Against {BITS[-1]} bits of {words}, fewer lose at most {signed(found[worst].value, 4)} nat "
            f"({worst} bits){open_}."
        )
    return said


def grids(studies: Studies) -> Lines:
    """What the old and the new end of the weights' grid do to the last layer, by the bits of ε."""
    path = studies.path("noise-grids")
    if not path.is_file():
        raise Missing(f"{path} is not there")
    with path.open(encoding="utf-8", newline="") as file:
        held = [row for row in csv.DictReader(file) if row["layer"] == LAST]
    rows = []
    for end, words in ENDS.items():
        for place, bits in enumerate(sorted({int(row["noise"]) for row in held})):
            here = [row for row in held if (row["end"], int(row["noise"])) == (end, bits)]
            cells = (" / ".join(shown(row) for row in here) for shown in (_share, _nll_of))
            rows.append(["" if place else words, str(bits), *cells])
    seeds = len({row["seed"] for row in held})
    legend = (
        f"The layer `{LAST}`, a number a seed ({seeds} seeds). Bold: the layer draws on one grid, since that "
        "keeps its variance to a tenth, and that of 19 channels in 20 to a quarter."
    )
    head = ["the weights' grid ends", "bits of ε", "share of the variance that one grid keeps", "NLL"]
    return [*table(head, rows), "", legend, "", _one_or_two(held)]


def _share(row: Mapping[str, str]) -> str:
    share = number(float(row["kept"]), 3)
    return f"**{share}**" if row["grids"] == "1" else share


def _nll_of(row: Mapping[str, str]) -> str:
    nll = number(float(row["nll"]), 4)
    return f"**{nll}**" if row["grids"] == "1" else nll


def _one_or_two(held: Sequence[Mapping[str, str]]) -> str:
    """What one grid costs where it clips the noise of the largest weights: within seeds that have both."""
    lost: list[float] = []
    old = [row for row in held if row["end"] == "means"]
    for seed in sorted({row["seed"] for row in old}):
        by_grids = {
            grids: [float(row["nll"]) for row in old if (row["seed"], row["grids"]) == (seed, grids)]
            for grids in ("1", "2")
        }
        if all(by_grids.values()):
            lost.append(mean(by_grids["1"]) - mean(by_grids["2"]))
    if not lost:
        return "No seed has both."
    return (
        f"Under the old rule, one grid costs {number(min(lost), 3)} to {number(max(lost), 3)} nat within a "
        f"seed ({len(lost)} seeds have both)."
    )


def mask(studies: Studies) -> Lines:
    """The mask as one bit, and as the paper's quantised product."""
    held = studies["noise-bits"]
    rows = []
    for kind, words in MASKS.items():
        for place, bits in enumerate(("W4A4", "W4A3", "W4A2")):
            scheme = f"default, mask={kind}"
            pairs = held.pairs(training="calibrated", method="mcd", precision=bits, scheme=scheme)
            rows.append(["" if place else words, bits, *_changes(pairs)])
    head = ["mask of `mcd`", "bits", *(label for _, label, _, _ in SCORES)]
    return [*table(head, rows), "", _legend(held)]


def draws(studies: Studies) -> Lines:
    """The NLL by the number of draws."""
    held = studies["draws"]
    rows = []
    for method in held.present("method", METHODS):
        for place, bits in enumerate(PRECISIONS):
            cells = [_nll(held, method, bits, count) for count in COUNTS]
            rows.append(["" if place else named(method), bits, *cells])
    seeds = len(held.frame.values("seed"))
    legend = f"NLL by the number of draws, mean over {seeds} seeds; integers calibrated, not trained."
    return [*table(["", "bits", *map(str, COUNTS)], rows), "", legend]


def _nll(held: Rows, method: str, bits: str, count: int) -> str:
    found = [score(row, "nll") for row in held.done(method=method, precision=bits, draws=count)]
    return number(mean(found), 4) if found else NONE


TABLES: Mapping[str, Callable[[Studies], Lines]] = {
    **published_made.tables("noise-bits", "draws"),
    "noise": noise,
    "grids": grids,
    "mask": mask,
    "draws": draws,
}
