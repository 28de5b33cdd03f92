"""Which difference matters: one table of margins, relative to the float value of that metric and task.

A margin is the larger of two numbers:

- A share of the float value, ``SHARES``. An absolute margin is a third of one network's error and a fortieth
  of another's: 0.2 points are nothing on CIFAR-10 and much on MNIST.
- The resolution of the test set: the standard error of the float value itself over the test rows. A smaller
  loss nobody can see on these rows.

| metric | share | why |
| --- | --- | --- |
| error, NLL | 5 % | two float trainings that differ by the seed alone differ by about as much |
| ECE | 10 % | its value is a sum of absolute gaps, half chance where the network is well calibrated |
| entropy, on test and confusion rows | 5 % | as NLL, which it equals where probabilities are right |
| RMSE | 1 % | rounding the mean to 16 levels costs 5 % |
| width of the 90 % interval | 2 % | a Gaussian's entropy is the log of its width, so 0.02 nat |
| NLL of a regression | 0.01 nat | it has no zero to take a share of; every density is 1 % less |

Under shift, and over all bits, a claim says "nearly" or "stays": there ``times`` is 2.

Scores under shift (C8, C9, C13) are the mean over the five levels of each shift. Levels of one shift are the
same rows shifted more and more: five lines instead of one say little more, and make the correction for their
number five times as hard.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Estimate, Unit, estimate, shared_means
from qbayes.lab.analysis.pairs import (
    Pair,
    binomial,
    difference,
    differences,
    overlap,
    plain_mean,
    rows_term,
    score,
)
from qbayes.lab.analysis.run_groups import Cell
from qbayes.lab.paper.judge.judgement import AtMost, Comparison, Rule, Within
from qbayes.lab.paper.judge.losses import mean_of
from qbayes.metrics.row_errors import ROW_ERROR
from qbayes.metrics.scores import UNSHIFTED
from qbayes.metrics.scores import metric as metric_named
from qbayes.tasks.shifts import LEVELS

SHARES = {
    "error": 0.05,
    "nll": 0.05,
    "ece": 0.10,
    "entropy": 0.05,
    "confusion/entropy": 0.05,
    "rmse": 0.01,
    "interval_width_90": 0.02,
}
DENSITY = 0.01  # nats a row
NEARLY = 2.0  # how often the margin, where a claim says "nearly" or "stays"

CLASSIFICATION = ("error", "nll", "ece", "entropy", "confusion/entropy")
REGRESSION = ("rmse", "nll", "interval_width_90")
RELATIVE = ("rmse", "crps", "interval_width_90")
_POINTS = ("error", "ece", "ece_adaptive", "ece_per_batch", "ece_per_batch_1024", "confusion/fpr95")
_OF_ROWS = ("error", "ece")  # their resolution is that of a share of the rows
SHIFTS = tuple(LEVELS)


def scores_of(cell: Cell) -> tuple[str, ...]:
    names = REGRESSION if cell.is_regression else CLASSIFICATION
    return tuple(name for name in names if all(pair.has(name) for pair in cell.pairs))


def in_units(metric: str) -> tuple[str, float]:
    """The unit in which differences of a metric are shown, and what they are multiplied with."""
    kind = _kind(metric)
    if kind in RELATIVE:
        return "%", 100.0
    if kind in _POINTS:
        return "points", 100.0
    return metric_named(kind).unit, 1.0


def _kind(metric: str) -> str:
    return metric if metric.startswith("confusion/") else metric.rsplit("/", 1)[-1]


def margin(pairs: Sequence[Pair], metric: str, times: float = 1.0) -> float:
    """The difference of a metric that matters beside these float runs, in the units of ``in_units``."""
    return margin_of([pair.float for pair in pairs], (metric,), times)


def margin_of(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], times: float = 1.0) -> float:
    """The same beside any rows, of the mean over ``metrics``: one metric at several levels of a shift."""
    kind = _kind(metrics[0])
    scale, share = in_units(metrics[0])[1], SHARES[kind]
    if kind in RELATIVE:
        return times * share * scale
    if kind == "nll" and any("rmse" in row for row in rows):
        return times * DENSITY
    values = [abs(score(row, name)) for row in rows for name in metrics if name in row]
    finite = [value for value in values if math.isfinite(value)]
    errors = [error for row in rows for name in metrics if (error := resolution(row, name)) is not None]
    return scale * max(times * share * plain_mean(finite), plain_mean(errors))


def resolution(row: Mapping[str, Any], metric: str) -> float | None:
    """The standard error of a float row's own score over its test rows; None where nothing says it."""
    recorded = row.get(ROW_ERROR + metric)
    if recorded is not None:
        return float(recorded)
    return binomial(row, metric) if _kind(metric) in _OF_ROWS else None


def main_margin(cell: Cell) -> float:
    """The loss of error (points) or RMSE (per cent) that matters: what slopes and losses are compared by."""
    return margin(cell.pairs, "rmse" if cell.is_regression else "error")


def change(frame: Frame, cell: Cell, metric: str) -> Estimate:
    """The paired difference to float in the units of ``in_units``; of RMSE and widths relative to float."""
    return difference(frame, cell.pairs, metric, relative=metric in RELATIVE).scaled(in_units(metric)[1])


def loss_of(frame: Frame, cell: Cell, metric: str, times: float = 1.0) -> Comparison:
    """The paired difference to float, judged as a loss; entropy on confusion data may rise, not fall."""
    found, unit = change(frame, cell, metric), in_units(metric)[0]
    label, rule = metric_named(metric).label, rule_of(cell, metric, times)
    if metric == "confusion/entropy":
        label, found = f"fall of {label}", found.scaled(-1)
    return Comparison(cell.label, cell.method, label, unit, found, rule)


def rule_of(cell: Cell, metric: str, times: float = 1.0) -> Rule:
    """Entropy and interval width have no better side, and must stay; all else may get better."""
    size = margin(cell.pairs, metric, times)
    return Within(size) if metric in ("entropy", "interval_width_90") else AtMost(size)


def columns(shift: str, metric: str) -> list[str]:
    return [f"{shift}/{level}/{metric}" for level in range(1, len(LEVELS[shift]) + 1)]


def level_change(frame: Frame, cell: Cell, shift: str, metric: str) -> Estimate | None:
    """The mean over the levels of ``quantised − float``, in units; None where it was not scored."""
    names = columns(shift, metric)
    values = shared_means([differences(cell.pairs, name) for name in names])
    if not values:
        return None
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
    means = shared_means([cell.values(name, side) for name in columns(shift, "ece")])
    return {
        (*which, ("shift_rows", rows.get(which))): 100 * (mean - clean[which])
        for which, mean in means.items()
        if which in clean
    }
