"""Any other axis of a study (draws, bits of the noise, a rate): every score over it, one line a method."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qbayes.lab.analysis.frame import Frame, Row, natural
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure
from qbayes.lab.report.charts.groups import (
    COLUMNS,
    by,
    by_method,
    choice_name,
    free_axes,
    other_axes,
    repeats,
    split_by,
)
from qbayes.lab.report.charts.points import Repeats, lines, needs_log, points_at
from qbayes.lab.report.charts.sweep import MAIN, MORE, score_unit

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
        plain = {axis: [row for row in frame.rows if row.get(axis) is not None] for axis in other_axes(frame)}
        for axis, rows in {**plain, **_scheme_axes(frame, plain)}.items():
            columns = _apart(frame, rows, axis)
            # what the precision says already is not named, as the scheme of float.
            redundant = _find_followers(rows, "precision", columns) - {"task", "precision"}
            for chosen, some in split_by(rows, columns, hidden=redundant):
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


def _scheme_axes(frame: Frame, known: Collection[str]) -> dict[str, list[Row]]:
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
    return {axis: rows for axis, rows in found.items() if axis not in known and len(_values(rows, axis)) > 1}


def _apart(frame: Frame, rows: Sequence[Row], axis: str) -> list[str]:
    """The columns that split the rows: all that vary, except those that say what the axis says."""
    columns = (*COLUMNS, "precision", *(other for other in free_axes(frame) if other != axis))
    follows = _find_followers(rows, axis, columns)
    return [column for column in columns if column not in follows]


def _find_followers(rows: Sequence[Row], axis: str, columns: Iterable[str]) -> set[str]:
    """The columns that have one value for each value of the axis, and not the same for all."""
    places = by(rows, lambda row: row[axis]).values()

    def follows(column: str) -> bool:
        found = [_values(some, column) for some in places]
        return all(len(values) == 1 for values in found) and len(set[str]().union(*found)) > 1

    return {column for column in columns if follows(column)}


def _values(rows: Sequence[Row], column: str) -> set[str]:
    return {str(row.get(column)) for row in rows}


def _chart(places: Places, chosen: Mapping[str, str], metric: str) -> list[Chart]:
    axis, values, shown = places.axis, places.values, score_unit(metric)
    if len(values) < 2:
        return []
    series, note = lines({method: points_at(some, metric) for method, some in places.methods.items()})
    numeric = _numeric(values)
    return Axes.chart(
        {"axis": axis, **chosen, "metric": shown.label},
        series,
        title=f"{shown.label} over {axis}, {places.task}",
        x_label=LABELS.get(axis, axis),
        y_label=shown.axis,
        kind="lines",
        log_y=needs_log(series),
        note=note,
        categories=() if numeric else tuple(str(value) for value in values),
        log_x=numeric and values[0] > 0 and values[-1] >= 20 * values[0],
        main=metric in MAIN,
    )
