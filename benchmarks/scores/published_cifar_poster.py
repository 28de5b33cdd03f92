"""The paper's own numbers on CIFAR-10, read off its poster, and why ours differ, cell by cell."""

from collections.abc import Mapping
from dataclasses import dataclass

from published_cifar_rows import EXACT, Held, named_once
from published_images import ERROR, PER_BATCH, PER_LARGE_BATCH, Score
from published_numbers import ACTIVATIONS, NONE, WEIGHTS, Lines, Missing, named, number, signed, table

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import score
from qbayes.lab.analysis.run_groups import has_collapsed

# Per cent, read off the authors' poster: the mean of three seeds. Its ECE is a mean over batches, of 1024
# images for the quantised pointwise and sghmc networks and of 256 for all else.
GRID = ("float", *ACTIVATIONS, *WEIGHTS)
POSTER: Mapping[str, Mapping[str, tuple[float | None, ...]]] = {
    "error": {
        "pointwise": (8.13, 8.10, 8.55, 10.31, 17.73, 74.5, None, 8.25, 8.45, 9.27, 13.54),
        "mcd": (7.22, 7.38, 7.90, 9.63, 90.0, 90.0, None, 7.45, 7.63, 8.04, 11.61),
        "bbb": (8.27, 8.23, 8.61, 10.31, 15.87, 49.7, None, 8.23, 8.57, 10.25, 28.03),
        "sghmc": (7.70, 7.82, 7.89, 8.86, 13.90, 51.7, None, 7.83, 7.82, 8.29, 15.52),
    },
    "ece": {
        "pointwise": (6.88, 6.53, 7.05, 8.53, 14.85, 24.05, None, None, 6.92, 7.62, 10.83),
        "mcd": (3.67, 3.77, 4.68, 8.96, 21.58, 1.79, None, None, 3.94, 4.63, 9.23),
        "bbb": (3.10, 3.32, 3.39, 4.25, 7.43, 13.07, None, None, 3.43, 3.94, 6.12),
        "sghmc": (3.02, 1.79, 1.61, 2.39, 8.76, 16.34, None, None, 1.57, 2.45, 12.99),
    },
}
# points by which two rises above float may differ and still be called alike.
ALIKE = 1.0
MIDPOINT = 0.5
# at chance, of ten classes.
CHANCE = 90.0
REASONS = {
    "F": "the float networks differ: another network ({network}), {epochs} epochs and not 300, {seeds}",
    "=": f"the rise above float is the poster's, to {ALIKE:g} point",
    "C": "a network has collapsed here, on the poster, or in both: what is left says little",
    "M": "the mask: on the product's grid the network collapses, with a mask of one bit it does not",
    ">": "the rise is larger. {apart}",
    "<": "the rise is smaller. {apart}",
}
# of a rise that is not the poster's the rows name no single cause.
_APART = (
    "What differs besides: the number of weights, {tuned} of fine-tuning and not 10 epochs, weights that are "
    "clipped to their bits (the paper's were not)"
)


@dataclass(frozen=True)
class Cell:
    """One place of the grid in one metric: here and on the poster, in per cent, with the float networks'."""

    here: float
    here_float: float
    poster: float | None
    poster_float: float

    @property
    def rise(self) -> float:
        return self.here - self.here_float

    @property
    def poster_rise(self) -> float | None:
        return None if self.poster is None else self.poster - self.poster_float

    @property
    def fallen(self) -> bool:
        """Of an error: whether it is above the midpoint of float and chance."""
        return _depth(self.here, self.here_float) > MIDPOINT

    @property
    def theirs_fallen(self) -> bool:
        return self.poster is not None and _depth(self.poster, self.poster_float) > MIDPOINT

    @property
    def rises(self) -> str:
        theirs = NONE if self.poster_rise is None else signed(self.poster_rise, 2)
        return f"{signed(self.rise, 2)} / {theirs}"

    @property
    def written(self) -> str:
        theirs = NONE if self.poster is None else number(self.poster, 2)
        return f"{number(self.here, 2)} / {theirs}"


