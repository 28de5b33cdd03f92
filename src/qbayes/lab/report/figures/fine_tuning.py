"""Calibrated beside trained: what fine-tuning on the grid buys at each precision."""

from collections.abc import Mapping, Sequence

from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import FIGURES, FLOAT, Chart, Figure, Series
from qbayes.lab.report.charts.groups import (
    Group,
    by,
    by_method,
    groups_of,
    precision_of,
    precision_order,
    repeats,
)
from qbayes.lab.report.charts.points import Repeats, label_of, line, needs_log, note_of, points_at, unit

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
            for methods in [{name: _ways(rows) for name, rows in by_method(group.rows).items()}]
            for metric in METRICS
            for method, ways in methods.items()
            for chart in _chart(group, method, ways, metric)
        ]


def _ways(rows: Sequence[Row]) -> dict[str, dict[str, Repeats]]:
    """The repeats of each precision, trained and calibrated."""
    found = by(rows, lambda row: str(row.get("training")))
    return {way: repeats(found.get(way, ()), precision_of) for way in WAYS}


def _chart(group: Group, method: str, ways: Mapping[str, Mapping[str, Repeats]], metric: str) -> list[Chart]:
    order = [name for name in precision_order(group.bits) if all(name in found for found in ways.values())]
    floats = {name: some for name, some in group.methods[method].items() if name == FLOAT}
    made: list[Series] = []
    left_out: dict[str, list[str]] = {}
    for way, dashed in WAYS.items():
        places = {**floats, **{name: ways[way][name] for name in order}}
        series, left_out[way] = line(method, points_at(places, metric), name=way, dashed=dashed)
        made += [] if series is None or len(series.places) < 2 else [series]
    return FineTuning.chart(
        {**group.choices, "metric": unit(metric).label, "method": label_of(method)},
        made,
        title=f"{unit(metric).label}, calibrated and trained, {label_of(method)}, {group.task}",
        x_label="precision",
        y_label=unit(metric).axis,
        kind="lines",
        log_y=needs_log(made),
        note=note_of(left_out),
        categories=(FLOAT, *order),
    )
