"""Do backends agree? Shares of codes that differ, and the same program's scores on two of them."""

from collections.abc import Sequence

from qbayes.report.chart import Chart, Series
from qbayes.report.figures.base import FIGURES, Figure, chart_name
from qbayes.report.figures.points import (
    COLUMNS,
    REPEATS,
    Group,
    by,
    by_method,
    free_axes,
    groups_of,
    label_of,
    number,
    point,
    precision_order,
    unit,
)
from qbayes.report.frame import Frame, Row

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
        for group in groups_of(frame, apart=("backend",)):
            measured = sorted({key for row in group.rows for key in row if key.startswith("agreement/")})
            for column in measured:
                charts += _codes(group, column)
            for backend in sorted({str(row.get("backend")) for row in group.rows} - {REFERENCE, "float"}):
                charts += [chart for m in METRICS for chart in _scores(group, backend, m, columns)]
        return charts


def _codes(group: Group, column: str) -> list[Chart]:
    rows = [row for row in group.rows if number(row, column) is not None]
    if not rows:
        return []
    backend = column.partition("/")[2]
    order = precision_order((str(row.get("precision")) for row in rows), rows)
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
    of_name = by(rows, lambda row: str(row.get("precision")))
    made = {name: point(of_name[name], column, 100.0) for name in order if name in of_name}
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


def _scores(group: Group, backend: str, metric: str, columns: Sequence[str]) -> list[Chart]:
    """The score on one backend over that on the reference, a point a run."""
    sides = {
        side: {
            tuple(str(row.get(c)) for c in columns): row for row in group.rows if row.get("backend") == side
        }
        for side in (REFERENCE, backend)
    }
    pairs = [
        (sides[REFERENCE][key], sides[backend][key]) for key in sides[REFERENCE] if key in sides[backend]
    ]
    made: list[Series] = []
    for method in by_method(row for row, _ in pairs):
        scale = unit(metric).scale
        found = [
            (scale * x, scale * y, f"{here.get('precision')}, seed {here.get('seed')}")
            for here, there in pairs
            if here.get("method") == method
            and (x := number(here, metric)) is not None
            and (y := number(there, metric)) is not None
        ]
        if found:
            x, y, labels = zip(*found, strict=True)
            made.append(Series(label_of(method), method, x=x, y=y, labels=labels))
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
        choices=choices,
        diagonal=True,
    )
    return [chart]
