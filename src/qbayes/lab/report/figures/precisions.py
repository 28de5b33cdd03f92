"""Scores at each precision, for studies whose precisions make no sweep (float and W8A8, say)."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, FLOAT, Chart, Figure
from qbayes.lab.report.charts.groups import Group, groups_of, precision_order
from qbayes.lab.report.charts.points import lines, needs_log, points_at
from qbayes.lab.report.charts.sweep import MAIN, MORE, SWEEPS, score_unit


@FIGURES.register("precisions")
class Precisions(Figure):
    """Each score at each precision, one line a method."""

    name = "precisions"
    title = "At each precision"
    caption = "Means over seeds and folds; whiskers: lowest and highest seed. Dotted: the level of float."
    place = 13

    def draw(self, frame: Frame) -> list[Chart]:
        groups = [group for group in groups_of(frame) if (group.rows or group.floats) and not _swept(group)]
        return [chart for group in groups for m in (*MAIN, *MORE) for chart in _chart(group, m)]


def _swept(group: Group) -> bool:
    """Whether the figures over bits show all precisions of the group."""
    sweeps = [sweep for over in SWEEPS.values() for sweep in over(group)]
    shown = {name for sweep in sweeps for name in sweep.precisions.values()}
    return bool(shown) and group.bits.keys() <= shown


def _chart(group: Group, metric: str) -> list[Chart]:
    order = (FLOAT, *precision_order(group.bits))
    points = {
        method: points_at({name: found[name] for name in order if name in found}, metric)
        for method, found in group.methods.items()
    }
    (series, note), shown = lines(points), score_unit(metric)
    return Precisions.chart(
        {**group.choices, "metric": shown.label},
        series,
        title=f"{shown.label} at each precision, {group.task}",
        x_label="precision",
        y_label=shown.axis,
        kind="lines",
        log_y=needs_log(series),
        note=note,
        categories=order,
        main=metric in MAIN,
    )
