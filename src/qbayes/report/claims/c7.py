"""C7: activations suffer more from few bits than weights; SGHMC most by weights, MCD most by activations."""

from collections.abc import Mapping

import numpy as np

from qbayes.report.bootstrap import Unit, estimate
from qbayes.report.cells import Cell, by_method, preferred, sweeps
from qbayes.report.claims.base import CLAIMS, Above, Comparison, Verdict, conclude, judged
from qbayes.report.frame import Frame
from qbayes.report.pairs import between

CLAIM = (
    "Activations are more sensitive to few bits than weights; SGHMC is the most sensitive to weights, "
    "MC dropout to activations"
)
MOST_BITS = 6  # the two sweeps meet at W8A7; below that they differ
# Points of error (per cent of RMSE): losses that differ by less are equal, half of what C1 lets pass.
TIE = 0.1
MOST_SENSITIVE = {"weight": "sghmc", "activation": "mcd"}


@CLAIMS.register("c7")
def judge(frame: Frame) -> Verdict:
    """Losses at W8An against those at WnA7 for equal n ≤ 6, of the same runs."""
    groups = list(by_method(preferred(frame)).values())
    sides = [one for methods in groups for cells in methods.values() for one in _sides(cells)]
    most = {side: [one for methods in groups for one in _most(methods, side)] for side in MOST_SENSITIVE}
    missing = [] if sides else [f"a method with both W8An and WnA7 at the same n ≤ {MOST_BITS}"]
    for side, name in MOST_SENSITIVE.items():
        missing += [] if most[side] else [f"{name} and another method over {side} bits below 7"]
    comparisons = [*sides, *most["weight"], *most["activation"]]
    return conclude(
        "C7",
        CLAIM,
        judged(comparisons),
        figure="weight_bits",
        missing=missing,
    )


def _sides(cells: list[Cell]) -> list[Comparison]:
    found = sweeps(cells)
    few = _few(found["activation"]) & _few(
        {n: cell for n, cell in found["weight"].items() if cell.activation == 7}
    )
    if not few:
        return []
    apart = between(_mean_loss(found["activation"], few), _mean_loss(found["weight"], few))
    return [_comparison(cells[0], "loss by activations less loss by weights", apart)]


def _most(methods: Mapping[str, list[Cell]], side: str) -> list[Comparison]:
    """The named method against each other one, at the widths that both have."""
    name = MOST_SENSITIVE[side]
    if name not in methods:
        return []
    own, found = sweeps(methods[name])[side], []
    for other, cells in methods.items():
        theirs = sweeps(cells)[side]
        few = _few(own) & _few(theirs)
        if other != name and few:
            apart = between(_mean_loss(own, few), _mean_loss(theirs, few))
            found.append(_comparison(methods[name][0], f"loss over {side} bits, {name} less {other}", apart))
    return found


def _comparison(cell: Cell, quantity: str, apart: Mapping[Unit, float]) -> Comparison:
    unit = "% of RMSE" if cell.is_regression else "points"
    return Comparison(cell.where, quantity, unit, estimate(apart), Above(0.0, TIE))


def _few(sweep: Mapping[int, Cell]) -> set[int]:
    return {width for width in sweep if width <= MOST_BITS}


def _mean_loss(sweep: Mapping[int, Cell], widths: set[int]) -> dict[Unit, float]:
    losses = [sweep[width].losses() for width in sorted(widths)]
    shared = set(losses[0]).intersection(*losses)
    return {which: float(np.mean([some[which] for some in losses])) for which in shared}
