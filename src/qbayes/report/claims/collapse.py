"""Where methods collapse: shared by the claims that name bits at which they do (C2, C3, C4).

A run has collapsed where its error is above the midpoint between float and chance, or its RMSE above 0.9 of
the target's deviation; a cell has, where most of its runs have. Claims speak of one side (activations or
weights) at few bits. A cell in which the other side has few bits as well can refute such a claim, by
standing, but not support it: nothing says which side brought it down.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qbayes.report.bootstrap import Estimate, Unit, estimate
from qbayes.report.cells import Cell, has_collapsed
from qbayes.report.claims.base import Above, Comparison
from qbayes.report.pairs import Pair

Side = Literal["activation", "weight"]
MOST = 50.0  # per cent: a cell has collapsed where most of its runs have
ENOUGH_BITS = 7  # the other side is not what brings a network down


@dataclass(frozen=True)
class Part:
    """``method`` is said to collapse at ``bits`` or fewer on one side."""

    method: str
    side: Side
    bits: int

    @property
    def text(self) -> str:
        return f"{self.method} at {self.side[0].upper()} ≤ {self.bits}"


def collapses(part: Part, cells: Iterable[Cell], subject: str | None = None) -> list[Comparison]:
    """One comparison a width of the part; cells of several tasks at one width are one, over tasks."""
    groups: dict[tuple[int, int, str, str], list[Cell]] = {}
    for cell in cells:
        if cell.method == part.method and getattr(cell, part.side) <= part.bits and _stands_in_float(cell):
            groups.setdefault((cell.weight, cell.activation, cell.scheme, cell.recipe), []).append(cell)
    pure = [key for key in groups if _other_side(part, key) >= ENOUGH_BITS]
    return [_comparison(groups[key], key in pure, subject) for key in pure or groups]


def _other_side(part: Part, key: tuple[int, int, str, str]) -> int:
    return key[0] if part.side == "activation" else key[1]


def _comparison(cells: Sequence[Cell], pure: bool, subject: str | None) -> Comparison:
    label = cells[0].label if subject is None else cells[0].label.replace(cells[0].task, subject, 1)
    quantity = f"collapsed runs ({_mean_score(cells)})"
    return Comparison(label, quantity, "%", share_collapsed(cells), Above(MOST, supports=pure))


def share_collapsed(cells: Sequence[Cell]) -> Estimate:
    """Per cent of the runs; tasks are resampled where there are several."""
    several = len({cell.task for cell in cells}) > 1
    values: dict[Unit, float] = {}
    for cell in cells:
        for pair in cell.pairs:
            which = (cell.task, *pair.unit) if several else pair.unit
            values[which] = 100.0 * has_collapsed(pair)
    return estimate(values)


def _stands_in_float(cell: Cell) -> bool:
    """A float run that is itself no better than an answer without the input says nothing about bits."""
    return not all(has_collapsed(Pair(pair.float, pair.float)) for pair in cell.pairs)


def _mean_score(cells: Sequence[Cell]) -> str:
    if cells[0].is_regression:
        ratios = [value for cell in cells for value in cell.depths().values()]
        return f"RMSE {np.mean(ratios):.2f} of the deviation" if ratios else "RMSE unknown"
    return f"error {np.mean([value for cell in cells for value in cell.values('error').values()]):.1%}"
