"""C7: activations suffer more from few bits than weights; SGHMC most by weights, MCD most by activations."""

from collections.abc import Mapping

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import Cell, by_method, preferred, sweeps
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Above, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.losses import apart, mean_loss, mean_rows, unit_of
from qbayes.lab.paper.judge.margins import main_margin

CLAIM = (
    "Activations are more sensitive to few bits than weights; SGHMC is the most sensitive to weights, "
    "MC dropout to activations"
)
MOST_BITS = 6  # the two sweeps meet at W8A7; below that they differ
MOST_SENSITIVE = {"weight": "sghmc", "activation": "mcd"}


@CLAIMS.register("c07_activations_suffer")
def judge(frame: Frame) -> Verdict:
    """Claims of a direction, about mean losses at equal n ≤ 6 bits of the same runs.

    - Of every method the loss at W8An less that at WnA7 must be shown to be above 0.
    - So must the loss of SGHMC over weight bits, and that of MC dropout over activation bits, less that of
      each other method.

    One that is shown to be below 0 refutes. Losses are equal where they differ by less than the loss that
    matters to the method: no difference that matters.
    """
    groups = list(by_method(preferred(frame)).values())
    sides = [one for methods in groups for cells in methods.values() for one in _sides(frame, cells)]
    most = {
        side: [one for methods in groups for one in _most(frame, methods, side)] for side in MOST_SENSITIVE
    }
    missing = [] if sides else [f"a method with both W8An and WnA7 at the same n ≤ {MOST_BITS}"]
    for side, name in MOST_SENSITIVE.items():
        missing += [] if most[side] else [f"{name} and another method over {side} bits below 7"]
    comparisons = [*sides, *most["weight"], *most["activation"]]
    return conclude("C7", CLAIM, judge_each(comparisons), figure="weight_bits", missing=missing)


def _sides(frame: Frame, cells: list[Cell]) -> list[Comparison]:
    found = sweeps(cells)
    weights = {n: cell for n, cell in found["weight"].items() if cell.activation == 7}
    text = "loss by activations less loss by weights"
    return _compare(frame, cells[0], found["activation"], weights, text)


def _most(frame: Frame, methods: Mapping[str, list[Cell]], side: str) -> list[Comparison]:
    """The named method against each other one, at the widths that both have."""
    name = MOST_SENSITIVE[side]
    if name not in methods:
        return []
    own, found = sweeps(methods[name])[side], []
    for other, cells in methods.items():
        if other != name:
            text = f"loss over {side} bits, {name} less {other}"
            found += _compare(frame, methods[name][0], own, sweeps(cells)[side], text)
    return found


def _compare(
    frame: Frame, cell: Cell, first: Mapping[int, Cell], second: Mapping[int, Cell], text: str
) -> list[Comparison]:
    few = sorted(width for width in set(first) & set(second) if width <= MOST_BITS)
    if not few:
        return []
    rows = [mean_rows(frame, sweep, few) for sweep in (first, second)]
    more = apart(mean_loss(first, few), mean_loss(second, few), rows, cell)
    if more is None:
        return []
    rule = Above(0.0, tie=main_margin(cell))
    return [Comparison(cell.where, cell.method, text, unit_of(cell), more, rule)]
