"""Do backends agree? Shares of codes that differ, and the same program's scores on two of them."""

import math
from collections.abc import Sequence

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure, Series, chart_name
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
from qbayes.lab.report.charts.points import cloud, label_of, number, unit

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
    if not rows:
        return []
    backend = column.partition("/")[2]
    order = precision_order({precision_of(row): bits(row) for row in rows})
    choices = {**group.choices, "backend": backend, "metric": "differing codes"}
    chart = Chart(
        name=chart_name(Backends.name, choices),
        title=f"Codes of {backend} that differ from the reference, {group.task}",
        x_label="precision",
        y_label="differing codes, %",
        kind="bars",
        series=tuple(_bars(method, some, column, order) for method, some in by_method(rows).items()),
        choices=choices,
        categories=tuple(order),
    )
    return [chart]


def _bars(method: str, rows: Sequence[Row], column: str, order: Sequence[str]) -> Series:
    """Shares that differ, in per cent: 100 less what agrees; the lowest agreement is the highest bar."""
    found = repeats(rows, precision_of)
    made = {name: found[name].point(column, 100.0) for name in order if name in found}
    points = {name: one for name, one in made.items() if one is not None}
    return Series(
        label_of(method),
        method,
        x=tuple(points),
        y=tuple(100 - one.mean for one in points.values()),
        low=tuple(100 - one.high for one in points.values()),
        high=tuple(100 - one.low for one in points.values()),
        labels=tuple(one.label for one in points.values()),
    )


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
    endless = 0
    for method in by_method(row for row, _ in pairs):
        scale = unit(metric).scale
        found = [
            (scale * x, scale * y, f"{here.get('precision')}, seed {here.get('seed')}")
            for here, there in pairs
            if here.get("method") == method
            and (x := number(here, metric)) is not None
            and (y := number(there, metric)) is not None
        ]
        kept = [point for point in found if math.isfinite(point[0])]
        endless += len(found) - len(kept)
        made += [cloud(method, kept)] if kept else []
    if not made:
        return []
    choices = {**group.choices, "backend": backend, "metric": unit(metric).label}
    chart = Chart(
        name=chart_name(Backends.name, choices),
        title=f"{unit(metric).label} on {backend} and on the reference, {group.task}",
        x_label=f"{unit(metric).axis}, on the reference",
        y_label=f"{unit(metric).axis}, on {backend}",
        kind="scatter",
        series=tuple(made),
        note=f"Left out, because they are not finite on the reference: {endless} runs." if endless else "",
        choices=choices,
        diagonal=True,
    )
    return [chart]
