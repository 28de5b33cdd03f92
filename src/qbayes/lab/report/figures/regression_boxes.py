"""Box plots over regression sets (the paper's figures 4 and 5): what quantisation does to each of them.

Of each set, the mean over its folds and seeds of a paired comparison with float: RMSE as a ratio, NLL as a
difference. Sets with targets in dollars and in megawatts then share an axis.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure
from qbayes.lab.report.charts.groups import Group, groups_of
from qbayes.lab.report.charts.points import cloud, mean, needs_log, number
from qbayes.lab.report.charts.sweep import SWEEPS, Sweep


@dataclass(frozen=True)
class Measure:
    """A paired comparison of a quantised row with its float row."""

    metric: str
    label: str
    axis: str
    level: float
    compare: Callable[[float, float], float]


MEASURES = (
    Measure("rmse", "RMSE, relative", "RMSE relative to float", 1.0, lambda here, there: here / there),
    Measure("nll", "NLL, difference", "NLL minus that of float, nat", 0.0, lambda here, there: here - there),
    Measure("crps", "CRPS, relative", "CRPS relative to float", 1.0, lambda here, there: here / there),
)


# Ratios are read by factors: one set that is ten times worse must not press all others to the ground.
WIDE_RATIO = 5.0


@FIGURES.register("regression_boxes")
class RegressionBoxes(Figure):
    """Boxes over sets, by bits and method."""

    name = "regression_boxes"
    title = "Regression sets together"
    caption = (
        "Each dot is a data set: the mean over its folds and seeds of the paired comparison with float. "
        "Boxes span the quartiles, with a line at the median."
    )
    place = 15
    beside = "measure"

    def draw(self, frame: Frame) -> list[Chart]:
        groups = [group for group in groups_of(frame) if any(number(row, "rmse") for row in group.rows)]
        # one chart takes in all the tasks that agree in every other choice.
        alike: dict[tuple[tuple[str, str], ...], list[Group]] = defaultdict(list)
        for group in groups:
            alike[tuple((key, value) for key, value in group.choices.items() if key != "task")].append(group)
        charts: list[Chart] = []
        for choices, some in alike.items():
            if len(some) > 1:
                for over in SWEEPS:
                    charts += [chart for m in MEASURES for chart in _chart(dict(choices), some, over, m)]
        return charts


def _chart(rest: Mapping[str, str], groups: Sequence[Group], over: str, measure: Measure) -> list[Chart]:
    found: dict[str, list[tuple[str, float, str]]] = defaultdict(list)
    widths: set[int] = set()
    about = ""
    for group in groups:
        for sweep in SWEEPS[over](group)[:1]:
            about = sweep.about
            for method, values in _of_set(group, sweep, measure).items():
                found[method] += [(str(width), value, group.task) for width, value in values]
                widths |= {width for width, _ in values}
    series = [cloud(method, values) for method, values in found.items()]
    return RegressionBoxes.chart(
        {**rest, "over": over, "measure": measure.label},
        series,
        title=f"{measure.axis} over {about}, {len(groups)} data sets",
        x_label=about,
        y_label=measure.axis,
        kind="boxes",
        log_y=needs_log(series, WIDE_RATIO),
        categories=tuple(map(str, sorted(widths, reverse=True))),
        level=measure.level,
        main=measure.metric != "crps",
    )


def _of_set(group: Group, sweep: Sweep, measure: Measure) -> dict[str, list[tuple[int, float]]]:
    """By method, the mean of the comparison at each width."""
    found: dict[str, dict[int, list[float]]] = {}
    for width, precision in sorted(sweep.precisions.items()):
        for method, precisions in group.methods.items():
            rows = precisions[precision].rows if precision in precisions else ()
            compared = [value for row in rows if (value := _compare(group, row, measure)) is not None]
            if compared:
                found.setdefault(method, {})[width] = compared
    return {
        method: [(width, mean(values)) for width, values in widths.items()]
        for method, widths in found.items()
    }


def _compare(group: Group, row: Row, measure: Measure) -> float | None:
    partner = group.partner.get(str(row["run"]))
    here = number(row, measure.metric)
    there = None if partner is None else number(partner, measure.metric)
    if here is None or there is None or (measure.level == 1 and there == 0):
        return None
    # a float score that is not finite leaves nothing to compare with.
    return measure.compare(here, there) if math.isfinite(there) else math.nan
