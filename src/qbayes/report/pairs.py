"""Quantised runs beside the float runs they came from, and their differences with intervals.

A quantised run is paired with the float run of the same ``float`` stage, draws and other options of the
evaluation: same weights before quantisation, same test rows, same noise. Only what bits changed is left.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from qbayes.metrics.scores import UNSHIFTED
from qbayes.metrics.scores import metric as metric_named
from qbayes.report.bootstrap import Estimate, Unit, estimate, resampled_means, several_folds
from qbayes.report.frame import AXIS, Details, Frame, Row, axes
from qbayes.study.table import CONTROL
from qbayes.tasks.shifts import LEVELS

BINS = 10  # as in qbayes.metrics.calibration.ece
EVALUATION = f"{AXIS}evaluate."
# told by columns of their own; and what adds scores without changing the others.
_NO_CONDITION = ("draws", "backend", "shifts", "confusion", "agreement", "shift_rows", "ood_rows")


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


@dataclass(frozen=True)
class Statistic:
    """A score from details: ``finish(means of columns)``, so that resampling rows is one product."""

    columns: Callable[[Details], np.ndarray]
    finish: Callable[[np.ndarray], np.ndarray]
    needs: tuple[str, ...]


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
    return row.get("fold"), row.get("seed"), *_evaluation(row)


def paired(frame: Frame) -> list[Pair]:
    """Every quantised row that has a float row, with it, in the order of the rows."""
    return frame.once("pairs", lambda: _all_pairs(frame))


def _all_pairs(frame: Frame) -> list[Pair]:
    floats = {_float_key(row): row for row in frame.rows if is_float(row)}
    found = ((row, floats.get(_float_key(row))) for row in frame.rows if is_quantised(row))
    return [Pair(row, partner) for row, partner in found if partner is not None]


def difference(
    frame: Frame, pairs: Sequence[Pair], metric: str, *, relative: bool = False, rows: bool = True
) -> Estimate:
    """Mean of ``quantised − float`` (``relative``: ``quantised / float − 1``) with its interval.

    Runs that share one test set are also resampled over its rows, the same rows for both sides and all
    seeds, where details were kept for every run and ``rows`` allows it.
    """
    values = differences(pairs, metric, relative=relative)
    if not rows or several_folds(values):
        return estimate(values)
    sides = (
        (frame.details(str(pair.float["run"])), frame.details(str(pair.quantised["run"]))) for pair in pairs
    )
    return estimate(values, row_error(sides, metric, relative))


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


def _float_key(row: Row) -> tuple[Hashable, ...]:
    return row.get("float"), row.get("draws"), *_evaluation(row)


def _evaluation(row: Row) -> tuple[Hashable, ...]:
    return tuple((name, row[name]) for name in _options_among(axes(row)))


@lru_cache(maxsize=1024)
def _options_among(places: tuple[str, ...]) -> tuple[str, ...]:
    """The axes of the evaluation under which one network scores differently."""
    options = (name for name in places if name.startswith(EVALUATION))
    return tuple(name for name in options if name.removeprefix(EVALUATION) not in _NO_CONDITION)


def row_error(sides: Iterable[tuple[Details | None, Details | None]], metric: str, relative: bool) -> float:
    """Standard deviation of the mean difference over resampled rows; 0 where details do not allow it.

    Each side is a run before and after: the same rows are drawn for both, and for all runs.
    """
    statistic = STATISTICS.get(metric)
    if statistic is None:
        return 0.0
    columns: list[np.ndarray] = []
    for details in itertools.chain.from_iterable(sides):
        if details is None or any(name not in details for name in statistic.needs):
            return 0.0
        columns.append(statistic.columns(details))
    if len({len(some) for some in columns}) != 1 or not all(np.isfinite(some).all() for some in columns):
        return 0.0
    means = resampled_means(np.concatenate(columns, axis=1))
    scores = [statistic.finish(some) for some in np.split(means, len(columns), axis=1)]
    both = zip(scores[::2], scores[1::2], strict=True)
    changes = [after / before - 1 if relative else after - before for before, after in both]
    return float(np.mean(changes, axis=0).std())


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """The bin ``((b − 1)/B, b/B]`` of each confidence, as in ``qbayes.metrics.calibration``."""
    return np.searchsorted(np.arange(1, BINS) / BINS, confidence.astype(float), side="left")


def _gaps(details: Details) -> np.ndarray:
    """``(rows, bins)``: accuracy less confidence of a row, in the column of its bin."""
    confidence = details["confidence"].astype(float)
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), bin_of(confidence)] = details["correct"] - confidence
    return gaps


def _mean_of(name: str) -> Statistic:
    return Statistic(lambda details: details[name].astype(float)[:, None], lambda means: means[:, 0], (name,))


STATISTICS: Mapping[str, Statistic] = {
    "error": Statistic(
        lambda details: 1.0 - details["correct"].astype(float)[:, None],
        lambda means: means[:, 0],
        ("correct",),
    ),
    "nll": _mean_of("nll"),
    "entropy": _mean_of("entropy"),
    "mutual_information": _mean_of("mutual_information"),
    "confusion/entropy": _mean_of("confusion_entropy"),
    "confusion/mutual_information": _mean_of("confusion_mutual_information"),
    "rmse": Statistic(
        lambda details: details["squared_error"].astype(float)[:, None],
        lambda means: np.sqrt(means[:, 0]),
        ("squared_error",),
    ),
    # |mean gap| of a bin is (n_b / N) |accuracy_b − confidence_b|.
    "ece": Statistic(_gaps, lambda means: np.abs(means).sum(1), ("confidence", "correct")),
}
