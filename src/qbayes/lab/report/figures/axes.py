"""Any other axis of a study (draws, bits of the noise, a rate): every score over it, one line a method."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qbayes.lab.analysis.frame import Frame, Row, natural
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure, chart_name
from qbayes.lab.report.charts.groups import (
    COLUMNS,
    by,
    by_method,
    choice_name,
    free_axes,
    naming,
    other_axes,
    repeats,
)
from qbayes.lab.report.charts.points import Repeats, line, needs_log, note_of, points_at, unit
from qbayes.lab.report.charts.sweep import MAIN, MORE, NAMES

LABELS = {"evaluate.draws": "draws", "precision.noise": "bits of ε", "precision.sigma": "bits of σ"}
METRICS = (*MAIN, "confusion/auroc", *MORE)


@FIGURES.register("axes")
class Axes(Figure):
    """Scores over each axis that the figures over bits do not show."""

    name = "axes"
    title = "Over the study's other axes"
    caption = "Means over seeds and folds; whiskers: lowest and highest seed."
    place = 5

    def draw(self, frame: Frame) -> list[Chart]:
        charts: list[Chart] = []
        for axis, rows in {**_plain_axes(frame), **_scheme_axes(frame)}.items():
            columns = _apart(frame, rows, axis)
            # what the precision says already is not named, as the scheme of float.
            said = _told_by(rows, "precision", columns) - {"task", "precision"}
            named = [column for column in naming(rows, columns) if column not in said]
            for some in by(
                rows, lambda row, columns=columns: tuple(str(row.get(c)) for c in columns)
            ).values():
                chosen = {choice_name(column): str(some[0].get(column)) for column in named}
                places = Places.of(axis, some)
                charts += [chart for metric in METRICS for chart in _chart(places, chosen, metric)]
        return charts


@dataclass(frozen=True)
class Places:
    """The ``values`` of an axis, and by method the repeats at each of them."""

    axis: str
    task: str
    values: Sequence[Any]
    methods: Mapping[str, Mapping[float | str, Repeats]]

    @classmethod
    def of(cls, axis: str, rows: Sequence[Row]) -> "Places":
        values = sorted({row[axis] for row in rows}, key=natural)
        place = float if _numeric(values) else str
        methods = {
            method: repeats(some, lambda row: place(row[axis])) for method, some in by_method(rows).items()
        }
        return cls(choice_name(axis), str(rows[0].get("task")), values, methods)


def _numeric(values: Iterable[object]) -> bool:
    return all(isinstance(value, int | float) for value in values)


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
    columns = (*COLUMNS, "precision", *(other for other in free_axes(frame) if other != axis))
    told = _told_by(rows, axis, columns)
    return [column for column in columns if column not in told]


def _told_by(rows: Sequence[Row], axis: str, columns: Iterable[str]) -> set[str]:
    """The columns that have one value for each value of the axis, and not the same for all."""
    places = by(rows, lambda row: row[axis]).values()

    def told(column: str) -> bool:
        found = [_values(some, column) for some in places]
        return all(len(values) == 1 for values in found) and len(set[str]().union(*found)) > 1

    return {column for column in columns if told(column)}


def _values(rows: Sequence[Row], column: str) -> set[str]:
    return {str(row.get(column)) for row in rows}


def _chart(places: Places, chosen: Mapping[str, str], metric: str) -> list[Chart]:
    axis, values = places.axis, places.values
    if len(values) < 2:
        return []
    made = []
    left_out = {}
    for method, some in places.methods.items():
        series, missing = line(method, points_at(some, metric))
        if series is not None:
            made.append(series)
            left_out[series.name] = missing
    if not made:
        return []
    shown = NAMES.get(metric, unit(metric).label)
    choices = {"axis": axis, **chosen, "metric": shown}
    numeric = _numeric(values)
    chart = Chart(
        name=chart_name(Axes.name, choices),
        title=f"{shown} over {axis}, {places.task}",
        x_label=LABELS.get(axis, axis),
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
