"""Scores at each precision, for studies whose precisions make no sweep (float and W8A8, say)."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import FIGURES, FLOAT, Chart, Figure, chart_name
from qbayes.lab.report.charts.groups import Group, groups_of, precision_order
from qbayes.lab.report.charts.points import line, needs_log, note_of, points_at, unit
from qbayes.lab.report.charts.sweep import MAIN, MORE, NAMES, SWEEPS


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
    made = []
    left_out = {}
    for method, found in group.methods.items():
        places = {name: found[name] for name in order if name in found}
        series, missing = line(method, points_at(places, metric))
        if series is not None:
            made.append(series)
            left_out[series.name] = missing
    if not made:
        return []
    choices = {**group.choices, "metric": NAMES.get(metric, unit(metric).label)}
    chart = Chart(
        name=chart_name(Precisions.name, choices),
        title=f"{choices['metric']} at each precision, {group.task}",
        x_label="precision",
        y_label=unit(metric).axis if metric not in NAMES else f"{NAMES[metric]}, nat",
        kind="lines",
        series=tuple(made),
        log_y=needs_log(made),
        note=note_of(left_out),
        choices=choices,
        categories=order,
        main=metric in MAIN,
    )
    return [chart]
