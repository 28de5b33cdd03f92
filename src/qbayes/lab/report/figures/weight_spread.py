"""How spread the weights of each layer are in float: the paper's reason for SGHMC's fall at few bits."""

from collections.abc import Mapping, Sequence

from qbayes.lab.analysis.frame import Frame, Row, natural
from qbayes.lab.report.charts.chart import FIGURES, FLOAT, Chart, Figure, Series
from qbayes.lab.report.charts.groups import by_method, free_axes, split_by
from qbayes.lab.report.charts.points import Repeats, with_spread

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
        rows = list({str(row.get("float")): row for row in frame.rows if _is_measured(row)}.values())
        axes = [axis for axis in free_axes(frame) if not axis.startswith(LATER)]
        return [
            chart
            for chosen, some in split_by(rows, ("task", "network", "recipe", *axes))
            for kind in MEASURES
            for chart in _chart(some, chosen, kind)
        ]


def _is_measured(row: Row) -> bool:
    return row.get("precision") == FLOAT and any(name.startswith(tuple(MEASURES)) for name in row)


def _chart(rows: Sequence[Row], chosen: Mapping[str, str], kind: str) -> list[Chart]:
    columns = {name for row in rows for name in row if name.startswith(kind) and row[name] is not None}
    layers = sorted((name.removeprefix(kind) for name in columns), key=natural)
    label, axis = MEASURES[kind]
    return WeightSpread.chart(
        {**chosen, "measure": label},
        [_bars(method, some, kind, layers) for method, some in by_method(rows).items()] if layers else [],
        title=f"{axis[:1].upper()}{axis[1:]}, {rows[0].get('task')}",
        x_label="layer",
        y_label=axis,
        kind="bars",
        categories=tuple(layers),
    )


def _bars(method: str, rows: Sequence[Row], kind: str, layers: Sequence[str]) -> Series:
    repeats = Repeats(rows)
    found = {layer: repeats.point(f"{kind}{layer}") for layer in layers}
    return with_spread(method, {layer: point for layer, point in found.items() if point is not None})
