"""C6: as bits fall, error rises more slowly for Bayesian methods than for pointwise networks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Unit, combine
from qbayes.lab.analysis.run_groups import Cell, beside_pointwise, preferred, sweeps
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Above, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.losses import apart, loss_rows, unit_of
from qbayes.lab.paper.judge.margins import main_margin

CLAIM = "As bits fall, error rises more slowly for Bayesian methods than for pointwise networks"
FEWEST_WIDTHS = 3  # a slope through two points has no say about a trend


@CLAIMS.register("c06_slower_rise")
def judge(frame: Frame) -> Verdict:
    """A claim of a direction: the slope of pointwise networks less that of each Bayesian method is above 0.

    Slopes are of the loss over bits removed, of the same seeds at the same widths. One that is shown to be
    steeper refutes. Slopes are equal where, from the most bits of the sweep to the fewest, they add up to
    less than the loss that matters to the pointwise network.
    """
    comparisons = [
        one
        for pointwise, bayesian in beside_pointwise(preferred(frame))
        for one in _compare(frame, pointwise, bayesian)
    ]
    wanted = f"pointwise and a Bayesian method at {FEWEST_WIDTHS} widths or more of one sweep"
    return conclude("C6", CLAIM, judge_each(comparisons), figure="activation_bits", wanted=wanted)


def _compare(frame: Frame, pointwise: list[Cell], bayesian: list[Cell]) -> list[Comparison]:
    found = []
    ours, theirs = sweeps(bayesian), sweeps(pointwise)
    for sweep in ours:
        widths = sorted(set(ours[sweep]) & set(theirs[sweep]))
        if len(widths) < FEWEST_WIDTHS:
            continue
        one, other = ours[sweep][widths[0]], theirs[sweep][widths[0]]
        rows = [slope_rows(frame, some[sweep], widths) for some in (theirs, ours)]
        slower = apart(slopes(theirs[sweep], widths), slopes(ours[sweep], widths), rows, one)
        if slower is not None:
            text = f"slope over {sweep} bits, pointwise less {one.method}"
            rule = Above(0.0, tie=main_margin(other) / (widths[-1] - widths[0]))
            found.append(Comparison(one.where, one.method, text, f"{unit_of(one)} a bit", slower, rule))
    return found


def slopes(sweep: Mapping[int, Cell], widths: Sequence[int]) -> dict[Unit, float]:
    """Least-squares slope of each run's loss over bits removed."""
    losses = [sweep[width].losses() for width in widths]
    shared = set(losses[0]).intersection(*losses)
    weights = _weights(widths)
    return {which: _slope(weights, np.array([some[which] for some in losses])) for which in shared}


def slope_rows(frame: Frame, sweep: Mapping[int, Cell], widths: Sequence[int]) -> float | None:
    """The error of a slope over test rows: its weights sum to 0, so that what all widths share falls out."""
    errors = [loss_rows(frame, sweep[width]) for width in widths]
    weights = _weights(widths).tolist()
    return combine(None if error is None else w * error for w, error in zip(weights, errors, strict=True))


def _weights(widths: Sequence[int]) -> np.ndarray:
    removed = -(np.array(widths, dtype=float) - np.mean(widths))
    return removed / (removed @ removed)


def _slope(weights: np.ndarray, losses: np.ndarray) -> float:
    """A loss without end rises without end, wherever it lies; a gain without end has no slope."""
    if np.isfinite(losses).all():
        return float(weights @ losses)
    return math.inf if np.isposinf(losses).any() else math.nan
