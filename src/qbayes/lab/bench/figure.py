"""The measured cells as bars: for each cell the time of a draw and image by every engine that ran."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.bench.engines.base import EXTRA
from qbayes.lab.bench.result import Cell, Row

SUFFIXES = (".svg", ".png", ".pdf")
# Okabe and Ito's colours, told apart with any colour vision.
_COLOURS = {
    "others, float": "#999999",
    "others, int8": "#e69f00",
    "qbayes": "#0072b2",
    "a pointwise pass in int8": "#56b4e9",
}
_COLUMNS = 2


def require_matplotlib() -> Any:
    """The drawing part of matplotlib without a window, or how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("a figure needs matplotlib", "it is not installed", EXTRA) from None
    return Figure


def draw(cells: Sequence[Cell], path: Path) -> Path:
    """Write the figure; one panel a cell, the fastest engine at the top."""
    figure_of = require_matplotlib()
    columns = min(_COLUMNS, len(cells))
    lines = -(-len(cells) // columns)
    tallest = max(len(_times(cell)) for cell in cells)
    figure = figure_of(figsize=(7.5 * columns, lines * (1.4 + 0.26 * tallest)), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for panel, cell in zip(panels.flat, cells, strict=False):
        _panel(panel, cell)
    for panel in list(panels.flat)[len(cells) :]:
        panel.set_axis_off()
    handles = [panels.flat[0].barh([0], [0], color=colour) for colour in _COLOURS.values()]
    figure.legend(handles, list(_COLOURS), loc="outside lower center", ncols=len(_COLOURS), frameon=False)
    figure.savefig(path)
    return path


def _panel(panel: Any, cell: Cell) -> None:
    timed = _times(cell)
    names = [row.engine if row.method == cell.method else f"{row.engine}, pointwise" for _, row in timed]
    times = [time for time, _ in timed]
    bars = panel.barh(names, times, color=[_COLOURS[_label(cell, row)] for _, row in timed])
    labels = [f"{time:,.1f}" if time < 100 else f"{time:,.0f}" for time in times]
    panel.bar_label(bars, labels=labels, padding=3, fontsize=8)
    panel.invert_yaxis()
    panel.set_xscale("log")
    # room for the numbers behind the longest bar.
    panel.set_xlim(min(times) / 2, max(times) * 4)
    panel.xaxis.set_minor_formatter(lambda value, at: "")
    panel.tick_params(labelsize=8)
    panel.set_xlabel("µs per draw and image", fontsize=9)
    panel.set_title(f"{cell.network}, {cell.method}, batch {cell.batch}, {cell.draws} draws", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)


def _times(cell: Cell) -> list[tuple[float, Row]]:
    found = [(1e6 * row.times.best, row) for row in cell.rows if row.times is not None]
    return sorted(found, key=lambda pair: pair[0])


def _label(cell: Cell, row: Row) -> str:
    if row.method != cell.method:
        return "a pointwise pass in int8"
    return "qbayes" if row.ours else f"others, {row.numbers}"
