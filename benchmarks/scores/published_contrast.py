"""The figure that stands first: MNIST by our recipe, by the paper's, and MC dropout by its mask."""

from dataclasses import replace
from pathlib import Path

from published_images import MNIST
from published_numbers import ACTIVATIONS, PLAIN, Rows, Studies

from qbayes.lab.report.charts.chart import FLOAT, Chart
from qbayes.lab.report.charts.points import Repeats, line
from qbayes.lab.report.charts.static import write_sheet
from qbayes.lab.report.figures import FIGURES

OURS, PAPERS = MNIST.ours, MNIST.papers
NAME = "mnist-contrast.svg"
_MASKS = {
    "the paper's": (PAPERS, "paper"),
    "mask of one bit": (PAPERS, "paper, mask=exact"),
    "ours": (OURS, "default"),
}


def draw_contrast(studies: Studies, folder: Path) -> list[Path]:
    """Three panels over one axis of error, where both studies are there."""
    if OURS not in studies or PAPERS not in studies:
        return []
    panels = {
        "our recipe": _error_over(studies[OURS], "equal_bits"),
        "the paper's recipe": _error_over(studies[PAPERS], "activation_bits"),
        "MC dropout": _by_mask(studies),
    }
    charts = [replace(chart, choices={"panel": name}, log_y=True) for name, chart in panels.items()]
    return write_sheet(charts, [folder / NAME], "panel", same_y=True)


def _error_over(held: Rows, figure: str) -> Chart:
    usual = {"metric": ("error",), "training": ("trained",), "scheme": PLAIN}
    charts = FIGURES[figure]().draw(held.frame)
    return next(
        chart
        for chart in charts
        if all(chart.choices[key] in values for key, values in usual.items() if key in chart.choices)
    )


def _by_mask(studies: Studies) -> Chart:
    made = []
    for words, (study, scheme) in _MASKS.items():
        held = studies[study]
        found = {FLOAT: held.floats(method="mcd")}
        for bits in ACTIVATIONS:
            pairs = held.pairs(method="mcd", precision=bits, scheme=scheme)
            found[bits[-1]] = [pair.quantised for pair in pairs]
        series, _ = line(words, {x: Repeats(rows).point("error", 100) for x, rows in found.items() if rows})
        assert series is not None
        made.append(series)
    return Chart(
        name="masks",
        title="Error of MC dropout by its mask",
        x_label="activation bits (weights of 8 bits)",
        y_label="error, %",
        kind="lines",
        series=tuple(made),
        categories=(FLOAT, *(bits[-1] for bits in ACTIVATIONS)),
    )
