"""What a score costs: size and bit operations against error, with the front that nothing beats on both."""

import math
from collections.abc import Mapping, Sequence

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, Chart, Figure, Series
from qbayes.lab.report.charts.groups import Group, groups_of
from qbayes.lab.report.charts.points import Repeats, cloud, unit

COSTS = {
    "bytes": ("size", "size of the file, MB", 1e-6),
    "bit_operations": ("bit operations", "10⁶ bit operations a draw and row", 1e-6),
}
METRICS = ("error", "rmse", "ece", "nll", "crps")


@FIGURES.register("pareto")
class Pareto(Figure):
    """Cost against score, one point a method and precision."""

    name = "pareto"
    title = "What a score costs"
    caption = "Points: a method at a precision, mean over seeds. Nothing is cheaper and better than the line."
    place = 50
    beside = "cost"

    def draw(self, frame: Frame) -> list[Chart]:
        return [
            chart
            for group in groups_of(frame)
            if group.rows
            for metric in METRICS
            for cost in COSTS
            for chart in _chart(group, cost, metric)
        ]


def _chart(group: Group, cost: str, metric: str) -> list[Chart]:
    clouds = [_cloud(method, found, cost, metric) for method, found in group.methods.items()]
    series = [cloud for cloud in clouds if cloud.places]
    if sum(len(cloud.places) for cloud in series) < 2:
        return []
    best = front(series)
    words, axis, _ = COSTS[cost]
    return Pareto.chart(
        {**group.choices, "metric": unit(metric).label, "cost": words},
        [best, *series] if best.x else series,
        title=f"{unit(metric).label} against {words}, {group.task}",
        x_label=axis,
        y_label=unit(metric).axis,
        kind="scatter",
        log_x=True,
    )


def _cloud(method: str, precisions: Mapping[str, Repeats], cost: str, metric: str) -> Series:
    found: list[tuple[float, float, str]] = []
    for precision, some in precisions.items():
        price, score = some.point(cost, COSTS[cost][2]), some.point(metric, unit(metric).scale)
        if price is not None and score is not None and price.mean > 0:
            found.append((price.mean, score.mean, precision))
    return cloud(method, sorted(found))


def front(clouds: Sequence[Series]) -> Series:
    """The points that no other undercuts in one axis without losing in the other, by rising cost."""
    points = sorted((float(x), y) for cloud in clouds for x, y in zip(cloud.x, cloud.y, strict=True))
    best = math.inf
    kept: list[tuple[float, float]] = []
    for x, y in points:
        if y < best:
            best = y
            kept.append((x, y))
    return Series("Pareto front", "", x=tuple(x for x, _ in kept), y=tuple(y for _, y in kept))
