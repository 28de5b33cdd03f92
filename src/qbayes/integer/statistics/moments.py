"""Moments over draws in integers alone: the companion of ``softmax`` for variances and for regressions.

Divisions and shifts are spelled out so that C gives the same bits. For whole numbers ``z_d`` of D draws, with
``Σ z = a D + r`` and ``0 ≤ r < D``:

    mean      ⌊(Σ z + ⌊D/2⌋) / D⌋                                           rounded, halves up
    variance  ⌊(N + ⌊K/2⌋) / K⌋,  N = Σ z² − a (Σ z + r) − ⌊r²/D⌋,  K = (D − 1) 2^k;  0 for one draw

N is ``Σ z² − (Σ z)²/D`` rounded up, without a product that leaves int64: for ``|z| ≤ 2^24`` and
``D ≤ MOST_DRAWS`` every term stays below 2^63. The unit is that of z², times 2^k.

A regression works in units of 2^−f of the network's output, f as large as the codes and the noise of all
members allow:

    z  = round((q − Z) m / 2^s),   m / 2^s ≈ S 2^f,   |z| < 2^23            mean of a draw
    v  = exp(log-variance) in units of 2^−2f, within 1 … 2^46               noise of a draw
    V  = Var_d(z_d) + mean_d(v_d)                                           predictive variance
    H  = ½ Σ_t (ln 2πe + ln V_t)                                            entropy of that Gaussian, in nats

For a log-variance with codes of its own, ``t = round((q − Z) m / 2^s) + 2f 2^24 ≈ 2^24 log2 v``; with
``t = 2^24 e + 2^16 j + r`` (j has 8 bits, r has 16) and ``POW[j] = round(2^30 2^(j/256))``:

    v  = 2^(e − 30) (POW[j] + ⌊((POW[j+1] − POW[j]) r + 2^15) / 2^16⌋)      rounded, halves up
"""

import functools
import math

import torch
from torch import Tensor

from qbayes.integer.statistics.softmax import FRACTION_BITS, LN2, ONE, log_table

MOST_DRAWS = 1 << 14
# of a variance of probabilities: units of 2^−32, while probabilities have 2^−24.
VARIANCE_BITS = 32
VALUE_BITS = 23  # |z| < 2^23
MOST_VARIANCE_BITS = 2 * VALUE_BITS
LN_2PIE = round(math.log(2 * math.pi * math.e) * ONE)
_INDEX_BITS = 8
_REST_BITS = FRACTION_BITS - _INDEX_BITS
_POWER_BITS = 30


@functools.cache
def power_table() -> Tensor:
    """``round(2^30 · 2^(j / 256))``, j = 0 … 256: int64; shared, so not to be written to."""
    steps = 1 << _INDEX_BITS
    return torch.tensor([round(2.0 ** (j / steps) * (1 << _POWER_BITS)) for j in range(steps + 1)])


def mean(values: Tensor) -> Tensor:
    """Mean over the first axis (draws) of whole numbers of either sign."""
    count = values.shape[0]
    return (values.long().sum(0) + count // 2) // count


def variance(values: Tensor, places: int = 0) -> Tensor:
    """Unbiased variance over the first axis (draws), in units of ``2^places`` times that of a square."""
    wide, count = values.long(), values.shape[0]
    if count == 1:
        return torch.zeros_like(wide[0])
    total = wide.sum(0)
    floor = total // count
    rest = total - floor * count
    numerator = (wide * wide).sum(0) - floor * (total + rest) - rest * rest // count
    divisor = (count - 1) << places
    return (numerator + divisor // 2) // divisor


def probability_variance(probabilities: Tensor) -> Tensor:
    """Variance over draws of probabilities in units of 2^−24, in units of 2^−32."""
    return variance(probabilities, 2 * FRACTION_BITS - VARIANCE_BITS)


def powers(exponents: Tensor) -> Tensor:
    """``2^(t / 2^24)`` for whole t, rounded, within 1 … 2^46."""
    table = power_table().to(exponents.device)
    t = exponents.clamp(0, MOST_VARIANCE_BITS << FRACTION_BITS)
    exponent, fraction = t >> FRACTION_BITS, t & (ONE - 1)
    index, rest = fraction >> _REST_BITS, fraction & ((1 << _REST_BITS) - 1)
    slope = (table[index + 1] - table[index]) * rest
    mantissa = table[index] + ((slope + (1 << (_REST_BITS - 1))) >> _REST_BITS)
    right = (_POWER_BITS - exponent).clamp(min=0)
    half = (torch.ones_like(right) << right) >> 1
    return ((mantissa << (exponent - _POWER_BITS).clamp(min=0)) + half) >> right


def logarithm(numbers: Tensor) -> Tensor:
    """``ln n`` in units of 2^−24 for whole ``1 ≤ n < 2^62``, by the table of ``softmax``."""
    n = numbers.long()
    table = log_table().to(n.device).long()
    exponent = torch.zeros_like(n)
    for power in range(1, 62):
        exponent += n >= (1 << power)
    left, right = (FRACTION_BITS - exponent).clamp(min=0), (exponent - FRACTION_BITS).clamp(min=0)
    fraction = ((n << left) >> right) - ONE
    index, rest = fraction >> _REST_BITS, fraction & ((1 << _REST_BITS) - 1)
    slope = (table[index + 1] - table[index]) * rest
    return exponent * LN2 + table[index] + ((slope + (1 << (_REST_BITS - 1))) >> _REST_BITS)


def gaussian_entropy(variances: Tensor, fraction: int) -> Tensor:
    """``½ Σ (ln 2πe + ln V)`` over the last axis in units of 2^−24; V in units of 2^(−2 fraction)."""
    terms = LN_2PIE - 2 * fraction * LN2 + logarithm(variances.clamp(min=1))
    return (terms.sum(-1) + 1) >> 1
