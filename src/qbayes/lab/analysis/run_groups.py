"""Cells: the runs of a study that differ by seed and fold alone, and which of them claims are judged on.

A cell is one method at one precision on one task. The claims speak of quantisation-aware training, 20 draws
and one scheme of quantisation; a study may hold more (calibration only, draws from 1 to 100, ablations), so
``preferred`` picks, and says in the label of a cell what it picked.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from qbayes.lab.analysis.frame import AXIS, Frame, Row, axes, natural, once_a_frame
from qbayes.lab.analysis.intervals import Unit
from qbayes.lab.analysis.pairs import Pair, differences, paired, score
from qbayes.quant.precision import Precision

DRAWS = 20  # the paper's L
POINTWISE = "pointwise"
PLAIN_SCHEMES = ("default", "paper")
COLLAPSE = 0.5  # of the way from float to chance
COLLAPSE_REGRESSION = 0.9  # of the target's deviation
# what these sections set is told by columns of their own.
TOLD = frozenset({"task", "seed", "precision", "quantize", "evaluate"})
_REPEATED = frozenset({"task", "seed", "evaluate"})


@dataclass(frozen=True)
class Cell:
    """``extra`` holds what the study varies besides (``method.rate``, …)."""

    task: str
    network: str
    method: str
    recipe: str
    scheme: str
    training: str
    backend: str
    draws: int
    weight: int
    activation: int
    extra: tuple[tuple[str, str], ...]
    pairs: tuple[Pair, ...]

    @property
    def bits(self) -> str:
        return f"W{self.weight}A{self.activation}"

    @property
    def is_regression(self) -> bool:
        return "rmse" in self.pairs[0].quantised

    @property
    def bayesian(self) -> bool:
        return self.method != POINTWISE

    @property
    def setting(self) -> tuple[str, ...]:
        """What two methods must share to be compared. Draws do not count: pointwise may have one."""
        return self.task, self.network, self.recipe, self.scheme, self.training, self.backend

    @property
    def where(self) -> str:
        """``mnist lenet mcd`` and what is not the default."""
        return f"{self.task} {self.network} {self.method}{self._unusual()}"

    @property
    def label(self) -> str:
        return f"{self.task} {self.network} {self.method} {self.bits}{self._unusual()}"

    def losses(self) -> dict[Unit, float]:
        """What quantisation cost each run: points of error, or per cent of RMSE."""
        metric = "rmse" if self.is_regression else "error"
        found = differences(self.pairs, metric, relative=self.is_regression)
        return {which: 100 * value for which, value in found.items()}

    def depths(self) -> dict[Unit, float]:
        """How far each run is on the way to collapse, see ``collapse_depth``."""
        return {pair.unit: depth for pair in self.pairs if (depth := collapse_depth(pair)) is not None}

    def values(self, metric: str, side: str = "quantised") -> dict[Unit, float]:
        rows = [(pair.unit, getattr(pair, side)) for pair in self.pairs]
        return {which: score(row, metric) for which, row in rows if metric in row}

    def _unusual(self) -> str:
        parts = [f"{self.scheme} scheme"] if self.scheme != "default" else []
        parts += [f"recipe {self.recipe}"] if self.recipe != "default" else []
        parts += [self.training] if self.training != "trained" else []
        parts += [f"{self.draws} draws"] if self.draws != DRAWS and self.bayesian else []
        parts += [f"{name.removeprefix(AXIS)} {value}" for name, value in self.extra]
        return f" ({', '.join(parts)})" if parts else ""


def collapse_depth(pair: Pair) -> float | None:
    """Where a run stands between its float run and an answer without the input; None where it is unknown.

    Classification: ``(error − float) / (chance − float)`` with chance ``1 − 1/classes``; regression:
    ``rmse / deviation of the targets``.
    """
    row, reference = pair.quantised, pair.float
    if "rmse" in row:
        deviation = row.get("target_deviation")
        return score(row, "rmse") / float(deviation) if deviation else None
    classes = row.get("classes")
    if "error" not in row or "error" not in reference or not classes:
        return None
    chance, start = 1 - 1 / int(classes), score(reference, "error")
    return (score(row, "error") - start) / (chance - start) if start < chance else None


def has_collapsed(pair: Pair) -> bool:
    """Error above the midpoint between float and chance; RMSE above 0.9 of the target's deviation."""
    depth = collapse_depth(pair)
    limit = COLLAPSE_REGRESSION if "rmse" in pair.quantised else COLLAPSE
    return depth is not None and depth > limit


@once_a_frame
def cells(frame: Frame) -> list[Cell]:
    """Every quantised cell that has float partners, in natural order."""
    found: dict[tuple[Hashable, ...], list[Pair]] = defaultdict(list)
    for pair in paired(frame):
        found[_key(pair.quantised, free_axes(pair.quantised))].append(pair)
    made = [one for pairs in found.values() for one in _apart(pairs)]
    return sorted(
        made, key=lambda cell: (natural(cell.where), natural(cell.bits), repr(cell.setting), cell.draws)
    )


