"""Calibrated beside trained: what fine-tuning on the grid buys at each precision."""

from collections.abc import Sequence

from qbayes.report.chart import FLOAT, Chart
from qbayes.report.figures.base import FIGURES, Figure, chart_name
from qbayes.report.figures.points import (
    Group,
    by,
    by_method,
    groups_of,
    label_of,
    line,
    needs_log,
    note_of,
    precision_order,
    unit,
)
from qbayes.report.frame import Frame, Row

METRICS = ("error", "ece", "nll", "entropy", "rmse", "crps")
# solid and dashed.
WAYS = {"trained": False, "calibrated": True}


@FIGURES.register("fine_tuning")
class FineTuning(Figure):
    """A score over precisions, trained and calibrated only, one panel a method."""

    name = "fine_tuning"
    title = "Calibrated beside trained"
    caption = "Solid: fine-tuned on the grid. Dashed: ranges calibrated only, weights as float left them."
    place = 55
    beside = "method"
    same_y = True

    def draw(self, frame: Frame) -> list[Chart]:
        return [
            chart
            for group in groups_of(frame, apart=("training",))
            if set(WAYS) <= {str(row.get("training")) for row in group.rows}
            for metric in METRICS
            for method, rows in by_method(group.rows).items()
            for chart in _chart(group, method, rows, metric)
        ]


def _chart(group: Group, method: str, rows: Sequence[Row], metric: str) -> list[Chart]:
    ways = by(rows, lambda row: str(row.get("training")))
    both = [{str(row.get("precision")) for row in ways.get(way, ())} for way in WAYS]
    order = precision_order(both[0] & both[1], rows)
    floats = [row for row in group.floats if row.get("method") == method]
    made = []
    left_out = {}
    for way, dashed in WAYS.items():
        of_name = by(ways.get(way, ()), lambda row: str(row.get("precision")))
        places = {FLOAT: floats, **{name: of_name[name] for name in order}}
        series, left_out[way] = line(method, places, metric, name=way, dashed=dashed)
        made += [] if series is None or len(series.x) < 2 else [series]
    if not made:
        return []
    choices = {**group.choices, "metric": unit(metric).label, "method": label_of(method)}
    chart = Chart(
        name=chart_name(FineTuning.name, choices),
        title=f"{unit(metric).label}, calibrated and trained, {label_of(method)}, {group.task}",
        x_label="precision",
        y_label=unit(metric).axis,
        kind="lines",
        series=tuple(made),
        log_y=needs_log(made),
        note=note_of(left_out),
        choices=choices,
        categories=(FLOAT, *order),
    )
    return [chart]
