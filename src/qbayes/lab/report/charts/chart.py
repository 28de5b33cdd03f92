"""Charts as values: what is drawn, without how; and the figures that they belong to.

The page (SVG by its own script) and the static files (SVG and PDF by matplotlib) draw the same ``Chart``,
and the CSV behind a figure is its numbers. Axes are in the units that their labels name.

A figure says in words what it shows, and how its charts follow from a study's rows. Figures are registered
files; the page, the static files and the CSVs take all of them. A figure without data draws nothing.
"""

import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from qbayes.errors import BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.study.store.table import csv_text
from qbayes.registry import Registry

Kind = Literal["lines", "boxes", "bars", "histogram", "scatter", "reliability"]
MOST_NAMED = 12  # points at the edge in a note; the CSV has all
_FLAGS = ("log_y", "log_x", "root_y", "diagonal", "main")
FLOAT = "float"  # the category of the unquantised network: drawn apart from the bits, on the left
FIGURES: Registry[type["Figure"]] = Registry("figure", "qbayes.lab.report.figures")


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
class Beyond:
    """A value that no axis can hold: ``y`` is infinite, or not a number. It is marked at the edge."""

    x: float | str
    y: float
    label: str = ""

    @property
    def place(self) -> str:
        return self.x if isinstance(self.x, str) else f"{self.x:.4g}"

    @property
    def sign(self) -> str:
        return "NaN" if math.isnan(self.y) else "∞" if self.y > 0 else "−∞"