def grid(held: Held) -> Lines:
    """The paper's grid here, with its mask and with the exact one, beside the poster's, and the reasons."""
    rows, used = [], list[str]()
    for method in held.papers.present("method", POSTER["error"]):
        floats = held.papers.floats(method=method)
        for scheme in ("paper", EXACT):
            found = {
                bits: held.papers.pairs(method=method, precision=bits, scheme=scheme) for bits in GRID[1:]
            }
            if not floats or not any(found.values()):
                continue
            name = named(method) + (", mask of one bit" if scheme == EXACT else "")
            for place, bits in enumerate(GRID):
                some = floats if bits == "float" else [pair.quantised for pair in found[bits]]
                if not some or (bits == "float" and scheme == EXACT):
                    continue
                cells = {metric: cell_of(method, place, bits, floats, some, metric) for metric in POSTER}
                stands = _exact_stands(held, method, bits)
                texts: list[str] = []
                for cell in cells.values():
                    why = _why(cell, cells["error"], method == "mcd" and scheme != EXACT and stands)
                    why += ["M"] if scheme == EXACT and _only_theirs_fell(cells["error"]) else []
                    used += why
                    texts += [cell.written, cell.rises, " ".join(why)]
                rows.append([name, bits, *texts])
    if not rows:
        raise Missing("no run by the paper's scheme")
    head = ["", "bits", "error, %: here / poster", "rise: here / poster", "why"]
    head += ["ECE by batches, %: here / poster", "rise: here / poster", "why"]
    return [*table(head, named_once(rows)), "", *_legend(held, used)]


def _legend(held: Held, used: list[str]) -> Lines:
    seeds = len({row["seed"] for row in held.papers.frame.rows if row["precision"] != "float"})
    tuned = sorted({int(row["axis:quantize.epochs"]) for row in held.papers.frame.rows if _tuned(row)})
    words = {
        "network": held.network.words,
        "epochs": str(held.section("pointwise", "training")["epochs"]),
        "seeds": "one seed and not three" if seeds == 1 else f"{seeds} seeds",
    }
    words["apart"] = _APART.format(
        tuned=f"{' or '.join(map(str, tuned))} epochs" if tuned else "other epochs"
    )
    lines = [
        "Per cent, and points for the rise above the float network of the same column. The poster's are "
        "means of three seeds. Its ECE is a mean over batches, of 1024 images for the quantised `pointwise` "
        "and `sghmc` and of 256 for all else; so it falls where the batch grows, and ours beside it does the "
        "same. Why they differ:",
        "",
    ]
    return lines + [f"- {sign}: {text.format(**words)}." for sign, text in REASONS.items() if sign in used]


def _tuned(row: Row) -> bool:
    return row["precision"] != "float" and row.get("axis:quantize.epochs") is not None


def measure_of(metric: str, method: str, bits: str) -> Score:
    """The score that the poster has in this cell."""
    if metric == "error":
        return ERROR
    return PER_LARGE_BATCH if method in ("pointwise", "sghmc") and bits != "float" else PER_BATCH


def cell_of(method: str, place: int, bits: str, floats: list[Row], some: list[Row], metric: str) -> Cell:
    here = {
        of: mean_of(rows, measure_of(metric, method, of)) for of, rows in (("float", floats), (bits, some))
    }
    of_poster = POSTER[metric][method]
    assert of_poster[0] is not None
    return Cell(here[bits], here["float"], of_poster[place], of_poster[0])


def _why(cell: Cell, error: Cell, by_mask: bool) -> list[str]:
    """The signs of a cell: the float network first, then what quantising did.

    ``error`` is the cell of the error at the same place, which says what has collapsed; ``by_mask`` whether
    the same network with a mask of one bit stands.
    """
    if cell.poster is None or cell.poster_rise is None:
        return []
    if error.fallen or error.theirs_fallen:
        return ["C", "M"] if by_mask else ["C"]
    apart = cell.rise - cell.poster_rise
    if cell.poster == cell.poster_float and cell.here == cell.here_float:
        return ["F"]
    return ["F", "=" if abs(apart) <= ALIKE else ">" if apart > 0 else "<"]


def _only_theirs_fell(error: Cell) -> bool:
    return error.theirs_fallen and not error.fallen


def _depth(error: float, reference: float) -> float:
    return (error - reference) / (CHANCE - reference)


def _exact_stands(held: Held, method: str, bits: str) -> bool:
    pairs = held.papers.pairs(method=method, precision=bits, scheme=EXACT) if bits != "float" else []
    return bool(pairs) and not any(map(has_collapsed, pairs))


def mean_of(rows: list[Row], of: Score) -> float:
    """The mean of a score over rows, in the units of its label."""
    name, _, factor, _ = of
    return sum(factor * score(row, name) for row in rows) / len(rows)
