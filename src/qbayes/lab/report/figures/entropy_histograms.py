"""How the entropies of test and of confusion data are spread: the less they overlap, the better."""

import math

import numpy as np

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure, Series
from qbayes.lab.report.charts.groups import Group, choose_runs, groups_of
from qbayes.lab.report.charts.points import label_of

BINS = 30


@FIGURES.register("entropy_histograms")
class EntropyHistograms(Figure):
    """Histograms of the predictive entropy, one panel a method."""

    name = "entropy_histograms"
    title = "Entropy of test and confusion data"
    caption = (
        "Grey: test data; in colour: confusion data, which belong to no class; one run each (first seed). "
        "The axis ends at log K, the entropy of knowing nothing. Heights by the square root, to keep tails "
        "in sight."
    )
    place = 41
    beside = "method"
    same_y = True

    def draw(self, frame: Frame) -> list[Chart]:
        return [
            chart
            for group in groups_of(frame)
            for precision, runs in choose_runs(frame, group).items()
            for method, row in runs.items()
            for chart in _chart(frame, group, precision, method, row)
        ]


def _chart(frame: Frame, group: Group, precision: str, method: str, row: Row) -> list[Chart]:
    details = frame.details(str(row["run"])) or {}
    classes = row.get("classes")
    if not classes or "entropy" not in details:
        return []
    edges = np.linspace(0, math.log(int(classes)), BINS + 1)
    series = [_histogram("test data", "", details["entropy"], edges)]
    if "confusion_entropy" in details:
        series.append(_histogram("confusion data", method, details["confusion_entropy"], edges))
    return EntropyHistograms.chart(
        {**group.choices, "precision": precision, "method": label_of(method)},
        series,
        title=f"Entropy, {label_of(method)}, {precision}, {group.task}",
        x_label="predictive entropy, nat",
        y_label="rows, %",
        kind="histogram",
        root_y=True,
    )


def _histogram(name: str, group: str, values: np.ndarray, edges: np.ndarray) -> Series:
    """Shares in per cent; what rounding put beyond the ends is counted in the bins at the ends."""
    inside = np.clip(np.asarray(values, dtype=np.float64), edges[0], edges[-1])
    heights, _ = np.histogram(inside, edges)
    return Series(
        name, group, x=tuple(edges.tolist()), y=tuple((100 * heights / max(len(inside), 1)).tolist())
    )
