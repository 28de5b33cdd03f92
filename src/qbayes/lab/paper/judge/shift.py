"""Scores under shift as claims look at them (C8, C9, C13): the mean over the five levels of each shift.

Levels of one shift are the same rows shifted more and more: five lines instead of one say little more, and
make the correction for their number five times as hard.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Estimate, Unit, estimate
from qbayes.lab.analysis.pairs import differences, overlap, rows_term
from qbayes.lab.analysis.run_groups import Cell
from qbayes.lab.paper.judge.losses import mean_of
from qbayes.lab.paper.judge.margins import in_units, margin_of
from qbayes.metrics.scores import UNSHIFTED
from qbayes.tasks.shifts import LEVELS

SHIFTS = tuple(LEVELS)


def columns(shift: str, metric: str) -> list[str]:
    return [f"{shift}/{level}/{metric}" for level in range(1, len(LEVELS[shift]) + 1)]


def level_change(frame: Frame, cell: Cell, shift: str, metric: str) -> Estimate | None:
    """The mean over the levels of ``quantised − float``, in units; None where it was not scored."""
    names = columns(shift, metric)
    found = [differences(cell.pairs, name) for name in names]
    shared = set(found[0]).intersection(*found)
    if not shared:
        return None
    values = {which: float(np.mean([some[which] for some in found])) for which in shared}
    rows = mean_of([rows_term(frame, cell.pairs, name) for name in names])
    return estimate(values, rows, overlap(cell.pairs)).scaled(in_units(metric)[1])


def level_margin(rows: Sequence[Mapping[str, Any]], shift: str, metric: str, times: float = 1.0) -> float:
    """The difference that matters beside the float rows' mean over the levels."""
    return margin_of(rows, columns(shift, metric), times)


def rises(cell: Cell, shift: str, side: str) -> dict[Unit, float]:
    """Points of ECE that a shift adds, the mean over its levels, for each run.

    Where not all rows were shifted, the clean ECE is that of the rows that were. Rises on other numbers of
    rows are rises of other runs: they are not set against each other.
    """
    clean = cell.values("ece", side) | cell.values(f"{UNSHIFTED}/ece", side)
    rows = cell.values("shift_rows", side)
    levels = [cell.values(name, side) for name in columns(shift, "ece")]
    shared = set(clean).intersection(*levels)
    means = {which: float(np.mean([some[which] for some in levels])) for which in shared}
    return {
        (*which, ("shift_rows", rows.get(which))): 100 * (mean - clean[which])
        for which, mean in means.items()
    }
