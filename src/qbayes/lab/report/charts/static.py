"""Charts for papers: SVG and PDF by matplotlib, in the page's colours; the same chart, the same bytes."""

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qbayes.errors import BadInput
from qbayes.lab.report.charts.chart import Chart, styles_of
from qbayes.lab.report.charts.figure import Plate, chart_name
from qbayes.lab.report.charts.static_marks import FAINT, INK, NEUTRAL, PAINTERS, QUIET, mark_beyond

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
        raise BadInput(
            "figures as SVG and PDF need matplotlib",
            "it is not installed",
            "pip install 'qbayes[report]', or leave the static figures out (the page draws without it)",
        )


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
    turned = max(map(_turned, charts))
    head = 0.12 + 0.16 * -(-len(charts[0].series) // in_row) if alike else 0.05
    width, height = PANEL[0] * columns, (PANEL[1] + turned) * rows + head
    sheet.set_size_inches(width, height)
    both = charts[0].kind == "reliability"
    panels = sheet.subplots(rows, columns, squeeze=False, sharey=same_y, sharex=both).ravel()
    edges = {"left": 0.55 / width, "right": 1 - 0.1 / width, "top": 1 - (head + 0.2) / height}
    sheet.subplots_adjust(**edges, bottom=(0.42 + turned) / height, hspace=0.48 + turned, wspace=0.26)
    for axes, chart in zip(panels, charts, strict=False):
        paint(axes, chart, heading(chart, beside))
        if not alike:
            _legend(axes, *axes.get_legend_handles_labels())
    for axes, chart in zip(panels, charts, strict=False):
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
    chosen = chart.choices.get(beside)
    return (
        chart.y_label if chosen is None or beside in ("metric", "measure") else f"{chosen}: {chart.y_label}"
    )


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
        axes.set_yscale("function", functions=(_root, np.square))
        axes.set_ylim(bottom=0)
    if chart.categories:
        names = [name.replace("$", r"\$") for name in chart.categories]
        axes.set_xticks(range(len(names)), names, rotation=45 if _crowded(chart) else 0)


def _crowded(chart: Chart) -> bool:
    """Whether the names under the axis must be turned."""
    return sum(map(len, chart.categories)) > 26


def _turned(chart: Chart) -> float:
    """Inches that turned names need below the axis: a character is 0.065 wide, and they stand at 45°."""
    longest = max(map(len, chart.categories), default=0)
    return max(0.3, 0.065 * longest * math.sin(math.pi / 4)) if _crowded(chart) else 0.0


def _few_ticks(axis: Any) -> None:
    """Ticks at 1, 2 and 5, written plainly, where the axis spans less than two powers of ten."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())


def _root(values: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(values, 0))
