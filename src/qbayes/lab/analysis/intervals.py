"""Means of few runs with an honest interval: standard errors over runs, over test rows and over splits.

Two things vary: the training (seed, split) and the test rows. Seeds of one study share their test rows, so
the two are crossed (Owen, 2007). The interval of a mean is

    value ± √( (t · se_runs)² + (z · se_rows)² )

with Student's t of n − 1 degrees of freedom, because n is often 3. One seed has no spread: its interval is
that over the test rows alone, and says nothing of training. ``se_runs = s / √n`` for seeds. Splits of one
table overlap in their training rows, so that their scores go together. For J of them, each tested on
``n_test`` rows and trained on ``n_train`` (Nadeau and Bengio, Machine Learning 2003):

    se_runs = s · √( 1/J + n_test / n_train )

Each split has test rows of its own, so its spread holds that of the rows already.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import betainc, betaincinv, ndtr, ndtri, stdtr, stdtrit

LEVEL = 0.95
# n_test / n_train where rows do not say it: every split that the library ships holds out a tenth.
HELD_OUT = 1 / 9

Unit = tuple[Hashable, ...]  # (fold, seed, …): one training and its evaluation
# what an interval holds the spread of; "exact": the binomial one of a share; "counted" needs none.
Covers = Literal["runs and rows", "splits", "runs", "rows", "exact", "counted", "nothing"]
_LEAST_CHANCE = 1e-16


class Interval(ABC):
    """What has bounds, and so the ends of its 95 % interval."""

    @abstractmethod
    def bounds(self, level: float = LEVEL) -> tuple[float | None, float | None]: ...

    @property
    def low(self) -> float | None:
        return self.bounds()[0]

    @property
    def high(self) -> float | None:
        return self.bounds()[1]


@dataclass(frozen=True)
class Estimate(Interval):
    """A mean over ``runs``; ``se_runs`` has ``freedom`` degrees of freedom (0: one run, no spread).

    ``se_rows`` is None where nothing is known of the test rows; ``splits``: the runs differ in theirs.
    """

    value: float
    se_runs: float
    freedom: float
    runs: int
    se_rows: float | None = None
    splits: bool = False

    @classmethod
    def counted(cls, value: float, runs: int) -> "Estimate":
        """A number that is counted, not sampled: bytes of a program."""
        return cls(value, 0.0, math.inf, runs, 0.0)

    @property
    def covers(self) -> Covers:
        """What the interval holds the spread of."""
        if self.freedom == math.inf and self.se_runs == 0 and self.se_rows == 0:
            return "counted"
        if not self.decidable:
            return "nothing"
        if self.splits:
            return "splits"
        if self.freedom <= 0:
            return "rows"
        return "runs and rows" if self.se_rows else "runs"

    @property
    def decidable(self) -> bool:
        """Whether there is an interval: some spread, over two runs or more, or over the test rows."""
        finite = math.isfinite(self.value) and math.isfinite(self.se_runs)
        counted = self.freedom == math.inf and self.se_rows == 0
        return finite and (counted or (self.freedom > 0 and self.se_runs > 0) or bool(self.se_rows))

    def bounds(self, level: float = LEVEL) -> tuple[float | None, float | None]:
        """The ends of the two-sided interval, or None where there is no spread to build it from."""
        if not self.decidable:
            return None, None
        half = self._half((1 - level) / 2)
        return self.value - half, self.value + half

    def chance_above(self, limit: float) -> float:
        """How likely so much or more is by chance where the truth is ``limit`` at most."""
        return self._chance(self.value - limit)

    def chance_below(self, limit: float) -> float:
        """How likely so little or less is by chance where the truth is ``limit`` at least."""
        return self._chance(limit - self.value)

    def scaled(self, factor: float) -> "Estimate":
        size = abs(factor)
        rows = None if self.se_rows is None else self.se_rows * size
        return replace(self, value=self.value * factor, se_runs=self.se_runs * size, se_rows=rows)

    def _half(self, tail: float) -> float:
        of_runs = -stdtrit(self.freedom, tail) * self.se_runs if self.freedom > 0 and self.se_runs else 0.0
        return float(math.hypot(of_runs, -ndtri(tail) * (self.se_rows or 0.0)))

    def _chance(self, distance: float) -> float:
        """The tail at which the interval's end is so far from the value; beyond it the interval excludes."""
        if math.isinf(distance):
            return 0.0 if distance > 0 else 1.0
        if not self.decidable:
            return 1.0
        if self.covers == "counted":
            return 0.0 if distance > 0 else 1.0
        if distance <= 0:
            return 0.5 if distance == 0 else 1 - self._chance(-distance)
        rows, runs = self.se_rows or 0.0, self.se_runs if self.freedom > 0 else 0.0
        if not runs:
            return float(ndtr(-distance / rows))
        if not rows:
            return float(stdtr(self.freedom, -distance / runs))
        return self._tail(distance)

    def _tail(self, distance: float) -> float:
        """Bisection of ``half(tail) = distance`` over the logarithm of the tail."""
        low, high = math.log(_LEAST_CHANCE), math.log(0.5)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._half(math.exp(middle)) > distance else (low, middle)
        return math.exp(high)


