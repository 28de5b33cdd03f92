"""Marks of the charts for papers, on matplotlib's axes: one function a kind of chart."""

from collections.abc import Callable
from typing import Any

import numpy as np

from qbayes.lab.report.charts.chart import FLOAT, Chart, Series, Style

INK, QUIET, FAINT = "#222222", "#6b6b6b", "#d0d0d0"
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "X", "down": "v"}
Painter = Callable[[Any, Chart, dict[str, Style]], None]


def mark_beyond(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    """What is not finite, at the edge of the panel and beside that of other series."""
    for order, series in enumerate(chart.series):
        for one in series.beyond:
            x, y = _place(chart, one.x), 0.04 if one.y < 0 else 0.96
            apart = _dodge(order, len(chart.series)) if chart.categories else 0.0
            pen = {"color": styles[series.group].light, "ha": "center", "va": "center"}
            axes.text(x + apart, y, one.sign, transform=axes.get_xaxis_transform(), **pen)
            axes.update_datalim([(x, 0.0)], updatey=False)
            axes.autoscale_view(scaley=False)


def _places(chart: Chart, series: Series) -> np.ndarray:
    """Numbers on the x axis: categories count from 0."""
    return np.array([_place(chart, x) for x in series.x], dtype=float)


def _place(chart: Chart, x: float | str) -> float:
    return chart.categories.index(x) if isinstance(x, str) else x


def _dodge(place: int, count: int) -> float:
    """How far a series of ``count`` stands from the middle of its category."""
    return (place - (count - 1) / 2) * 0.8 / max(count, 1)


def _pen(series: Series, style: Style, *, ways: bool = False) -> dict[str, Any]:
    """``ways``: dashes tell two ways of one method apart, and not the methods."""
    dash = "4 2" if series.dashed else "" if ways else style.dash
    line = (0, tuple(float(part) / 1.4 for part in dash.split())) if dash else "-"
    marker = {"marker": MARKERS[style.marker], "markersize": 4}
    return {"color": style.light, "linestyle": line, "linewidth": 1.2, "label": series.name, **marker}


def _lines(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    ways = any(series.dashed for series in chart.series)
    for series in chart.series:
        style, x, y = styles[series.group], _places(chart, series), np.array(series.y)
        if series.low is not None and series.high is not None:
            axes.vlines(x, series.low, series.high, color=style.light, linewidth=0.8)
        if series.x and series.x[0] == FLOAT and len(series.x) > 1:
            axes.axhline(y[0], color=style.light, linewidth=0.6, linestyle=":", alpha=0.6)
            axes.plot(
                x[:1], y[:1], **{**_pen(series, style, ways=ways), "label": None, "markerfacecolor": "white"}
            )
            x, y = x[1:], y[1:]
        axes.plot(*_broken(chart, series, x, y), **_pen(series, style, ways=ways))


def _broken(chart: Chart, series: Series, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line does not run across the places of what is not finite."""
    gaps = np.array([_place(chart, one.x) for one in series.beyond], dtype=float)
    places, heights = np.concatenate([x, gaps]), np.concatenate([y, np.full(len(gaps), np.nan)])
    order = np.argsort(places, kind="stable")
    return (places[order], heights[order]) if len(gaps) else (x, y)


def _boxes(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    for place, series in enumerate(chart.series):
        colour = styles[series.group].light
        names = sorted(set(series.x), key=lambda name: chart.categories.index(str(name)))
        values = [[y for x, y in zip(series.x, series.y, strict=True) if x == name] for name in names]
        at = [chart.categories.index(str(name)) + _dodge(place, len(chart.series)) for name in names]
        pen = {"color": colour, "linewidth": 0.9}
        props = {f"{part}props": pen for part in ("whisker", "cap", "median")}
        width = 0.7 / len(chart.series)
        face = {"facecolor": "white", "edgecolor": colour, "linewidth": 0.9}
        axes.boxplot(
            values, positions=at, widths=width, showfliers=False, patch_artist=True, boxprops=face, **props
        )
        for x, some in zip(at, values, strict=True):
            axes.plot([x] * len(some), some, ".", color=colour, markersize=2.5, alpha=0.7)
        axes.plot([], [], color=colour, linewidth=3, label=series.name)


def _bars(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    for place, series in enumerate(chart.series):
        x = _places(chart, series) + _dodge(place, len(chart.series))
        colour = styles[series.group].light
        axes.bar(x, series.y, 0.72 / len(chart.series), color=colour, label=series.name)
        if series.low is not None and series.high is not None:
            axes.vlines(x, series.low, series.high, color=INK, linewidth=0.7)
    axes.set_ylim(0, 1.3 * max((y for series in chart.series for y in series.y), default=1))


def _histogram(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    for series in chart.series:
        edges = np.array(series.x, dtype=float)
        colour, alpha = (styles[series.group].light, 0.75) if series.group else ("#b9b9b9", 1.0)
        axes.stairs(series.y, edges, fill=True, color=colour, alpha=alpha, label=series.name)
        axes.set_xlim(edges[0], edges[-1])


def _scatter(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    for series in chart.series:
        x = _places(chart, series)
        if not series.group:
            axes.step(x, series.y, where="post", color="#b0b0b0", linewidth=1, label=series.name, zorder=0)
        else:
            style = styles[series.group]
            pen = {"color": style.light, "s": 16, "linewidth": 0, "label": series.name}
            axes.scatter(x, series.y, marker=MARKERS[style.marker], **pen)


def _reliability(axes: Any, chart: Chart, styles: dict[str, Style]) -> None:
    for series in chart.series:
        style, x = styles[series.group], _places(chart, series)
        axes.plot(x, series.y, **{**_pen(series, style), "markersize": 2, "linewidth": 1})
        # the area says how many rows are behind a point.
        area = 3 + 45 * np.array(series.weight or np.zeros(len(x)))
        axes.scatter(x, series.y, s=area, color=style.light, alpha=0.6, linewidth=0)


NEUTRAL = Style("", "", QUIET, QUIET, "circle")
PAINTERS: dict[str, Painter] = {
    "lines": _lines,
    "boxes": _boxes,
    "bars": _bars,
    "histogram": _histogram,
    "scatter": _scatter,
    "reliability": _reliability,
}
