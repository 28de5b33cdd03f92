"""Scores of real predictions over the whole set, in the units of the targets.

``means`` and ``variances`` are those of the draws, ``(D, N, *target)``; ``mean`` and ``variance`` those of
the whole prediction and ``y`` the targets, ``(N, *target)``.
"""

import math

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.posterior.mixture import mixture_crps
from qbayes.posterior.predictive import GaussianPredictive


def rmse(mean: Tensor, y: Tensor) -> float:
    """Root mean squared error ``√((1/N) Σ_n (y_n − μ_n)²)``, over rows and targets."""
    _check(y, mean=mean)
    return ((y.double() - mean.double()) ** 2).mean().sqrt().item()


def nll_mixture(means: Tensor, variances: Tensor, y: Tensor) -> float:
    """Negative log-likelihood of the mixture of draws, in nats a row (summed over the row's targets).

    ``−(1/N) Σ_n log (1/D) Σ_d Π_t N(y_nt | μ_dnt, v_dnt)``
    """
    return nll_of_rows(means, variances, y).double().mean().item()


def nll_of_rows(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """The terms of ``nll_mixture``, ``(N,)``."""
    _check(y, means=means, variances=variances)
    shape = (len(means), len(y), -1)
    flat = GaussianPredictive(means.reshape(shape), variances.reshape(shape))
    return -flat.log_prob(y.reshape(shape[1:]))


def nll_moment_matched(mean: Tensor, variance: Tensor, y: Tensor) -> float:
    """The paper's: of one Gaussian with the mixture's mean and variance, in nats a row.

    ``(1/N) Σ_n ½ log σ_n² + (y_n − μ_n)² / (2 σ_n²) + log √2π``, where ``σ²`` is the unbiased variance of the
    draws' means plus the mean of their variances (Ferianc et al., 2021, appendix).
    """
    _check(y, mean=mean, variance=variance)
    wide = variance.double()
    per_target = 0.5 * (torch.log(2 * math.pi * wide) + (y.double() - mean.double()) ** 2 / wide)
    return per_target.reshape(len(y), -1).sum(-1).mean().item()


def crps(means: Tensor, variances: Tensor, y: Tensor) -> float:
    """Continuous ranked probability score of the mixture, in the units of the targets; exact, not sampled.

    ``(1/N) Σ_n E|X_n − y_n| − ½ E|X_n − X'_n|`` with X, X' independent (Gneiting & Raftery, 2007; closed form
    for Gaussian mixtures: Grimit et al., 2006). The mean over rows and targets.
    """
    _check(y, means=means, variances=variances)
    return mixture_crps(y, means, variances).mean().item()


def coverage(cdf: Tensor, level: float = 0.9) -> float:
    """Share of targets inside the central interval: ``(1 − level)/2 ≤ F_n(y_n) ≤ (1 + level)/2``.

    ``cdf`` holds ``F_n(y_n)``, the probability integral transform; a calibrated model covers ``level``.
    """
    _check(cdf)
    if not 0 < level < 1:
        raise BadInput(
            "an interval's level must lie strictly between 0 and 1", f"{level}", "use 0.9 for 90 %"
        )
    wide = cdf.double()
    return ((wide >= (1 - level) / 2) & (wide <= (1 + level) / 2)).double().mean().item()


def interval_width(low: Tensor, high: Tensor) -> float:
    """Mean width ``(1/N) Σ_n (high_n − low_n)`` of the intervals, in the units of the targets."""
    _check(high, low=low)
    return (high.double() - low.double()).mean().item()


def _check(y: Tensor, **others: Tensor) -> None:
    """Raise unless all have the shape of ``y`` (means and variances with draws before it) and no NaN."""
    if y.ndim == 0 or y.numel() == 0:
        raise BadInput("there must be at least one row", f"shape {tuple(y.shape)}", "give the whole set")
    for name, values in {"targets": y, **others}.items():
        shape = values.shape[1:] if name in ("means", "variances") else values.shape
        if shape != y.shape:
            raise BadInput(
                f"'{name}' must have the targets' shape for each row",
                f"{name} {tuple(values.shape)}, targets {tuple(y.shape)}",
                "reshape the targets to (rows, *target); one target a row is (rows, 1)",
            )
        if bool(torch.isnan(values).any()):
            raise BadInput(
                f"'{name}' must not contain NaN",
                f"{int(torch.isnan(values).sum())} NaN of {values.numel()} values",
                "find the inputs or weights that are not finite; a score that skips them would mislead",
            )
