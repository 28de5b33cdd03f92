"""Which loss counts as one: margins with their reasons, and the differences of a cell in their units."""

import math

from qbayes.metrics.scores import metric as metric_named
from qbayes.report.cells import Cell
from qbayes.report.claims.base import AtMost, Comparison, Rule, Within
from qbayes.report.frame import Frame
from qbayes.report.pairs import difference

# Points of error. Two float networks that differ by their seed alone are about this far apart on CIFAR-10.
ERROR = 0.2
# Points of ECE. A perfectly calibrated network shows about this much on 10,000 rows by chance.
ECE = 0.5
# Nats a row: every label is given 1 % less probability.
NLL = 0.01
# Per cent. Rounding the mean to 16 levels costs 5 % (the deviation of a uniform error on that grid).
RMSE = 1.0
# Share of the largest entropy, log K: 0.023 nat for ten classes.
ENTROPY = 0.01
# Per cent of the predictive interval's width: a Gaussian's entropy is the log of its width, so 0.02 nat.
WIDTH = 2.0

CLASSIFICATION = ("error", "nll", "ece", "entropy", "confusion/entropy")
REGRESSION = ("rmse", "nll", "interval_width_90")
RELATIVE = ("rmse", "crps", "interval_width_90")
_POINTS = ("error", "ece", "ece_adaptive", "ece_per_batch", "ece_per_batch_1024", "confusion/fpr95")


def scores_of(cell: Cell) -> tuple[str, ...]:
    names = REGRESSION if cell.is_regression else CLASSIFICATION
    return tuple(name for name in names if all(pair.has(name) for pair in cell.pairs))


def in_units(metric: str) -> tuple[str, float]:
    """The unit in which differences of a metric are shown, and what they are multiplied with."""
    kind = metric if metric.startswith("confusion/") else metric.rsplit("/", 1)[-1]
    if kind in RELATIVE:
        return "%", 100.0
    if kind in _POINTS:
        return "points", 100.0
    return metric_named(kind).unit, 1.0


def loss_of(frame: Frame, cell: Cell, metric: str) -> Comparison:
    """The paired difference to float, judged as a loss; entropy on confusion data may rise, not fall."""
    unit, scale = in_units(metric)
    found = difference(frame, cell.pairs, metric, relative=metric in RELATIVE).scaled(scale)
    label = metric_named(metric).label
    if metric == "confusion/entropy":
        return Comparison(cell.label, f"fall of {label}", unit, found.scaled(-1), AtMost(largest(cell)))
    return Comparison(cell.label, label, unit, found, rule_of(cell, metric))


def rule_of(cell: Cell, metric: str) -> Rule:
    """The margin of a metric; entropy and interval width have no better side, and must stay."""
    if metric == "entropy":
        return Within(largest(cell))
    if metric == "interval_width_90":
        return Within(WIDTH)
    return AtMost({"error": ERROR, "ece": ECE, "nll": NLL, "rmse": RMSE}[metric.rsplit("/", 1)[-1]])


def largest(cell: Cell, share: float = ENTROPY) -> float:
    """``share`` of the largest entropy that the task's classes allow, in nats."""
    classes = cell.pairs[0].quantised.get("classes")
    return share * math.log(int(classes)) if classes else share
