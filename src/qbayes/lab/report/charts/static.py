"""Charts for papers: SVG and PDF by matplotlib, in the page's colours; the same chart, the same bytes."""

import importlib.util
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qbayes.errors import BadInput
from qbayes.lab.report.charts.chart import FLOAT, Chart, Plate, Series, Style, chart_name, styles_of

INK, QUIET, FAINT = "#222222", "#6b6b6b", "#d0d0d0"
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "X", "down": "v"}
Painter = Callable[[Any, Chart, dict[str, Style]], None]
FORMATS = ("svg", "pdf")
PANEL = (2.5, 1.95)  # inches: three beside each other fill a page of text
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],  # every text of an SVG names them all
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9a9a9a",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "svg.hashsalt": "qbayes",  # names inside the file do not change from run to run
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}


def require_matplotlib() -> None:
    """Raise, before anything is written, where the extra is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        do = "pip install 'qbayes[report]', or leave the static figures out (the page draws without it)"
        raise BadInput("figures as SVG and PDF need matplotlib", "it is not installed", do)


def write_static(plates: Iterable[Plate], folder: Path) -> list[Path]:
    """The main panels of every figure, those side by side on one sheet: ``NAME.svg`` and ``NAME.pdf``."""
    require_matplotlib()
    files: list[Path] = []
    taken: Counter[str] = Counter()
    for plate in plates:
        for name, charts in sheets(plate):
            # names in plain letters may fall together ("a/b" and "a b"): the second gets a number.
            taken[name] += 1
            stem = name if taken[name] == 1 else f"{name}-{taken[name]}"
            paths = [folder / f"{stem}.{kind}" for kind in FORMATS]
            files += write_sheet(charts, paths, plate.figure.beside, same_y=plate.figure.same_y)
    return files


def write_sheet(charts: Sequence[Chart], paths: Sequence[Path], beside: str, *, same_y: bool) -> list[Path]:
    """Charts on one sheet, in each of the files; their endings say how. ``beside`` tells them apart."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        sheet = Figure()
        paint_sheet(sheet, charts, beside, same_y=same_y)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            _save(sheet, path)
    return list(paths)


def sheets(plate: Plate) -> list[tuple[str, list[Chart]]]:
    """The main charts of a figure that differ in what lies side by side alone, with the sheet's name."""
    found: dict[tuple[tuple[str, str], ...], list[Chart]] = {}
    for chart in plate.charts:
        rest = tuple((key, value) for key, value in chart.choices.items() if key != plate.figure.beside)
        found.setdefault(rest, []).extend([chart] if chart.main else [])
    return [(chart_name(plate.figure.name, dict(rest)), charts) for rest, charts in found.items() if charts]