@dataclass(frozen=True)
class Series:
    """Numbers of one line, set of boxes, or cloud. ``group`` (a method, or "") decides the colour.

    ``x`` are numbers, or names out of the chart's categories; a histogram has the edges of its bins there,
    one more than ``y``; boxes have every single value, under the name of its box. ``weight`` is the share
    of the rows behind a point. ``labels`` say more about each point when one asks for it. What is not
    finite stands in ``beyond``, and in no line, box or spread.
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
    beyond: tuple[Beyond, ...] = ()

    @property
    def places(self) -> tuple[float | str, ...]:
        """Where it has values, finite or not."""
        return *self.x, *(one.x for one in self.beyond)


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

    @property
    def notes(self) -> str:
        """``note``, and what is marked at the edge."""
        parts = [
            f"{series.name} at {one.place} ({', '.join(filter(None, (one.sign, one.label)))})"
            for series in self.series
            for one in series.beyond
        ]
        more = f"; and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
        edge = f"Not finite, marked at the edge: {'; '.join(parts[:MOST_NAMED])}{more}." if parts else ""
        return " ".join(filter(None, (self.note, edge)))

    def to_json(self) -> dict[str, Any]:
        """Plain values for the page; what is empty is left out."""
        texts = {"name": self.name, "title": self.title, "x": self.x_label, "y": self.y_label}
        flags: dict[str, Any] = {name: getattr(self, name) for name in _FLAGS}
        flags |= {"note": self.notes, "categories": list(self.categories)}
        present = {key: value for key, value in flags.items() if value}
        if self.level is not None:
            present["level"] = self.level
        series = [_series_json(series) for series in self.series]
        return {**texts, "kind": self.kind, "choices": dict(self.choices), **present, "series": series}


def csv_of(charts: Sequence[Chart]) -> str:
    """All numbers of a figure, one line a point; what is different between its charts stands first."""
    keys = list(dict.fromkeys(key for chart in charts for key in chart.choices))
    head = [*keys, "series", "group", "x_label", "x", "y_label", "y", "low", "high", "label"]
    lines: list[list[object]] = []
    for chart in charts:
        chosen = [chart.choices.get(key, "") for key in keys]
        for series in chart.series:
            start = [*chosen, series.name, series.group, chart.x_label]
            lines += [[*start, x, chart.y_label, *rest] for x, *rest in _points(series)]
    return csv_text(head, lines)


def rounded(value: float) -> float:
    """Six significant digits: more than any eye sees, and half the size of the page."""
    return float(f"{value:.6g}")


def _points(series: Series) -> Iterable[tuple[object, ...]]:
    """x, y, low, high, label; of a histogram the left edges of the bins. What is not finite stands last."""
    empty = ("",) * len(series.y)
    low, high, labels = series.low or empty, series.high or empty, series.labels or empty
    yield from zip(series.x, series.y, low, high, labels, strict=False)
    yield from ((one.x, one.y, "", "", one.label) for one in series.beyond)


def _series_json(series: Series) -> dict[str, Any]:
    data: dict[str, Any] = {"name": series.name, "group": series.group, "x": [_round_x(x) for x in series.x]}
    for key in ("y", "low", "high", "weight"):
        values = getattr(series, key)
        if values is not None:
            data[key] = [rounded(value) for value in values]
    if any(series.labels):
        data["labels"] = list(series.labels)
    if series.dashed:
        data["dashed"] = True
    if series.beyond:
        data["beyond"] = [
            {"x": _round_x(one.x), "y": str(one.y), "label": one.label} for one in series.beyond
        ]
    return data


def _round_x(x: float | str) -> float | str:
    return x if isinstance(x, str) else rounded(x)


def _check(chart: Chart, series: Series) -> None:
    """Lengths agree, names are categories, numbers are finite: no renderer has to ask again."""
    count = len(series.y)
    edges = 1 if chart.kind == "histogram" else 0
    others = [values for values in (series.low, series.high, series.weight) if values is not None]
    if len(series.x) != count + edges or any(len(values) != count for values in others):
        raise _bad(chart, series, "as many x, low and high as y (a histogram has one edge more)", "lengths")
    if series.labels and len(series.labels) != count:
        raise _bad(chart, series, "one label a point, or none", f"{len(series.labels)} labels")
    strange = [value for value in series.places if isinstance(value, str) and value not in chart.categories]
    if strange:
        raise _bad(chart, series, "names on the x axis that are among its categories", repr(strange[0]))
    numbers = [value for values in (series.places, series.y, *others) for value in values]
    if not all(isinstance(value, str) or math.isfinite(value) for value in numbers):
        raise _bad(chart, series, "finite numbers", "nan or infinity")
    if any(math.isfinite(one.y) for one in series.beyond):
        raise _bad(chart, series, "beyond its axis only what is not finite", "a finite number")


def _bad(chart: Chart, series: Series, must: str, got: str) -> BadInput:
    return BadInput(
        f"a series of a chart must have {must}",
        f"{got} in '{series.name}' of '{chart.name}'",
        "put what is not finite into 'beyond'; leave other such points out, and say so in the note",
    )


class Figure(ABC):
    """Base of all figures.

    ``place`` orders them on the page. ``beside`` is the choice whose values lie side by side; the page makes
    a switch of every other choice. ``same_y``: panels side by side share their y axis.

    Example:
        >>> FIGURES["weight_bits"]().title
        'Over weight bits'
    """

    name: ClassVar[str]
    title: ClassVar[str]
    caption: ClassVar[str]
    place: ClassVar[int]
    beside: ClassVar[str] = "metric"
    same_y: ClassVar[bool] = False

    @abstractmethod
    def draw(self, frame: Frame) -> list[Chart]:
        """The charts of this figure; none where the study has no data for it.

        Args:
            frame: The rows of a study.
        """

    @classmethod
    def chart(cls, choices: Mapping[str, str], series: Sequence[Series], **about: Any) -> list[Chart]:
        """One of its charts, called by what was chosen; none without series.

        Args:
            choices: What was chosen, by name.
            series: The lines or bars of the chart.
            about: Other fields of ``Chart``.
        """
        name = chart_name(cls.name, choices)
        return [Chart(name, series=tuple(series), choices=choices, **about)] if series else []


@dataclass(frozen=True)
class Plate:
    """A figure with its charts."""

    figure: Figure
    charts: tuple[Chart, ...]


def draw_all(frame: Frame) -> list[Plate]:
    """Every registered figure that has something to show, in the order of the page."""
    figures = sorted((FIGURES[name]() for name in FIGURES), key=lambda figure: (figure.place, figure.name))
    plates = (Plate(figure, tuple(figure.draw(frame))) for figure in figures)
    return [plate for plate in plates if plate.charts]


def chart_name(figure: str, choices: Mapping[str, str]) -> str:
    """A name for files: the figure and what was chosen, in plain letters."""
    return "-".join(part for part in (figure, *map(_plain, choices.values())) if part)


def _plain(words: str) -> str:
    letters = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "_", letters).strip("_").lower()
