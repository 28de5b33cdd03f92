"""Scores under shift, float and 8 bits beside each other (the paper's figures 10, 14 and 18)."""

from collections.abc import Mapping

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, FLOAT, Chart, Figure
from qbayes.lab.report.charts.groups import Group, groups_of, precision_order
from qbayes.lab.report.charts.points import Point, Repeats, lines, unit
from qbayes.metrics.scores import UNSHIFTED
from qbayes.tasks.shifts import LEVELS

METRICS = ("ece", "error", "nll", "entropy", "brier", "mutual_information")
UNITS = {"rotation": ("rotation", "{:g}°"), "brightness": ("brightness factor", "×{:g}"),
         "horizontal_shift": ("shift to the right, share of the width", "{:.0%}")}  # fmt: skip
MOST_PANELS = 4


@FIGURES.register("shifts")
class Shifts(Figure):
    """A score over the level of a shift, one panel a precision."""

    name = "shifts"
    title = "Under shift"
    caption = "Test data, moved ever further from what was learnt. Whiskers: lowest to highest seed."
    place = 30
    beside = "precision"
    same_y = True

    def draw(self, frame: Frame) -> list[Chart]:
        return [
            chart
            for group in groups_of(frame)
            for shift in LEVELS
            if _was_scored(group, shift)
            for metric in METRICS
            for precision, methods in _panels(group).items()
            for chart in _chart(group, precision, methods, shift, metric)
        ]


def _was_scored(group: Group, shift: str) -> bool:
    """Whether any row has scores under the shift: a study may shift its images for some of its runs only."""
    return any(key.startswith(f"{shift}/") for row in (*group.rows, *group.floats) for key in row)


def _panels(group: Group) -> dict[str, dict[str, Repeats]]:
    """Float, the paper's 8-bit point (or ours), and the lowest bits: at most four precisions, by method."""
    eight = [name for name in ("W8A7", "W8A8") if name in group.bits]
    others = [name for name in precision_order(group.bits) if name not in eight]
    low = [name for name in ("W4A4", "W3A3") if name in others] or others[-1:]
    kept = [FLOAT, *(eight or others[:1]), *low][:MOST_PANELS]
    panels = {
        name: {method: found[name] for method, found in group.methods.items() if name in found}
        for name in kept
    }
    return {name: methods for name, methods in panels.items() if methods}


def _clean(some: Repeats, metric: str) -> str:
    """Where not all rows were shifted, the clean score is that of the rows that were."""
    chosen = f"{UNSHIFTED}/{metric}"
    return chosen if any(chosen in row for row in some.rows) else metric


def _chart(
    group: Group, precision: str, methods: Mapping[str, Repeats], shift: str, metric: str
) -> list[Chart]:
    about, written = UNITS[shift]
    categories = ("clean", *(written.format(level) for level in LEVELS[shift]))
    levels_of = [f"{shift}/{level}/{metric}" for level in range(1, len(LEVELS[shift]) + 1)]
    shown, words = unit(metric), shift.replace("_", " ")
    points: dict[str, dict[str, Point | None]] = {}
    for method, some in methods.items():
        levels = zip(categories, (_clean(some, metric), *levels_of), strict=True)
        points[method] = {x: some.point(column, shown.scale) for x, column in levels}
    series, note = lines(points, keep=lambda made: len(made.places) > 1)
    return Shifts.chart(
        {**group.choices, "shift": words, "metric": shown.label, "precision": precision},
        series,
        title=f"{shown.label} under {words}, {precision}, {group.task}",
        x_label=about,
        y_label=shown.axis,
        kind="lines",
        note=note,
        categories=categories,
        main=precision in (FLOAT, "W8A7", "W8A8") or not group.rows,
    )
