"""From the repeats of a run to a point with its spread, and from points to a line."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qbayes.lab.analysis.frame import Row
from qbayes.lab.report.charts.chart import STYLES, Beyond, Series
from qbayes.metrics.scores import METRICS, Metric


@dataclass(frozen=True)
class Point:
    """Mean over seeds of the mean over folds; ``low`` and ``high`` are the lowest and highest seed.

    Of ``seeds``, ``endless`` ones are not finite: then neither is the mean.
    """

    mean: float
    low: float
    high: float
    seeds: int
    folds: int
    endless: int = 0

    @property
    def label(self) -> str:
        folds = f", {self.folds} folds each" if self.folds > 1 else ""
        endless = f", {self.endless} not finite" if self.endless else ""
        return f"{self.seeds} seed{'s' if self.seeds > 1 else ''}{folds}{endless}"


class Repeats:
    """Rows that differ by seed and fold alone. Several figures ask for the same mean: it is made once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)
        self._points: dict[tuple[str, float], Point | None] = {}

    def point(self, column: str, scale: float = 1.0) -> Point | None:
        """The mean of a column; None where no row has it."""
        if (column, scale) not in self._points:
            self._points[column, scale] = self._make(column, scale)
        return self._points[column, scale]

    @cached_property
    def _seeds(self) -> list[list[Row]]:
        seeds: dict[Any, list[Row]] = defaultdict(list)
        for row in self.rows:
            seeds[row.get("seed")].append(row)
        return list(seeds.values())

    def _make(self, column: str, scale: float) -> Point | None:
        by_seed = (
            [scale * value for row in rows if (value := number(row, column)) is not None]
            for rows in self._seeds
        )
        measured = [values for values in by_seed if values]
        if not measured:
            return None
        means = [mean(values) for values in measured]
        folds = min(map(len, measured))
        endless = sum(not math.isfinite(one) for one in means)
        return Point(mean(means), min(means), max(means), len(means), folds, endless)


def number(row: Row, column: str) -> float | None:
    """The number in a column; None where there is none."""
    value = row.get(column)
    if isinstance(value, float):
        return value
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else None


def mean(values: Sequence[float]) -> float:
    """The exact mean; infinite, or NaN, where one of the values is."""
    try:
        return math.fsum(values) / len(values)
    except ValueError:  # infinities of both signs
        return math.nan


def points_at(places: Mapping[Any, Repeats], metric: str) -> dict[Any, Point | None]:
    """The means of a metric at each place, in the units of its axis."""
    scale = unit(metric).scale
    return {x: found.point(metric, scale) for x, found in places.items()}


def line(
    method: str, points: Mapping[Any, Point | None], *, name: str = "", dashed: bool = False
) -> tuple[Series | None, list[str]]:
    """One line of a chart, and the places left out because folds are missing there.

    A mean over some of the folds only would move with the folds that happen to be done.
    """
    found = {x: made for x, made in points.items() if made is not None}
    if not found:
        return None, []
    most = max(made.folds for made in found.values())
    left_out = [str(x) for x, made in found.items() if made.folds < most]
    whole = {x: made for x, made in found.items() if made.folds == most}
    kept = {x: made for x, made in whole.items() if math.isfinite(made.mean)}
    beyond = tuple(Beyond(x, made.mean, made.label) for x, made in whole.items() if x not in kept)
    series = with_spread(method, kept)
    return replace(series, name=name or series.name, dashed=dashed, beyond=beyond), left_out


def with_spread(method: str, points: Mapping[Any, Point], *, always: bool = False) -> Series:
    """The points of a method with their spread, where seeds were repeated, or ``always``."""
    found = points.values()
    spread = always or any(point.seeds > 1 for point in found)
    return Series(
        label_of(method),
        method,
        x=tuple(points),
        y=tuple(point.mean for point in found),
        low=tuple(point.low for point in found) if spread else None,
        high=tuple(point.high for point in found) if spread else None,
        labels=tuple(point.label for point in found),
    )


def lines(
    methods: Mapping[str, Mapping[Any, Point | None]], keep: Callable[[Series], bool] = lambda series: True
) -> tuple[list[Series], str]:
    """A line of each method, of those to ``keep``, and words for the points that wait for folds."""
    series: list[Series] = []
    left_out: dict[str, list[str]] = {}
    for method, points in methods.items():
        made, missing = line(method, points)
        if made is not None and keep(made):
            series.append(made)
            left_out[made.name] = missing
    return series, note_of(left_out)


def cloud(method: str, points: Iterable[tuple[float | str, float, str]]) -> Series:
    """Points as they are given: x, y and a label each."""
    listed = list(points)
    kept = [point for point in listed if math.isfinite(point[1])]
    return Series(
        label_of(method),
        method,
        x=tuple(x for x, _, _ in kept),
        y=tuple(y for _, y, _ in kept),
        labels=tuple(label for _, _, label in kept),
        beyond=tuple(Beyond(x, y, label) for x, y, label in listed if not math.isfinite(y)),
    )


def label_of(method: str) -> str:
    return STYLES[method].label if method in STYLES else method


@dataclass(frozen=True)
class Unit:
    """A metric on an axis: its label with the unit, and what its values are multiplied by."""

    label: str
    axis: str
    scale: float


def unit(metric: str) -> Unit:
    """Shares are drawn in per cent, all else as it is."""
    shown = METRICS.get(metric, Metric(metric, "", "neither"))
    if shown.unit == "share":
        return Unit(shown.label, f"{shown.label}, %", 100.0)
    words = {"nat": ", nat", "target": ", units of the target"}.get(shown.unit, "")
    return Unit(shown.label, f"{shown.label}{words}", 1.0)


def needs_log(series: Iterable[Series], factor: float = 30.0) -> bool:
    """Positive numbers over more than a factor do not fit one linear axis."""
    values = [value for one in series for value in one.y]
    return bool(values) and min(values) > 0 and max(values) > factor * min(values)


def note_of(left_out: Mapping[str, Sequence[str]]) -> str:
    """Words for the points that wait for folds."""
    parts = [f"{name} at {', '.join(places)}" for name, places in left_out.items() if places]
    return f"Left out, because folds are missing there: {'; '.join(parts)}." if parts else ""
