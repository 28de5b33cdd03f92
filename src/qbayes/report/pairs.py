"""Quantised runs beside the float runs they came from, and their differences with intervals.

A quantised run is paired with the float run of the same ``float`` stage, draws and other options of the
evaluation: same weights before quantisation, same test rows, same noise. Only what bits changed is left.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from qbayes.metrics.row_errors import ROW_ERROR, row_error
from qbayes.metrics.scores import UNSHIFTED
from qbayes.metrics.scores import metric as metric_named
from qbayes.report.bootstrap import Estimate, Unit, estimate, several_folds
from qbayes.report.frame import Frame, Row
from qbayes.study.table import CONTROL, evaluation_options, float_key
from qbayes.tasks.shifts import LEVELS


@dataclass(frozen=True)
class Pair:
    """A quantised run and the float run that it came from."""

    quantised: Row
    float: Row

    @cached_property
    def unit(self) -> Unit:
        """What tells the pair from others of its condition."""
        return unit(self.quantised)

    def has(self, metric: str) -> bool:
        """Whether both runs were scored by it, on the same rows."""
        rows = rows_of(metric)
        alike = rows is None or self.quantised.get(rows) == self.float.get(rows)
        return alike and metric in self.quantised and metric in self.float


def rows_of(metric: str) -> str | None:
    """The column with the number of rows that a score is of, where not all may have been scored.

    A choice of as many rows is the same choice. Rows of older studies have no such column: all were scored.
    """
    place, _, name = metric.rpartition("/")
    if not name or not place:
        return None
    if place == "confusion":
        return "ood_rows"
    return "shift_rows" if place == UNSHIFTED or place.partition("/")[0] in LEVELS else None


def is_float(row: Row) -> bool:
    return row.get("precision") == "float"


def is_control(row: Row) -> bool:
    """Whether a run is that of a float network with the fine-tuning of a quantised one."""
    return row.get("precision") == CONTROL


def is_quantised(row: Row) -> bool:
    return not (is_float(row) or is_control(row))


def unit(row: Row) -> Unit:
    """What tells the runs of one condition apart: fold, seed, and options of the evaluation."""
    return row.get("fold"), row.get("seed"), *evaluation_options(row)


def paired(frame: Frame) -> list[Pair]:
    """Every quantised row that has a float row, with it, in the order of the rows."""
    return frame.once("pairs", lambda: _all_pairs(frame))


def _all_pairs(frame: Frame) -> list[Pair]:
    floats = {float_key(row): row for row in frame.rows if is_float(row)}
    found = ((row, floats.get(float_key(row))) for row in frame.rows if is_quantised(row))
    return [Pair(row, partner) for row, partner in found if partner is not None]


def difference(
    frame: Frame, pairs: Sequence[Pair], metric: str, *, relative: bool = False, rows: bool = True
) -> Estimate:
    """Mean of ``quantised − float`` (``relative``: ``quantised / float − 1``) with its interval.

    Runs that share one test set are also resampled over its rows, the same rows for both sides and all
    seeds, where details were kept for every run and ``rows`` allows it. Without details the rows of results
    say the error of each run; the mean over seeds is taken for as unsure as one of them on average.
    """
    values = differences(pairs, metric, relative=relative)
    if not rows or several_folds(values):
        return estimate(values)
    sides = (
        (frame.details(str(pair.float["run"])), frame.details(str(pair.quantised["run"]))) for pair in pairs
    )
    return estimate(values, row_error(sides, metric, relative) or _recorded_error(pairs, metric, relative))


def _recorded_error(pairs: Sequence[Pair], metric: str, relative: bool) -> float:
    """The mean of the errors that the runs recorded; 0 where one has none.

    Seeds share their test rows: their errors go together, so that their mean is an upper bound.
    """
    column = ROW_ERROR + metric
    if not all(column in pair.quantised for pair in pairs):
        return 0.0
    scales = (abs(score(pair.float, metric)) if relative else 1.0 for pair in pairs)
    errors = [
        float(pair.quantised[column]) / scale for pair, scale in zip(pairs, scales, strict=True) if scale
    ]
    return sum(errors) / len(errors) if errors else 0.0


def differences(pairs: Iterable[Pair], metric: str, *, relative: bool = False) -> dict[Unit, float]:
    """``quantised − float`` of each run."""
    return {
        pair.unit: _change(score(pair.quantised, metric), score(pair.float, metric), relative)
        for pair in pairs
        if pair.has(metric)
    }


def score(row: Row, metric: str) -> float:
    """The score of a run. What is not a number is no better than infinite, where lower is better."""
    value = float(row[metric])
    return math.inf if math.isnan(value) and metric_named(metric).better == "lower" else value


def between(first: Mapping[Unit, float], second: Mapping[Unit, float]) -> dict[Unit, float]:
    """``first − second`` for the runs that both have."""
    return {which: first[which] - second[which] for which in first if which in second}


def _change(quantised: float, reference: float, relative: bool) -> float:
    if not relative:
        return quantised - reference
    return quantised / reference - 1 if reference else math.nan
