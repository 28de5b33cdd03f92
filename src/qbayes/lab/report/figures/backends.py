"""Do backends agree? Shares of codes that differ, and the same program's scores on two of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure, Series
from qbayes.lab.report.charts.groups import (
    COLUMNS,
    REPEATS,
    Group,
    bits,
    by_method,
    free_axes,
    groups_of,
    precision_of,
    precision_order,
    repeats,
)
from qbayes.lab.report.charts.points import cloud, number, unit, with_spread

REFERENCE = "reference"
METRICS = ("error", "ece", "nll", "entropy", "rmse")


@FIGURES.register("backends")
class Backends(Figure):
    """Agreement with the reference, by precision, and scores against its scores."""

    name = "backends"
    title = "Agreement between backends"
    caption = "Against the exact reference: codes that differ, and the scores of the same runs."
    place = 60

    def draw(self, frame: Frame) -> list[Chart]:
        charts: list[Chart] = []
        columns = [
            column for column in (*COLUMNS, *REPEATS, *free_axes(frame), "float") if column != "backend"
        ]
        measured = sorted(name for name in frame.columns() if name.startswith("agreement/"))
        for group in groups_of(frame, apart=("backend",)):
            for column in measured:
                charts += _codes(group, column)
            for backend in sorted({str(row.get("backend")) for row in group.rows} - {REFERENCE, "float"}):
                pairs = _pairs(group, backend, columns)
                charts += [chart for metric in METRICS for chart in _scores(group, backend, metric, pairs)]
        return charts


def _codes(group: Group, column: str) -> list[Chart]:
    rows = [row for row in group.rows if number(row, column) is not None]
    backend = column.partition("/")[2]
    order = precision_order({precision_of(row): bits(row) for row in rows})
    return Backends.chart(
        {**group.choices, "backend": backend, "metric": "differing codes"},
        [_bars(method, some, column, order) for method, some in by_method(rows).items()],
        title=f"Codes of {backend} that differ from the reference, {group.task}",
        x_label="precision",
        y_label="differing codes, %",
        kind="bars",
        categories=tuple(order),
    )


def _bars(method: str, rows: Sequence[Row], column: str, order: Sequence[str]) -> Series:
    """Shares that differ, in per cent: 100 less what agrees; the lowest agreement is the highest bar."""
    found = repeats(rows, precision_of)
    made = {name: found[name].point(column, 100.0) for name in order if name in found}
    points = {
        name: replace(point, mean=100 - point.mean, low=100 - point.high, high=100 - point.low)
        for name, point in made.items()
        if point is not None
    }
    return with_spread(method, points, always=True)


def _pairs(group: Group, backend: str, columns: Sequence[str]) -> list[tuple[Row, Row]]:
    """The same run on the reference and on a backend."""
    sides = {
        side: {
            tuple(str(row.get(c)) for c in columns): row for row in group.rows if row.get("backend") == side
        }
        for side in (REFERENCE, backend)
    }
    first, second = sides.values()
    return [(first[key], second[key]) for key in first if key in second]


def _scores(group: Group, backend: str, metric: str, pairs: Sequence[tuple[Row, Row]]) -> list[Chart]:
    """The score on one backend over that on the reference, a point a run."""
    made: list[Series] = []
    endless, shown = 0, unit(metric)
    for method in by_method(row for row, _ in pairs):
        found = [
            (shown.scale * x, shown.scale * y, f"{here.get('precision')}, seed {here.get('seed')}")
            for here, there in pairs
            if here.get("method") == method
            and (x := number(here, metric)) is not None
            and (y := number(there, metric)) is not None
        ]
        kept = [point for point in found if math.isfinite(point[0])]
        endless += len(found) - len(kept)
        made += [cloud(method, kept)] if kept else []
    return Backends.chart(
        {**group.choices, "backend": backend, "metric": shown.label},
        made,
        title=f"{shown.label} on {backend} and on the reference, {group.task}",
        x_label=f"{shown.axis}, on the reference",
        y_label=f"{shown.axis}, on {backend}",
        kind="scatter",
        note=f"Left out, because they are not finite on the reference: {endless} runs." if endless else "",
        diagonal=True,
    )