@dataclass(frozen=True)
class Share(Interval):
    """``count`` of ``runs``, in per cent, with the exact binomial bounds of Clopper and Pearson (1934)."""

    count: int
    runs: int

    @property
    def value(self) -> float:
        return 100 * self.count / self.runs if self.runs else math.nan

    @property
    def covers(self) -> Covers:
        return "exact" if self.runs else "nothing"

    def bounds(self, level: float = LEVEL) -> tuple[float | None, float | None]:
        """Both ends in per cent; None without any run."""
        if not self.runs:
            return None, None
        tail, rest = (1 - level) / 2, self.runs - self.count
        low = betaincinv(self.count, rest + 1, tail) if self.count else 0.0
        high = betaincinv(self.count + 1, rest, 1 - tail) if rest else 1.0
        return 100 * float(low), 100 * float(high)

    def chance_above(self, limit: float) -> float:
        """The chance of so many or more where ``limit`` per cent at most are to be expected."""
        return float(betainc(self.count, self.runs - self.count + 1, limit / 100)) if self.count else 1.0

    def chance_below(self, limit: float) -> float:
        """The chance of so few or fewer where ``limit`` per cent at least are to be expected."""
        return Share(self.runs - self.count, self.runs).chance_above(100 - limit)


def estimate(
    values: Mapping[Unit, float], se_rows: float | None = None, overlap: float = HELD_OUT
) -> Estimate:
    """The mean over runs: over splits where there are several, each the mean of its seeds; else over seeds.

    Args:
        values: The score of each run.
        se_rows: The standard error over test rows of runs that share them; None where it is not known.
            Splits need none.
        overlap: ``n_test / n_train`` of a split.
    """
    splits = several_folds(values)
    with np.errstate(invalid="ignore"):  # infinite differences stay infinite, or become NaN, and are named
        means = cluster_means(values)
        count = len(means)
        if count == 0:
            return Estimate(math.nan, math.nan, 0, 0)
        value = float(means.mean())
        error = error_of_mean(means, overlap if splits else 0.0)
    return Estimate(value, error, count - 1, len(values), None if splits else se_rows, splits)


def error_of_mean(means: np.ndarray, overlap: float = 0.0) -> float:
    """``s · √(1/n + overlap)``; 0 for one value, which has no spread."""
    count = len(means)
    return float(means.std(ddof=1)) * math.sqrt(1 / count + overlap) if count > 1 else 0.0


def contrast(
    first: Mapping[Unit, float], second: Mapping[Unit, float], rows: tuple[float | None, float | None]
) -> Estimate:
    """Mean of ``first`` less mean of ``second``, which nothing pairs (Welch); ``rows`` are their errors."""
    one, two = estimate(first, rows[0]), estimate(second, rows[1])
    value, runs, splits = one.value - two.value, one.runs + two.runs, one.splits or two.splits
    together = combine(rows)
    if min(one.freedom, two.freedom) <= 0:
        return Estimate(value, 0.0, 0, runs, together, False)
    variances = np.array([one.se_runs**2, two.se_runs**2])
    total = float(variances.sum())
    weights = float((variances**2 / [one.freedom, two.freedom]).sum())
    freedom = total**2 / weights if weights > 0 else one.freedom + two.freedom
    return Estimate(value, math.sqrt(total), freedom, runs, None if splits else together, splits)


def combine(errors: Iterable[float | None]) -> float | None:
    """The error of a sum or difference whose parts share their test rows; None where one is not known.

    Errors of losses on the same rows go together, which makes a difference of them surer than the root of
    the sum of squares says: that is an upper bound.
    """
    known = list(errors)
    if not known or any(error is None for error in known):
        return None
    return math.sqrt(sum(error**2 for error in known if error is not None))


def several_folds(units: Iterable[Unit]) -> bool:
    return len({unit[0] for unit in units}) > 1


def shared_means(values: Sequence[Mapping[Unit, float]]) -> dict[Unit, float]:
    """The mean of each run over all of ``values``, of the runs that are in all of them."""
    shared = set(values[0]).intersection(*values)
    return {which: float(np.mean([some[which] for some in values])) for which in shared}


def cluster_means(values: Mapping[Unit, float]) -> np.ndarray:
    """One mean a fold where there are several folds, else every run; in the order of the units."""
    ordered = sorted(values.items(), key=lambda item: tuple(map(repr, item[0])))
    if not several_folds(values):
        return np.array([value for _, value in ordered], dtype=float)
    folds: dict[Hashable, list[float]] = {}
    for unit, value in ordered:
        folds.setdefault(unit[0], []).append(value)
    return np.array([np.mean(some) for some in folds.values()], dtype=float)
