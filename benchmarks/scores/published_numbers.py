"""Numbers of the published pages: rows beside their float rows, intervals, and how both are written.

Splits and seeds are repeats. Where a study has splits, seeds of one split are averaged first, and Student's t
has as many degrees of freedom as there are splits less one; else the seeds are what varies.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import TypeVar

import numpy as np

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.analysis.intervals import (
    Estimate,
    Unit,
    cluster_means,
    error_of_mean,
    estimate,
    several_folds,
)
from qbayes.lab.analysis.pairs import Pair, differences, overlap, paired, score
from qbayes.lab.analysis.run_groups import COLLAPSE_REGRESSION, has_collapsed
from qbayes.lab.report.charts.chart import FLOAT

METHODS = ("pointwise", "mcd", "bbb", "sghmc")
EQUAL = ("W8A8", "W6A6", "W5A5", "W4A4", "W3A3", "W2A2")
ACTIVATIONS = ("W8A7", "W8A6", "W8A5", "W8A4", "W8A3")
WEIGHTS = ("W7A7", "W6A7", "W5A7", "W4A7", "W3A7")
PLAIN = ("default", "paper")  # schemes without a change
NONE = "–"
Lines = list[str]


class Missing(Exception):
    """The rows of a study that a table needs are not there."""


class Rows:
    """A study's rows by what they are; a tuple means any of its values.

    ``pairs`` are those of the plain scheme, and trained, unless they are asked for otherwise.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._done = _indexed((row, row) for row in frame.rows)
        self._failed = _indexed((row, row) for row in frame.failed)
        self._pairs = _indexed((pair.quantised, pair) for pair in paired(frame))

    def done(self, **columns: object) -> list[Row]:
        return _chosen(self._done, columns)

    def floats(self, **columns: object) -> list[Row]:
        return self.done(precision=FLOAT, **columns)

    def failed(self, **columns: object) -> list[Row]:
        return _chosen(self._failed, columns)

    def pairs(self, *, training: str = "trained", scheme: object = PLAIN, **columns: object) -> list[Pair]:
        return _chosen(self._pairs, {"training": training, "scheme": scheme, **columns})

    def present(self, column: str, names: Iterable[str]) -> list[str]:
        """Those of the names that a row has in the column."""
        held = set(self.frame.values(column))
        return [name for name in names if name in held]

    def tasks(self) -> list[str]:
        return self.frame.values("task")


T = TypeVar("T")
Index = dict[tuple[object, ...], list[tuple[Row, T]]]
_KEYS = ("task", "method", "precision")


def _indexed(found: Iterable[tuple[Row, T]]) -> "Index[T]":
    index: Index[T] = {}
    for row, one in found:
        index.setdefault(tuple(row.get(name) for name in _KEYS), []).append((row, one))
    return index


def _chosen(index: "Index[T]", columns: Mapping[str, object]) -> list[T]:
    wanted = {name: value if isinstance(value, tuple | list) else (value,) for name, value in columns.items()}
    places = [(place, wanted.pop(name)) for place, name in enumerate(_KEYS) if name in wanted]
    return [
        one
        for key, found in index.items()
        if all(key[place] in values for place, values in places)
        for row, one in found
        if all(row.get(name) in values for name, values in wanted.items())
    ]


class Studies:
    """The tables of results in a folder, each read once: ``studies["uci"]`` is ``uci.csv``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Rows] = {}

    def __contains__(self, name: str) -> bool:
        return self.path(name).is_file()

    def __getitem__(self, name: str) -> Rows:
        if name not in self:
            raise Missing(f"{self.path(name)} is not there")
        if name not in self._read:
            self._read[name] = Rows(Frame.read(self.path(name)))
        return self._read[name]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.csv"


def spread_of(rows: Iterable[Row], metric: str) -> Estimate:
    """Mean over the repeats with its plain standard error, as the literature's tables have it.

    It is not corrected for the overlap of splits, to stand beside theirs; intervals of changes are.
    """
    units: dict[Unit, float] = {(row.get("fold"), row["seed"]): score(row, metric) for row in rows}
    return estimate(units, overlap=0.0)


def change(pairs: Sequence[Pair], metric: str, factor: float = 1.0) -> Estimate:
    """The mean of ``quantised − float`` over the repeats, times a factor."""
    return estimate(differences(pairs, metric), overlap=overlap(pairs)).scaled(factor)


def ratio(pairs: Sequence[Pair], metric: str) -> Estimate:
    """Per cent by which the mean over the repeats is above that of float.

    Ratio of means ``r = q̄ / f̄``, so that a split with a small error does not count more; its standard error
    is that of the mean of ``(q − r f) / f̄``, repeat by repeat (the delta method), for splits with the
    correction for their overlap.
    """
    both = [pair for pair in pairs if pair.has(metric)]
    after = cluster_means({pair.unit: score(pair.quantised, metric) for pair in both})
    before = cluster_means({pair.unit: score(pair.float, metric) for pair in both})
    if len(before) == 0 or before.mean() == 0:
        return Estimate(math.nan, math.nan, 0, 0)
    with np.errstate(invalid="ignore"):
        times = float(after.mean() / before.mean())
        apart = (after - times * before) / before.mean()
        splits = several_folds(pair.unit for pair in both)
        error = error_of_mean(apart, overlap(both) if splits else 0.0)
    return Estimate(100 * (times - 1), 100 * error, len(apart) - 1, len(both))


def median_over(tasks: Iterable[str], number: Callable[[str], float]) -> float:
    """The median of a number over data sets; NaN without any."""
    found = [number(task) for task in tasks]
    return median(found) if found else math.nan


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Of few numbers, as they are: where one is infinite, so is the mean, and there is no deviation."""
    if not all(map(math.isfinite, values)):
        return (math.inf if values else math.nan), math.nan
    return mean(values), stdev(values) if len(values) > 1 else math.nan


def share_collapsed(pairs: Sequence[Pair], failed: int = 0) -> float:
    """Per cent of the runs that collapsed; those that failed did."""
    runs = len(pairs) + failed
    return 100 * (sum(map(has_collapsed, pairs)) + failed) / runs if runs else math.nan


def collapsed_alone(row: Row) -> bool:
    """Whether a float run of a regression errs like an answer by the mean."""
    return score(row, "rmse") > COLLAPSE_REGRESSION * float(row["target_deviation"])


# ---- how numbers are written


def number(value: float, digits: int) -> str:
    if math.isnan(value):
        return NONE
    return "∞" if math.isinf(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int) -> str:
    """With its sign: a true minus, and none before zero."""
    if not math.isfinite(value):
        return number(value, digits)
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def plus_minus(value: float, spread: float, digits: int) -> str:
    """``2.90 ± 0.15``; without a spread the value alone."""
    return number(value, digits) + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")


def interval(found: Estimate, digits: int) -> str:
    """``+0.3 [−0.1, +0.7]``; of one run, or without end, the value alone."""
    low, high = found.bounds()
    if low is None or high is None:
        return signed(found.value, digits)
    return f"{signed(found.value, digits)} [{signed(low, digits)}, {signed(high, digits)}]"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """A table in Markdown."""
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


def named(method: str) -> str:
    return f"`{method}`"