def paint_sheet(sheet: Any, charts: Sequence[Chart], beside: str, *, same_y: bool) -> None:
    """Panels in rows of at most three, with one legend above them where they have the same groups."""
    columns = 2 if len(charts) == 4 else min(3, len(charts))
    rows = -(-len(charts) // columns)
    alike = len({tuple(series.group for series in chart.series) for chart in charts}) == 1
    in_row = 2 * columns + 1  # names of the legend
    turn = max(map(_turn_height, charts))
    head = 0.12 + 0.16 * -(-len(charts[0].series) // in_row) if alike else 0.05
    width, height = PANEL[0] * columns, (PANEL[1] + turn) * rows + head
    sheet.set_size_inches(width, height)
    both = charts[0].kind == "reliability"
    panels = sheet.subplots(rows, columns, squeeze=False, sharey=same_y, sharex=both).ravel()
    edges = {"left": 0.55 / width, "right": 1 - 0.1 / width, "top": 1 - (head + 0.2) / height}
    sheet.subplots_adjust(**edges, bottom=(0.42 + turn) / height, hspace=0.48 + turn, wspace=0.26)
    drawn = list(zip(panels, charts, strict=False))
    for axes, chart in drawn:
        paint(axes, chart, heading(chart, beside))
        if not alike:
            _legend(axes, *axes.get_legend_handles_labels())
    for axes, chart in drawn:
        axes.tick_params(labelbottom=True)
        if chart.diagonal:
            _draw_equality(axes)
    for axes in panels[len(charts) :]:
        axes.set_axis_off()
    if alike:
        handles, names = panels[0].get_legend_handles_labels()
        _legend(sheet, handles, names, loc="upper center", ncols=in_row)


def heading(chart: Chart, beside: str) -> str:
    """What tells a panel from its neighbours: what is on its y axis, or that and what was chosen."""
    chosen = None if beside in ("metric", "measure") else chart.choices.get(beside)
    return chart.y_label if chosen is None else f"{chosen}: {chart.y_label}"


def paint(axes: Any, chart: Chart, title: str) -> None:
    """Draw a chart on matplotlib's axes; the name of the y axis stands above it, in the title."""
    styles = {"": NEUTRAL, **styles_of(series.group for series in chart.series)}
    PAINTERS[chart.kind](axes, chart, styles)
    mark_beyond(axes, chart, styles)
    # names are data, not mathematics: a dollar sign in one stays a dollar sign.
    # given its height, it is not sought by measuring every label below it.
    axes.set_title(title, loc="left", y=1.0, parse_math=False)
    axes.set_xlabel(chart.x_label, parse_math=False)
    _set_scales(axes, chart)
    if chart.level is not None:
        axes.axhline(chart.level, color=QUIET, linewidth=0.8, linestyle=":", zorder=0)
    axes.grid(axis="y", color="#ececec", linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_equality(axes: Any) -> None:
    """The line y = x across the panel, which does not move its ends."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    ends = (max(left, low), min(right, high))
    axes.plot(ends, ends, color=FAINT, linewidth=0.8, zorder=0, scalex=False, scaley=False)


def _legend(place: Any, handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    if len(names) > 1:
        spacing = {"columnspacing": 1.2, "handletextpad": 0.5}
        for text in place.legend(handles, names, **spacing, **options).get_texts():
            text.set_parse_math(False)


def _save(figure: Any, path: Path) -> None:
    dates = {"Date": None} if path.suffix == ".svg" else {"CreationDate": None, "ModDate": None}
    figure.savefig(path, metadata={**dates, "Creator": "qbayes"})


def _set_scales(axes: Any, chart: Chart) -> None:
    scales = ((axes.xaxis, axes.set_xscale, chart.log_x), (axes.yaxis, axes.set_yscale, chart.log_y))
    for axis, set_scale, is_log in scales:
        if is_log:
            set_scale("log")
            _few_ticks(axis)
    if chart.root_y:
        axes.set_yscale("function", functions=(lambda values: np.sqrt(np.maximum(values, 0)), np.square))
        axes.set_ylim(bottom=0)
    if chart.categories:
        names = [name.replace("$", r"\$") for name in chart.categories]
        axes.set_xticks(range(len(names)), names, rotation=45 if _is_crowded(chart) else 0)


def _is_crowded(chart: Chart) -> bool:
    """Whether the names under the axis must be turned."""
    return sum(map(len, chart.categories)) > 26


def _turn_height(chart: Chart) -> float:
    """Inches that turned names need below the axis: a character is 0.065 wide, and they stand at 45°."""
    longest = max(map(len, chart.categories), default=0)
    return max(0.3, 0.065 * longest * math.sin(math.pi / 4)) if _is_crowded(chart) else 0.0


def _few_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5, written plainly, where the axis spans less than two powers of ten."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())


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
        pen = _pen(series, style, ways=ways)
        if series.low is not None and series.high is not None:
            axes.vlines(x, series.low, series.high, color=style.light, linewidth=0.8)
        if series.x and series.x[0] == FLOAT and len(series.x) > 1:
            axes.axhline(y[0], color=style.light, linewidth=0.6, linestyle=":", alpha=0.6)
            axes.plot(x[:1], y[:1], **{**pen, "label": None, "markerfacecolor": "white"})
            x, y = x[1:], y[1:]
        axes.plot(*_broken(chart, series, x, y), **pen)


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
        props: dict[str, Any] = {f"{part}props": pen for part in ("whisker", "cap", "median")}
        props["boxprops"] = {"facecolor": "white", "edgecolor": colour, "linewidth": 0.9}
        width = 0.7 / len(chart.series)
        axes.boxplot(values, positions=at, widths=width, showfliers=False, patch_artist=True, **props)
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
