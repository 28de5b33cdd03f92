"""Softmax and entropy in integers alone, by tables of exp and log, for targets that have no float.

Numbers are in units of 2^−24 (``ONE = 2^24``), tables are made once, and every division and shift is spelled
out so that C gives the same bits. With logits ``S (q − Z)`` and ``d_i = max_j q_j − q_i``, free of Z:

    EXP[d] = round(2^30 exp(−S d)),                                      d = 0 … 2^bits − 1
    p_i    = ⌊(EXP[d_i] 2^24 + ⌊T/2⌋) / T⌋,   T = Σ_j EXP[d_j]           softmax, each within 2^−25 of exact
    p̄_i    = ⌊(Σ_d p_i(d) + ⌊D/2⌋) / D⌋                                  mean over D draws
    LOG[j] = round(2^24 ln(1 + j / 256)),                                j = 0 … 256

For ``p = 2^e (1 + f)`` in units of 2^−24, with ``f = (2^16 j + r) / 2^24`` (j has 8 bits, r has 16):

    ln p   = (e − 24) LN2 + LOG[j] + ⌊((LOG[j+1] − LOG[j]) r + 2^15) / 2^16⌋
    H      = ⌊(Σ_i −p_i ln p_i + 2^23) / 2^24⌋                           entropy in nats

The interpolation errs by at most 2·10^−6; everything fits int64 for up to 2^20 classes.
"""

import functools
import math

import torch
from torch import Tensor

from qbayes.errors import BadInput

FRACTION_BITS = 24
ONE = 1 << FRACTION_BITS
LN2 = round(math.log(2) * ONE)
_EXP_BITS = 30
_LOG_INDEX_BITS = 8
_REST_BITS = FRACTION_BITS - _LOG_INDEX_BITS


def exp_table(scale: float, bits: int) -> Tensor:
    """``round(2^30 exp(−S d))`` for every difference d of two codes: int32, ``2^bits`` entries."""
    if not (scale > 0 and math.isfinite(scale)):
        raise BadInput("the scale of the logits must be above 0 and finite", f"{scale}", "lower again")
    return torch.tensor(
        [round(math.exp(-scale * d) * (1 << _EXP_BITS)) for d in range(1 << bits)], dtype=torch.int32
    )


@functools.cache
def log_table() -> Tensor:
    """``round(2^24 ln(1 + j / 256))``, j = 0 … 256: int32; shared, so not to be written to."""
    steps = 1 << _LOG_INDEX_BITS
    return torch.tensor([round(math.log1p(j / steps) * ONE) for j in range(steps + 1)], dtype=torch.int32)


def softmax(codes: Tensor, table: Tensor) -> Tensor:
    """Probabilities over the last axis, int64 in units of 2^−24, from the codes of the logits."""
    wide = codes.long()
    entries = table.to(codes.device).long()[wide.amax(-1, keepdim=True) - wide]
    return _divide(entries << FRACTION_BITS, entries.sum(-1, keepdim=True))


def mean(probabilities: Tensor) -> Tensor:
    """Mean over the first axis (draws) of probabilities in units of 2^−24."""
    count = torch.tensor(probabilities.shape[0], device=probabilities.device)
    return _divide(probabilities.long().sum(0), count)


def logarithm(probabilities: Tensor) -> Tensor:
    """``ln p`` in units of 2^−24 for ``0 < p ≤ 1`` in the same units; 0 where p is 0."""
    p = probabilities.long()
    table = log_table().to(p.device).long()
    exponent = torch.zeros_like(p)  # ⌊log2 p⌋, a count of leading zeros on other targets
    for power in range(1, FRACTION_BITS + 1):
        exponent += p >= (1 << power)
    fraction = (p << (FRACTION_BITS - exponent)) - ONE
    index = (fraction >> _REST_BITS).clamp(min=0)
    rest = fraction & ((1 << _REST_BITS) - 1)
    slope = (table[index + 1] - table[index]) * rest
    between = table[index] + ((slope + (1 << (_REST_BITS - 1))) >> _REST_BITS)
    return torch.where(p > 0, (exponent - FRACTION_BITS) * LN2 + between, 0)


def entropy(probabilities: Tensor) -> Tensor:
    """``−Σ p ln p`` over the last axis in nats, int64 in units of 2^−24."""
    total = -(probabilities.long() * logarithm(probabilities)).sum(-1)
    return (total + (ONE >> 1)) >> FRACTION_BITS


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``⌊(a + ⌊b/2⌋) / b⌋`` for ``a ≥ 0`` and ``b > 0``: rounded to the nearest, halves up."""
    return (numerator + denominator // 2) // denominator
