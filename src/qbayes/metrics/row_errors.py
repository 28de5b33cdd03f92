r"""Standard errors over test rows: how far a score, or its change, would move on another draw of the rows.

A score of means (error, NLL, ECE, RMSE) is resampled: ``REPLICATES`` times as many rows are drawn with
replacement, the same rows for a run before and after its change. AUROC has a closed form (DeLong, DeLong and
Clarke-Pearson, Biometrics 1988). ``V⁺`` of a confusion row is the share of test rows below it, ``V⁻`` of a
test row the share of confusion rows above it, and Δ the change of either:

.. math::
    \mathrm{se}^2 = \mathrm{Var}(\Delta V^+) / n^+ + \mathrm{Var}(\Delta V^-) / n^-
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Details = Mapping[str, np.ndarray]
Side = tuple[Details | None, Details | None]

# the columns of a row of results that hold standard errors over test rows.
ROW_ERROR = "row_error/"
REPLICATES = 1000
BINS = 10  # as in qbayes.metrics.classification.ece
_GENERATOR = 20210727  # fixed: the same rows give the same error
_CHUNK = 100  # replicates held as float64 at a time: 8 MB for 10,000 rows
_AUROC = "confusion/auroc"


@dataclass(frozen=True)
class Statistic:
    """A score from details: ``finish(means of columns)``, so that resampling rows is one product."""

    columns: Callable[[Details], np.ndarray]
    finish: Callable[[np.ndarray], np.ndarray]
    needs: tuple[str, ...]


@lru_cache(maxsize=4)
def row_counts(rows: int) -> np.ndarray:
    """``(REPLICATES, rows)``: how often each row is in each resampling with replacement of ``rows`` rows."""
    generator = np.random.default_rng((_GENERATOR, rows))
    drawn = (generator.integers(rows, size=rows) for _ in range(REPLICATES))
    return np.stack([np.bincount(some, minlength=rows).astype(np.uint8) for some in drawn])


def resample_means(columns: np.ndarray) -> np.ndarray:
    """``(REPLICATES, k)``: the means of ``columns`` ``(rows, k)`` over resampled rows, the same for all k."""
    counts = row_counts(len(columns))
    parts = [counts[at : at + _CHUNK].astype(float) @ columns for at in range(0, REPLICATES, _CHUNK)]
    return np.concatenate(parts) / len(columns)


def row_error(sides: Iterable[Side], metric: str, relative: bool) -> float:
    """Standard deviation of the mean difference over resampled rows; 0 where details do not allow it.

    Each side is a run before and after: the same rows are drawn for both, and for all runs.
    """
    statistic = STATISTICS.get(metric)
    if statistic is None:
        return 0.0
    columns = _columns(statistic, itertools.chain.from_iterable(sides))
    if columns is None:
        return 0.0
    means = resample_means(np.concatenate(columns, axis=1))
    scores = [statistic.finish(some) for some in np.split(means, len(columns), axis=1)]
    both = zip(scores[::2], scores[1::2], strict=True)
    changes = [after / before - 1 if relative else after - before for before, after in both]
    return float(np.mean(changes, axis=0).std())


def standard_errors(after: Details, before: Details | None = None) -> dict[str, float]:
    """The error over test rows of each score of ``after``, or of its change since ``before``.

    Args:
        after: What was found for each test row and each confusion row of a run.
        before: The same of the run that it is compared with, on the same rows. Without it the errors are
            those of the scores themselves.

    Returns:
        One number for each score that can be resampled; a score with a row that is not finite has none.

    Example:
        >>> import numpy as np
        >>> from qbayes.metrics.row_errors import standard_errors
        >>> errors = standard_errors({"nll": np.array([0.0, 1.0] * 200)})
        >>> 0.02 < errors["nll"] < 0.03
        True
    """
    found: dict[str, float] = {}
    for metric, statistic in STATISTICS.items():
        columns = _columns(statistic, (after,) if before is None else (before, after))
        if columns is not None:
            means = np.split(resample_means(np.concatenate(columns, axis=1)), len(columns), axis=1)
            scores = [statistic.finish(some) for some in means]
            found[metric] = float((scores[-1] - (scores[0] if before is not None else 0.0)).std())
    area = auroc_error(after, before)
    return found if area is None else {**found, _AUROC: area}


def auroc_error(after: Details, before: Details | None = None) -> float | None:
    """DeLong's standard error of the AUROC by entropy, or of its change; None without confusion rows."""
    parts = [_placements(side) for side in ((after,) if before is None else (before, after))]
    if any(part is None for part in parts):
        return None
    first, last = parts[0], parts[-1]
    if first is None or last is None or [len(v) for v in first] != [len(v) for v in last]:
        return None
    changes = last if before is None else [a - b for a, b in zip(last, first, strict=True)]
    if any(len(change) < 2 for change in changes):
        return None
    return math.sqrt(sum(float(change.var(ddof=1)) / len(change) for change in changes))


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """The bin ``((b − 1)/B, b/B]`` of each confidence, as in ``qbayes.metrics.classification``."""
    return np.searchsorted(np.arange(1, BINS) / BINS, confidence.astype(float), side="left")


def _columns(statistic: Statistic, sides: Iterable[Details | None]) -> list[np.ndarray] | None:
    """The columns of each side, or None where they are not there, not finite or of different rows."""
    columns: list[np.ndarray] = []
    for details in sides:
        if details is None or any(name not in details for name in statistic.needs):
            return None
        columns.append(statistic.columns(details))
    same = len({len(some) for some in columns}) == 1
    return columns if same and all(len(some) and np.isfinite(some).all() for some in columns) else None


def _placements(details: Details) -> list[np.ndarray] | None:
    """``V⁻`` of the test rows and ``V⁺`` of the confusion rows; ties count one half."""
    if not {"entropy", "confusion_entropy"} <= set(details):
        return None
    test, confusion = details["entropy"].astype(float), details["confusion_entropy"].astype(float)
    if not (len(test) and len(confusion) and np.isfinite(test).all() and np.isfinite(confusion).all()):
        return None
    return [1 - _share_below(confusion, test), _share_below(test, confusion)]


def _share_below(of: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each value the share of ``of`` that is less, ties as one half."""
    ordered = np.sort(of)
    sides = (np.searchsorted(ordered, values, side="left"), np.searchsorted(ordered, values, side="right"))
    return (sides[0] + sides[1]) / (2 * len(of))


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
