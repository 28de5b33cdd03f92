"""How spread the weights of each layer are in float: the paper's reason for SGHMC's fall at few bits."""

from collections.abc import Mapping, Sequence

from qbayes.lab.analysis.frame import Frame, Row, natural
from qbayes.lab.report.charts.chart import FIGURES, FLOAT, Chart, Figure, Series, chart_name
from qbayes.lab.report.charts.groups import by, by_method, choice_name, free_axes, naming
from qbayes.lab.report.charts.points import Repeats, label_of

MEASURES = {
    "spread/": ("spread", "largest weight over the RMS"),
    "deviation/": ("deviation", "deviation of the weights"),
}
# A float posterior is the same whatever is done to it later.
LATER = ("axis:precision", "axis:quantize", "axis:evaluate")


@FIGURES.register("weight_spread")
class WeightSpread(Figure):
    """Spread and deviation of the weights of each layer, one bar a method."""

    name = "weight_spread"
    title = "How spread the weights are"
    caption = (
        "Float weights by layer, mean over seeds and folds; whiskers: lowest and highest seed. A grid for a "
        "layer must reach its largest weight: twice its ratio to the root mean square (RMS) costs a bit."
    )
    place = 58
    beside = "measure"

    def draw(self, frame: Frame) -> list[Chart]:
        rows = list({str(row.get("float")): row for row in frame.rows if _measured(row)}.values())
        axes = [axis for axis in free_axes(frame) if not axis.startswith(LATER)]
        columns = ("task", "network", "recipe", *axes)
        named = naming(rows, columns)
        charts: list[Chart] = []
        for some in by(rows, lambda row: tuple(str(row.get(column)) for column in columns)).values():
            chosen = {choice_name(column): str(some[0].get(column)) for column in named}
            charts += [chart for kind in MEASURES for chart in _chart(some, chosen, kind)]
        return charts


def _measured(row: Row) -> bool:
    return row.get("precision") == FLOAT and any(name.startswith(tuple(MEASURES)) for name in row)


def _chart(rows: Sequence[Row], chosen: Mapping[str, str], kind: str) -> list[Chart]:
    columns = {name for row in rows for name in row if name.startswith(kind) and row[name] is not None}
    layers = sorted((name.removeprefix(kind) for name in columns), key=natural)
    if not layers:
        return []
    label, axis = MEASURES[kind]
    choices = {**chosen, "measure": label}
    chart = Chart(
        name=chart_name(WeightSpread.name, choices),
        title=f"{axis[:1].upper()}{axis[1:]}, {rows[0].get('task')}",
        x_label="layer",
        y_label=axis,
        kind="bars",
        series=tuple(_bars(method, some, kind, layers) for method, some in by_method(rows).items()),
        choices=choices,
        categories=tuple(layers),
    )
    return [chart]


def _bars(method: str, rows: Sequence[Row], kind: str, layers: Sequence[str]) -> Series:
    repeats = Repeats(rows)
    found = {layer: repeats.point(f"{kind}{layer}") for layer in layers}
    points = {layer: point for layer, point in found.items() if point is not None}
    spread = any(point.seeds > 1 for point in points.values())
    return Series(
        label_of(method),
        method,
        x=tuple(points),
        y=tuple(point.mean for point in points.values()),
        low=tuple(point.low for point in points.values()) if spread else None,
        high=tuple(point.high for point in points.values()) if spread else None,
        labels=tuple(point.label for point in points.values()),
    )
