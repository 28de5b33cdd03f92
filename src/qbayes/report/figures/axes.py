"""Any other axis of a study (draws, bits of the noise, a rate): every score over it, one line a method."""

from collections import defaultdict
from collections.abc import Sequence

from qbayes.report.chart import Chart
from qbayes.report.figures.base import FIGURES, Figure, chart_name
from qbayes.report.figures.points import (
    COLUMNS,
    by,
    by_method,
    choice_name,
    free_axes,
    line,
    naming,
    needs_log,
    note_of,
    other_axes,
    unit,
)
from qbayes.report.figures.sweep import MAIN, MORE, NAMES
from qbayes.report.frame import Frame, Row, natural

LABELS = {"evaluate.draws": "draws", "precision.noise": "bits of ε", "precision.sigma": "bits of σ"}
METRICS = (*MAIN, "confusion/auroc", *MORE)


@FIGURES.register("axes")
class Axes(Figure):
    """Scores over each axis that the figures over bits do not show."""

    name = "axes"
    title = "Over the study's other axes"
    caption = "Means over seeds; whiskers: the lowest and the highest seed."
    place = 5

    def draw(self, frame: Frame) -> list[Chart]:
        charts: list[Chart] = []
        for axis, rows in {**_plain_axes(frame), **_scheme_axes(frame)}.items():
            columns = _apart(frame, rows, axis)
            named = [column for column in naming(rows, columns) if not _said_by_precision(rows, column)]
            for some in by(
                rows, lambda row, columns=columns: tuple(str(row.get(c)) for c in columns)
            ).values():
                chosen = {choice_name(column): str(some[0].get(column)) for column in named}
                charts += [chart for metric in METRICS for chart in _chart(axis, some, chosen, metric)]
        return charts


def _plain_axes(frame: Frame) -> dict[str, list[Row]]:
    return {axis: [row for row in frame.rows if row.get(axis) is not None] for axis in other_axes(frame)}


def _scheme_axes(frame: Frame) -> dict[str, list[Row]]:
    """Options that a scheme names ("default, noise=4") and that vary: axes too, inside an axis of tables.

    The rows of such an axis have the option as its value, and the scheme without it.
    """
    found: dict[str, list[Row]] = defaultdict(list)
    for row in frame.rows:
        base, *options = str(row.get("scheme")).split(", ")
        for option in options:
            name, equals, value = option.partition("=")
            if equals:
                rest = ", ".join([base, *(other for other in options if other != option)])
                axis = f"axis:precision.{name}"
                found[axis].append({**row, "scheme": rest, axis: int(value) if value.isdecimal() else value})
    known = set(other_axes(frame))
    return {axis: rows for axis, rows in found.items() if axis not in known and len(_values(rows, axis)) > 1}


def _apart(frame: Frame, rows: Sequence[Row], axis: str) -> list[str]:
    """The columns that split the rows: all that vary, except those that say what the axis says."""
    others = [other for other in free_axes(frame) if other != axis]
    return [column for column in (*COLUMNS, "precision", *others) if not _follows(rows, column, axis)]


def _said_by_precision(rows: Sequence[Row], column: str) -> bool:
    """Whether the precision says it already, as it does for the scheme of float."""
    return column not in ("task", "precision") and _follows(rows, column, "precision")


def _follows(rows: Sequence[Row], column: str, axis: str) -> bool:
    """Whether each value of the axis has one value of the column, and not all have the same."""
    of_value = {str(value): _values(some, column) for value, some in by(rows, lambda row: row[axis]).items()}
    return all(len(found) == 1 for found in of_value.values()) and len(_values(rows, column)) > 1


def _values(rows: Sequence[Row], column: str) -> set[str]:
    return {str(row.get(column)) for row in rows}


def _chart(axis: str, rows: Sequence[Row], chosen: dict[str, str], metric: str) -> list[Chart]:
    values = sorted({row[axis] for row in rows}, key=natural)
    numeric = all(isinstance(value, int | float) for value in values)
    if len(values) < 2:
        return []
    made = []
    left_out = {}
    for method, some in by_method(rows).items():
        places = by(some, lambda row: float(row[axis]) if numeric else str(row[axis]))
        series, missing = line(method, places, metric)
        if series is not None:
            made.append(series)
            left_out[series.name] = missing
    if not made:
        return []
    name = choice_name(axis)
    shown = NAMES.get(metric, unit(metric).label)
    choices = {"axis": name, **chosen, "metric": shown}
    chart = Chart(
        name=chart_name(Axes.name, choices),
        title=f"{shown} over {name}, {rows[0].get('task')}",
        x_label=LABELS.get(name, name),
        y_label=unit(metric).axis if metric not in NAMES else f"{shown}, nat",
        kind="lines",
        series=tuple(made),
        log_y=needs_log(made),
        note=note_of(left_out),
        choices=choices,
        categories=() if numeric else tuple(str(value) for value in values),
        log_x=numeric and values[0] > 0 and values[-1] >= 20 * values[0],
        main=metric in MAIN,
    )
    return [chart]
