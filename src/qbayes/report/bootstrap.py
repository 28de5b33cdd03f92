"""Means of few runs with an honest interval: bootstrap standard errors over runs and test rows.

Two things vary: the training (seed, fold) and the test rows. Seeds of one study share their test rows, so the
two are crossed, and are resampled independently (Owen, 2007). The interval of a mean is

    value ± √( (t · se_runs)² + (z · se_rows)² )

with ``se_runs = s / √n`` (for a mean, the bootstrap over runs has this closed form, times √((n − 1)/n), which
makes it too narrow and is left out: Hesterberg, 2015), Student's t with n − 1 degrees of freedom because
n is often 3, and ``se_rows`` the standard deviation over ``REPLICATES`` resamplings of the rows.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri, stdtrit

LEVEL = 0.95

Unit = tuple[Hashable, ...]  # (fold, seed, …): one training and its evaluation


@dataclass(frozen=True)
class Estimate:
    """A mean over ``runs``; ``se_runs`` has ``freedom`` degrees of freedom (0: one run, no spread)."""

    value: float
    se_runs: float
    freedom: float
    runs: int
    se_rows: float = 0.0

    @property
    def decidable(self) -> bool:
        """At least two runs: rows alone cannot tell a seed's luck from an effect."""
        return self.freedom > 0 and math.isfinite(self.value) and math.isfinite(self.se_runs)

    @property
    def low(self) -> float | None:
        return self.bounds()[0]

    @property
    def high(self) -> float | None:
        return self.bounds()[1]

    def bounds(self, level: float = LEVEL) -> tuple[float | None, float | None]:
        """The ends of the two-sided interval, or None where there is no spread to build it from."""
        if not self.decidable:
            return None, None
        upper = (1 + level) / 2
        of_runs, of_rows = stdtrit(self.freedom, upper) * self.se_runs, ndtri(upper) * self.se_rows
        half = float(math.hypot(of_runs, of_rows))
        return self.value - half, self.value + half

    def scaled(self, factor: float) -> "Estimate":
        size = abs(factor)
        return replace(
            self, value=self.value * factor, se_runs=self.se_runs * size, se_rows=self.se_rows * size
        )


def estimate(values: Mapping[Unit, float], se_rows: float = 0.0) -> Estimate:
    """The mean over runs. With several folds the folds are resampled, else the seeds.

    Folds have test rows of their own, so their spread already holds that of the rows: ``se_rows`` is
    meant for runs that share one test set.
    """
    with np.errstate(invalid="ignore"):  # infinite differences stay infinite, or become NaN, and are named
        means = cluster_means(values)
        count = len(means)
        if count == 0:
            return Estimate(math.nan, math.nan, 0, 0)
        value = float(means.mean())
        spread = float(means.std(ddof=1)) if count > 1 else 0.0
    return Estimate(value, spread / math.sqrt(count), count - 1, len(values), se_rows)


def contrast(first: Mapping[Unit, float], second: Mapping[Unit, float]) -> Estimate:
    """Mean of ``first`` less mean of ``second``, resampled apart (Welch): nothing pairs their runs."""
    one, two = estimate(first), estimate(second)
    if not (one.decidable and two.decidable):
        return Estimate(one.value - two.value, math.nan, 0, one.runs + two.runs)
    variances = np.array([one.se_runs**2, two.se_runs**2])
    total = float(variances.sum())
    weights = float((variances**2 / [one.freedom, two.freedom]).sum())
    freedom = total**2 / weights if weights > 0 else one.freedom + two.freedom
    return Estimate(one.value - two.value, math.sqrt(total), freedom, one.runs + two.runs)


def several_folds(units: Iterable[Unit]) -> bool:
    return len({unit[0] for unit in units}) > 1


def cluster_means(values: Mapping[Unit, float]) -> np.ndarray:
    """One mean a fold where there are several folds, else every run; in the order of the units."""
    ordered = sorted(values.items(), key=lambda item: tuple(map(repr, item[0])))
    if not several_folds(values):
        return np.array([value for _, value in ordered], dtype=float)
    folds: dict[Hashable, list[float]] = {}
    for unit, value in ordered:
        folds.setdefault(unit[0], []).append(value)
    return np.array([np.mean(some) for some in folds.values()], dtype=float)
