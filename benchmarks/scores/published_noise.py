"""The tables of docs/results/noise.md: the bits of ε, σ and the mask, and the number of draws."""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from published_numbers import METHODS, NONE, Lines, Rows, Studies, change, interval, named, number, table

from qbayes.report.pairs import Pair, score

BITS = (2, 3, 4, 5, 6, 8)
COUNTS = (1, 2, 5, 10, 20, 50, 100)
PRECISIONS = ("float", "W8A8", "W4A4")
# name, label, factor, digits
SCORES = (
    ("error", "error, points", 100, 2),
    ("nll", "NLL", 1, 4),
    ("ece", "ECE, points", 100, 2),
    ("mutual_information", "mutual information", 1, 4),
)
MASKS = {"exact": "one bit", "product": "on the product's grid"}


def _changes(pairs: Sequence[Pair]) -> list[str]:
    if not pairs:
        return [NONE] * len(SCORES)
    return [interval(change(pairs, name, factor), digits) for name, _, factor, digits in SCORES]


def _legend(held: Rows) -> str:
    seeds = len(held.frame.values("seed"))
    return f"Change to float, paired, with its 95 % interval over {seeds} seeds; calibrated, 20 draws."


def noise(studies: Studies) -> Lines:
    """Gaussian weights of 4 bits, with ε or σ of 2 to 8."""
    held = studies["noise-bits"]
    rows = []
    for part, words in (("noise", "ε"), ("sigma", "σ")):
        for place, bits in enumerate(BITS):
            pairs = held.pairs(training="calibrated", method="bbb", scheme=f"default, {part}={bits}")
            rows.append(["" if place else words, str(bits), *_changes(pairs)])
    head = ["`bbb`, W4A4", "bits", *(label for _, label, _, _ in SCORES)]
    return [*table(head, rows), "", _legend(held)]


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


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"noise": noise, "mask": mask, "draws": draws}
