"""Charts as values: what is drawn, without how.

The page (SVG by its own script) and the static files (SVG and PDF by matplotlib) draw the same ``Chart``,
and the CSV behind a figure is its numbers. Axes are in the units that their labels name.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qbayes.errors import BadInput

Kind = Literal["lines", "boxes", "bars", "histogram", "scatter", "reliability"]
FLOAT = "float"  # the category of the unquantised network: drawn apart from the bits, on the left


@dataclass(frozen=True)
class Style:
    """How a group is told apart: colour on white and on black, marker, and dashes where lines cross."""

    label: str
    short: str
    light: str
    dark: str
    marker: Literal["circle", "square", "triangle", "diamond", "cross", "down"]
    dash: str = ""


# Okabe and Ito's colours, told apart with any colour vision; the control is grey. Markers and dashes say it
# once more, for print without colour.
STYLES: dict[str, Style] = {
    "pointwise": Style("pointwise", "pointwise", "#5a5a5a", "#b4b8bd", "circle"),
    "mcd": Style("MC dropout", "MCD", "#0072b2", "#56b4e9", "square", "7 2"),
    "bbb": Style("Bayes-by-Backprop", "BBB", "#d55e00", "#f58a3c", "triangle", "2 2"),
    "sghmc": Style("SGHMC", "SGHMC", "#009e73", "#35c79b", "diamond", "8 2 2 2"),
}
_MORE = (
    Style("", "", "#cc79a7", "#e0a3c6", "cross", "4 2"),
    Style("", "", "#b07800", "#e69f00", "down", "5 2 1 2"),
    Style("", "", "#3a7ca5", "#8fc7ea", "circle", "1 2"),
)


def styles_of(groups: Iterable[str]) -> dict[str, Style]:
    """A style for each group, the known methods first; further ones get the palette's other colours."""
    names = set(groups)
    known = {name: style for name, style in STYLES.items() if name in names}
    others = sorted(names - set(STYLES) - {""})
    for place, name in enumerate(others):
        style = _MORE[place % len(_MORE)]
        known[name] = Style(name, name, style.light, style.dark, style.marker, style.dash)
    return known


@dataclass(frozen=True)
class Series:
    """Numbers of one line, set of boxes, or cloud. ``group`` (a method, or "") decides the colour.

    ``x`` are numbers, or names out of the chart's categories; a histogram has the edges of its bins there,
    one more than ``y``; boxes have every single value, under the name of its box. ``weight`` is the share
    of the rows behind a point. ``labels`` say more about each point when one asks for it.
    """

    name: str
    group: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    labels: tuple[str, ...] = ()
    weight: tuple[float, ...] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """One panel. ``choices`` tells it from the others of its figure: task, metric, shift, …

    ``main`` panels are shown together; the others when they are asked for. ``level`` is a horizontal line:
    where a quantised network would be that equals float.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    kind: Kind
    series: tuple[Series, ...]
    log_y: bool = False
    note: str = ""
    choices: Mapping[str, str] = field(default_factory=dict[str, str])
    categories: tuple[str, ...] = ()
    log_x: bool = False
    root_y: bool = False
    diagonal: bool = False
    level: float | None = None
    main: bool = True

    def __post_init__(self) -> None:
        for series in self.series:
            _check(self, series)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the page; what is empty is left out."""
        texts = {"name": self.name, "title": self.title, "x": self.x_label, "y": self.y_label}
        flags = {
            "log_y": self.log_y,
            "log_x": self.log_x,
            "root_y": self.root_y,
            "diagonal": self.diagonal,
            "main": self.main,
            "note": self.note,
            "categories": list(self.categories),
        }
        present = {key: value for key, value in flags.items() if value}
        if self.level is not None:
            present["level"] = self.level
        series = [_series_json(series) for series in self.series]
        return {**texts, "kind": self.kind, "choices": dict(self.choices), **present, "series": series}


def csv_text(charts: Sequence[Chart]) -> str:
    """All numbers of a figure, one line a point; what is different between its charts stands first."""
    keys = list(dict.fromkeys(key for chart in charts for key in chart.choices))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keys, "series", "group", "x_label", "x", "y_label", "y", "low", "high", "label"])
    for chart in charts:
        chosen = [chart.choices.get(key, "") for key in keys]
        for series in chart.series:
            for point in _points(series):
                x, *rest = point
                writer.writerow([*chosen, series.name, series.group, chart.x_label, x, chart.y_label, *rest])
    return out.getvalue()


def rounded(value: float) -> float:
    """Six significant digits: more than any eye sees, and half the size of the page."""
    return float(f"{value:.6g}")


def _points(series: Series) -> Iterable[tuple[object, ...]]:
    """x, y, low, high, label; of a histogram the left edges of the bins."""
    empty = ("",) * len(series.y)
    low, high, labels = series.low or empty, series.high or empty, series.labels or empty
    return zip(series.x, series.y, low, high, labels, strict=False)


def _series_json(series: Series) -> dict[str, Any]:
    data: dict[str, Any] = {"name": series.name, "group": series.group}
    data["x"] = [value if isinstance(value, str) else rounded(value) for value in series.x]
    for key in ("y", "low", "high", "weight"):
        values = getattr(series, key)
        if values is not None:
            data[key] = [rounded(value) for value in values]
    if any(series.labels):
        data["labels"] = list(series.labels)
    if series.dashed:
        data["dashed"] = True
    return data


def _check(chart: Chart, series: Series) -> None:
    """Lengths agree, names are categories, numbers are finite: no renderer has to ask again."""
    count = len(series.y)
    edges = 1 if chart.kind == "histogram" else 0
    others = [values for values in (series.low, series.high, series.weight) if values is not None]
    if len(series.x) != count + edges or any(len(values) != count for values in others):
        raise _bad(chart, series, "as many x, low and high as y (a histogram has one edge more)", "lengths")
    if series.labels and len(series.labels) != count:
        raise _bad(chart, series, "one label a point, or none", f"{len(series.labels)} labels")
    strange = [value for value in series.x if isinstance(value, str) and value not in chart.categories]
    if strange:
        raise _bad(chart, series, "names on the x axis that are among its categories", repr(strange[0]))
    numbers = [value for values in (series.x, series.y, *others) for value in values]
    if not all(isinstance(value, str) or math.isfinite(value) for value in numbers):
        raise _bad(chart, series, "finite numbers", "nan or infinity")


def _bad(chart: Chart, series: Series, must: str, got: str) -> BadInput:
    return BadInput(
        f"a series of a chart must have {must}",
        f"{got} in '{series.name}' of '{chart.name}'",
        "leave such points out where the chart is made, and say so in its note",
    )