def preferred(frame: Frame, scheme: Callable[[str], bool] = lambda name: name in PLAIN_SCHEMES) -> list[Cell]:
    """The cells that claims are judged on.

    Of each method on a task: trained ones where there are any, 20 draws where there are, else the most, and
    the reference backend where there is one.
    """
    chosen: list[Cell] = []
    groups: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for cell in cells(frame):
        if scheme(cell.scheme):
            groups[cell.task, cell.network, cell.method, cell.recipe, cell.scheme].append(cell)
    for group in groups.values():
        kept = _most_wanted(group, lambda cell: (cell.training == "trained", cell.training))
        kept = _most_wanted(kept, lambda cell: (cell.draws == DRAWS, cell.draws))
        chosen += _most_wanted(kept, lambda cell: (cell.backend == "reference", cell.backend))
    return chosen


def sweeps(some: Iterable[Cell]) -> dict[str, dict[int, Cell]]:
    """The cells of one method by bits: activation bits at W8, weight bits at A7 (or A8), and both equal."""
    listed = list(some)
    weights = {cell.weight: cell for cell in listed if cell.activation == 7}
    if not any(width < 8 for width in weights):
        weights = {cell.weight: cell for cell in listed if cell.activation == 8}
    return {
        "activation": {cell.activation: cell for cell in listed if cell.weight == 8},
        "weight": weights,
        "both": {cell.weight: cell for cell in listed if cell.weight == cell.activation},
    }


def by_method(some: Iterable[Cell]) -> dict[tuple[str, ...], dict[str, list[Cell]]]:
    """Cells by setting, and in it by method (and what the study varies of the method)."""
    found: dict[tuple[str, ...], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in some:
        own = [value for name, value in cell.extra if name.startswith("axis:method")]
        shared = [f"{name}={value}" for name, value in cell.extra if not name.startswith("axis:method")]
        found[(*cell.setting, *shared)][" ".join([cell.method, *own])].append(cell)
    return {setting: dict(methods) for setting, methods in found.items()}


def beside_pointwise(some: Iterable[Cell]) -> Iterator[tuple[list[Cell], list[Cell]]]:
    """In each setting the cells of pointwise networks, beside those of each Bayesian method."""
    for methods in by_method(some).values():
        if POINTWISE in methods:
            yield from ((methods[POINTWISE], cells) for name, cells in methods.items() if name != POINTWISE)


def option(cell: Cell, name: str) -> str | None:
    """An option of the precision that the study set: by its axis, or in a scheme: ``default, noise=4``."""
    axis = cell.pairs[0].quantised.get(f"axis:precision.{name}")
    if axis is not None:
        return str(axis)
    written = re.search(rf"(?:^|, ){re.escape(name)}=([^,]+)", cell.scheme)
    return written[1] if written else None


def _most_wanted(some: Sequence[Cell], wish: Callable[[Cell], tuple[bool, object]]) -> list[Cell]:
    best = max((wish(cell) for cell in some), key=lambda wished: (wished[0], natural(wished[1])))
    return [cell for cell in some if wish(cell) == best]


def _apart(pairs: list[Pair]) -> list[Cell]:
    """One cell, or one for each place on the axes where the same seed and fold comes twice."""
    if len({pair.unit for pair in pairs}) == len(pairs):
        return [_cell(pairs, free_axes(pairs[0].quantised))]
    split: dict[tuple[tuple[str, str], ...], list[Pair]] = defaultdict(list)
    for pair in pairs:
        split[free_axes(pair.quantised, _REPEATED)].append(pair)
    return [_cell(some, extra) for extra, some in split.items()]


def _cell(pairs: list[Pair], extra: tuple[tuple[str, str], ...]) -> Cell:
    row = pairs[0].quantised
    names = ("task", "network", "method", "recipe", "training", "backend")
    return Cell(
        **{name: str(row.get(name)) for name in names},
        scheme=plain_scheme(str(row.get("scheme"))),
        draws=int(row.get("draws") or 0),
        weight=int(row["weight"]),
        activation=int(row["activation"]),
        extra=extra,
        pairs=tuple(sorted(pairs, key=lambda pair: str(pair.quantised["run"]))),
    )


def _key(row: Row, extra: Hashable) -> tuple[Hashable, ...]:
    names = ("task", "network", "method", "recipe", "training", "backend", "draws", "weight", "activation")
    return *(row.get(name) for name in names), plain_scheme(str(row.get("scheme"))), extra


@lru_cache(maxsize=1024)
def plain_scheme(scheme: str) -> str:
    """A scheme without options that say what it does anyway: ``default, mask=exact`` is ``default``."""
    preset, *changes = scheme.split(", ")
    if preset not in Precision.presets:
        return scheme
    usual = {f"{name}={value}" for name, value in Precision.preset(preset).to_json().items()}
    return ", ".join([preset, *(change for change in changes if change not in usual)])


def free_axes(row: Row, told: frozenset[str] = TOLD) -> tuple[tuple[str, str], ...]:
    """Places on axes of which no section is told by columns of its own."""
    free = (name for name in axes(row) if not _is_told(name.removeprefix(AXIS), told))
    return tuple((name, str(row[name])) for name in free)


def _is_told(path: str, told: frozenset[str]) -> bool:
    sections = {part.strip().partition(".")[0] for part in path.split("+")}
    return path in ("method", "network") or bool(told & sections)
