"""C6: as bits fall, error rises more slowly for Bayesian methods than for pointwise networks."""

import math
from collections.abc import Mapping

import numpy as np

from qbayes.report.bootstrap import Unit, estimate
from qbayes.report.cells import POINTWISE, Cell, by_method, preferred, sweeps
from qbayes.report.claims.base import CLAIMS, Above, Comparison, Verdict, conclude, judged
from qbayes.report.frame import Frame
from qbayes.report.pairs import between

CLAIM = "As bits fall, error rises more slowly for Bayesian methods than for pointwise networks"
FEWEST_WIDTHS = 3  # a slope through two points has no say about a trend
# Points of error (per cent of RMSE) a bit: slopes that differ by less are equal. Five bits make 0.25.
TIE = 0.05


@CLAIMS.register("c6")
def judge(frame: Frame) -> Verdict:
    """Slopes of error over bits removed, pointwise less Bayesian, of the same seeds at the same widths."""
    comparisons = [
        one
        for methods in by_method(preferred(frame)).values()
        for name, cells in methods.items()
        if POINTWISE in methods and name != POINTWISE
        for one in _compared(methods[POINTWISE], cells)
    ]
    wanted = f"pointwise and a Bayesian method at {FEWEST_WIDTHS} widths or more of one sweep"
    return conclude(
        "C6",
        CLAIM,
        judged(comparisons),
        figure="activation_bits",
        missing=[] if comparisons else [wanted],
    )


def _compared(pointwise: list[Cell], bayesian: list[Cell]) -> list[Comparison]:
    found = []
    ours, theirs = sweeps(bayesian), sweeps(pointwise)
    for sweep in ours:
        widths = sorted(set(ours[sweep]) & set(theirs[sweep]))
        if len(widths) >= FEWEST_WIDTHS:
            slower = between(slopes(theirs[sweep], widths), slopes(ours[sweep], widths))
            one = ours[sweep][widths[0]]
            unit = "% of RMSE a bit" if one.is_regression else "points a bit"
            text = f"slope over {sweep} bits, pointwise less {one.method}"
            found.append(Comparison(one.where, text, unit, estimate(slower), Above(0.0, TIE)))
    return found


def slopes(sweep: Mapping[int, Cell], widths: list[int]) -> dict[Unit, float]:
    """Least-squares slope of each run's loss over bits removed."""
    losses = [sweep[width].losses() for width in widths]
    shared = set(losses[0]).intersection(*losses)
    removed = -(np.array(widths, dtype=float) - np.mean(widths))
    return {which: _slope(removed, np.array([some[which] for some in losses])) for which in shared}


def _slope(removed: np.ndarray, losses: np.ndarray) -> float:
    """A loss without end rises without end, wherever it lies; a gain without end has no slope."""
    if np.isfinite(losses).all():
        return float(removed @ losses / (removed @ removed))
    return math.inf if np.isposinf(losses).any() else math.nan
