"""Reliability diagrams: of the answers given with a confidence, the share that is right.

Ten bins of equal width, as in the ECE: each point is the mean confidence and the accuracy of one bin.
(Guo et al., ICML 2017.)
"""

from collections.abc import Mapping

import numpy as np

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure, Series
from qbayes.lab.report.charts.groups import Group, choose_runs, groups_of
from qbayes.lab.report.charts.points import label_of
from qbayes.metrics.row_errors import BINS, bin_of

LEAST_ROWS = 10  # fewer say nothing of an accuracy


@FIGURES.register("reliability")
class Reliability(Figure):
    """Accuracy over confidence, one panel a precision."""

    name = "reliability"
    title = "Reliability"
    caption = (
        "Accuracy of the answers given with a confidence, in ten bins of one run each (first seed). On the "
        "diagonal confidence is right; below it, too high. The area of a point is its share of the rows. "
        "Bins with fewer than ten rows are left out."
    )
    place = 40
    beside = "precision"
    same_y = True

    def draw(self, frame: Frame) -> list[Chart]:
        return [
            chart
            for group in groups_of(frame)
            for precision, runs in choose_runs(frame, group).items()
            for chart in _chart(frame, group, precision, runs)
        ]


def _chart(frame: Frame, group: Group, precision: str, runs: Mapping[str, Row]) -> list[Chart]:
    made = [_series(frame, method, row) for method, row in runs.items()]
    return Reliability.chart(
        {**group.choices, "precision": precision},
        [series for series in made if series is not None and series.x],
        title=f"Reliability, {precision}, {group.task}",
        x_label="confidence, %",
        y_label="accuracy, %",
        kind="reliability",
        diagonal=True,
    )


def _series(frame: Frame, method: str, row: Row) -> Series | None:
    details = frame.details(str(row["run"])) or {}
    if "confidence" not in details or "correct" not in details:
        return None
    confidence = np.asarray(details["confidence"], dtype=np.float64)
    correct = np.asarray(details["correct"], dtype=np.float64)
    sizes, sure, right = bin_rows(confidence, correct)
    kept = np.flatnonzero(sizes >= LEAST_ROWS)
    return Series(
        label_of(method),
        method,
        x=tuple(100 * sure[kept]),
        y=tuple(100 * right[kept]),
        labels=tuple(f"{int(sizes[k])} of {len(confidence)} rows" for k in kept),
        weight=tuple(sizes[kept] / len(confidence)),
    )


def bin_rows(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, mean confidence and accuracy of each bin ((k − 1)/10, k/10]; empty bins have no rows."""
    place = bin_of(confidence)
    sizes = np.bincount(place, minlength=BINS)
    least = np.maximum(sizes, 1)
    sure = np.bincount(place, weights=confidence, minlength=BINS) / least
    right = np.bincount(place, weights=correct, minlength=BINS) / least
    return sizes, sure, right
