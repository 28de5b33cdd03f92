"""Float32 that rounds as the integers do: where the codes of a weighted op change, and the room around it.

The op is ``clamp(Z + round(M t))`` of a whole number ``t = Σ x w + b``. From ``T_j − 1`` to ``T_j`` its code
becomes ``Z + j``: M t passes the edge ``j − ½``. A kernel that computes ``M̃ Σ x w + β`` in float32, with M in
float32 as ``M̃``, gives the same codes for every input if it keeps to the right side at these t. With
``β = M̃ b + o`` and an error of at most ε this holds for

    M̃ T_j + o > j − ½ + ε    and    M̃ (T_j − 1) + o < j − ½ − ε    for all j,

whatever b is. The middle of what these allow for o leaves the most room. Without an offset there may be none:
M t can be 5.4999996, which float32 hardly tells from 5.5, and at few bits many sums have that same t.

The room is about M / 2^bits, since each edge lies anywhere between two neighbours, M apart; ε grows with
2^bits. So there is room enough at 2 to 4 bits, where a code is a large step, and hardly ever at 8.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.integer.ops.base import Constants
from qbayes.quant.fixed_point import real, rounded_shift

_TOO_LARGE = (1 << 31) - 1  # for a sum of a verified program
# The sum, its product, β, the total and that with Z are each rounded to 24 bits; counted are eight roundings.
_ERROR = 8 * 2.0**-24


@dataclass(frozen=True, eq=False)
class Edges:
    """``o`` and its room for each output channel (or one for all), in the output's codes and in float64."""

    offset: Tensor
    room: Tensor
    # the largest magnitude that a code has, before and after Z is added.
    top: int

    def clear(self, beta: Tensor) -> bool:
        """Whether float32 gives the codes of the integers with a β of up to this magnitude."""
        return bool((self.room > _ERROR * (self.top + 1 + beta.double().abs())).all())


def edges(constants: Constants, scales: Tensor, zero: int) -> Edges:
    """The offset with the most room for ``scales``, the float32 form of ``multiplier / 2^shift``.

    ``T_j`` comes from the reference's own ``rounded_shift``, ties to even included. Where M is not above 0,
    or so small that no code can change, there is no offset, and no room is claimed.
    """
    low, high = int(constants["low"]), int(constants["high"])
    codes = torch.arange(low, high) + 1 - zero
    multiplier, shift = (constants[name].long().view(-1, 1) for name in ("multiplier", "shift"))
    guess = (codes - 0.5) / real(multiplier, shift).clamp(min=2.0**-40)
    # float64 finds T_j to one step, so that it is one of three.
    first = guess.ceil().clamp(-_TOO_LARGE, _TOO_LARGE).long() - 1
    changes = first + sum((rounded_shift((first + n) * multiplier, shift) < codes).long() for n in range(3))
    scale = scales.double().view(-1, 1)
    past = scale * changes - (codes - 0.5)
    counts = (multiplier > 0) & (changes.abs() < _TOO_LARGE)
    none = torch.full((len(past), 1), torch.inf, dtype=torch.float64)
    over = torch.cat([torch.where(counts, past, torch.inf), none], 1).amin(1)
    under = torch.cat([torch.where(counts, scale - past, torch.inf), none], 1).amin(1)
    known = torch.isfinite(over)
    offset, room = torch.where(known, under - over, 0.0) / 2, torch.where(known, under + over, 0.0) / 2
    return Edges(offset, room, max(high, zero))
