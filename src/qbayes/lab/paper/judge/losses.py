"""Losses over widths as claims compare them: means and slopes with the errors of their test rows."""

from collections.abc import Mapping, Sequence

import numpy as np

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Estimate, Unit, combined, estimate
from qbayes.lab.analysis.pairs import between, overlap, rows_term
from qbayes.lab.analysis.run_groups import Cell

Sweep = Mapping[int, Cell]


def loss_rows(frame: Frame, cell: Cell) -> float | None:
    """The error over test rows of ``Cell.losses``: points of error, or per cent of RMSE."""
    metric = "rmse" if cell.is_regression else "error"
    found = rows_term(frame, cell.pairs, metric, relative=cell.is_regression)
    return None if found is None else 100 * found


def unit_of(cell: Cell) -> str:
    return "% of RMSE" if cell.is_regression else "points"


def mean_loss(sweep: Sweep, widths: Sequence[int]) -> dict[Unit, float]:
    """The mean over some widths of each run's loss."""
    losses = [sweep[width].losses() for width in widths]
    shared = set(losses[0]).intersection(*losses)
    return {which: float(np.mean([some[which] for some in losses])) for which in shared}


def mean_rows(frame: Frame, sweep: Sweep, widths: Sequence[int]) -> float | None:
    """Its error over rows: widths share their rows, so that the mean of their errors is an upper bound."""
    return mean_of([loss_rows(frame, sweep[width]) for width in widths])


def mean_of(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return sum(known) / len(known) if known and len(known) == len(errors) else None


def apart(
    first: Mapping[Unit, float],
    second: Mapping[Unit, float],
    rows: Sequence[float | None],
    cell: Cell,
) -> Estimate | None:
    """``first − second`` of the same runs; None where they share none."""
    values = between(first, second)
    return estimate(values, combined(rows), overlap(cell.pairs)) if values else None
