"""How oneDNN's exact sums become codes, and whether those are the reference's for every input.

- One sum: oneDNN rounds it itself, in float32, with an offset that keeps it off the edges between codes.
  Where that leaves room enough the codes are exact (``edges``).
- Where it does not, and codes or sums are few, the sum comes as it is and is rounded in float64 (``Join``):
  few codes are large steps, and a wrong one at an early layer is seen in the answer; few sums (of few bits,
  on 8) are many values with the same one, so that one at an edge is not rare. With more of both there is
  hardly ever room, and this would take a tenth longer for a large convolution and twice as long for a small
  one: oneDNN rounds, and a code within about 2^−15 of an edge may differ by one.
- Two sums are always joined.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import real, round_shift
from qbayes.integer.backends.onednn.primitives import Target
from qbayes.integer.c_library import kernels, threads_for
from qbayes.integer.ops.base import Constants, Grids
from qbayes.integer.ops.weighted import Weighted

_FLOAT32, _FLOAT64 = 1 << 24, 1 << 53  # up to here every whole number is held
_ROUNDED = 1 << 51  # up to here adding 1.5 · 2^52 rounds to whole numbers
_RUN = 256  # elements that C takes at once, or one of each channel where there are more
_TOO_LARGE = (1 << 31) - 1  # for a sum of a verified program
# The sum, its product, β, the total and that with Z are each rounded to 24 bits; counted are eight roundings.
_ERROR = 8 * 2.0**-24
_FEW_BITS = 5
# of a code: what one more in the sum changes. With M of this size some 2^11 sums span 256 codes, and one of
# them at an edge is one value in a thousand or two.
_LARGE_UNIT = 2.0**-3


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

    The op is ``clamp(Z + round(M t))`` of a whole number ``t = Σ x w + b``. From ``T_j − 1`` to ``T_j`` its
    code becomes ``Z + j``: M t passes the edge ``j − ½``. A kernel that computes ``M̃ Σ x w + β`` in float32,
    with M in float32 as ``M̃``, gives the same codes for every input if it keeps to the right side at these
    t. With ``β = M̃ b + o`` and an error of at most ε this holds for

        M̃ T_j + o > j − ½ + ε    and    M̃ (T_j − 1) + o < j − ½ − ε    for all j,

    whatever b is. The middle of what these allow for o leaves the most room. Without an offset there may be
    none: M t can be 5.4999996, which float32 hardly tells from 5.5, and at few bits many sums have that same
    t.

    The room is about M / 2^bits, since each edge lies anywhere between two neighbours, M apart; ε grows with
    2^bits. So there is room enough at 2 to 4 bits, where a code is a large step, and hardly ever at 8.

    ``T_j`` comes from the reference's own ``round_shift``, ties to even included. Where M is not above 0,
    or so small that no code can change, there is no offset, and no room is claimed.
    """
    low, high = int(constants["low"]), int(constants["high"])
    codes = torch.arange(low, high) + 1 - zero
    multiplier, shift = (constants[name].long().view(-1, 1) for name in ("multiplier", "shift"))
    guess = (codes - 0.5) / real(multiplier, shift).clamp(min=2.0**-40)
    # float64 finds T_j to one step, so that it is one of three.
    first = guess.ceil().clamp(-_TOO_LARGE, _TOO_LARGE).long() - 1
    changes = first + sum((round_shift((first + n) * multiplier, shift) < codes).long() for n in range(3))
    scale = scales.double().view(-1, 1)
    past = scale * changes - (codes - 0.5)
    counts = (multiplier > 0) & (changes.abs() < _TOO_LARGE)
    none = torch.full((len(past), 1), torch.inf, dtype=torch.float64)
    over = torch.cat([torch.where(counts, past, torch.inf), none], 1).amin(1)
    under = torch.cat([torch.where(counts, scale - past, torch.inf), none], 1).amin(1)
    known = torch.isfinite(over)
    offset, room = torch.where(known, under - over, 0.0) / 2, torch.where(known, under + over, 0.0) / 2
    return Edges(offset, room, max(high, zero))


class Join:
    """Codes from sums that oneDNN gives in float32: ``clamp(Z + round(a f_c))``, or ``a f_c + b g_c`` of two.

    Two are the sums of the mean and of the noise. Float32 holds whole sums up to 2^24, and float64 their
    products with 31-bit multipliers up to 2^53: then nothing is rounded but the code, and ties are ties.
    Larger sums are scaled by oneDNN, in float32, and f and g are 1; that is right to a code. ``sums`` and
    ``bias`` are the largest magnitudes of Σ and of b.
    """

    def __init__(self, channels: int, grids: Grids, constants: Constants, sums: int, bias: Tensor) -> None:
        names = [name for name in ("multiplier", "second_multiplier") if name in constants]
        scales = [real(constants[name], constants["shift"].long()).expand(channels) for name in names]
        self.is_exact = _are_held([constants[name] for name in names], constants["shift"], sums, bias)
        ones = [torch.ones(channels, dtype=torch.float64) for _ in names]
        # what oneDNN multiplies the sums with, and what is left to do.
        self.scales = [scale.float().contiguous() for scale in (ones if self.is_exact else scales)]
        factors = scales if self.is_exact else ones
        self._factors = [factor.repeat(-(-_RUN // channels)) for factor in factors]
        self._channels = channels
        self._ends = (float(grids.zero), float(constants["low"]), float(constants["high"]))

    def __call__(self, sums: Sequence[Tensor]) -> Tensor:
        """uint8 codes of one or two sums in float32: images, which get their channels last, or matrices."""
        c = kernels()
        if c is None:
            return self._in_torch(sums)
        dense = [_channels_last(some) for some in sums]
        out, count = torch.empty_like(dense[0], dtype=torch.uint8), dense[0].numel()
        a, b = _addresses(dense)
        f, g = _addresses(self._factors)
        run = self._factors[0].numel()
        c.join(out.data_ptr(), a, b, count, run, f, g, *self._ends, threads_for(count))
        return out

    def _in_torch(self, sums: Sequence[Tensor]) -> Tensor:
        zero, low, high = self._ends
        shape = (-1, *(1,) * (sums[0].dim() - 2))
        factors = [factor[: self._channels].view(shape) for factor in self._factors]
        total = sums[0] * factors[0] if len(sums) == 1 else sums[0] * factors[0] + sums[1] * factors[1]
        return total.round_().add_(zero).clamp_(low, high).to(torch.uint8)


def _are_held(multipliers: Sequence[Tensor], shift: Tensor, sums: int, bias: Tensor) -> bool:
    """Whether float32 holds every sum and float64 all that is made of them."""
    first, *more = [multiplier.double().abs() for multiplier in multipliers]
    largest = (sums + bias) * first + sum(sums * second for second in more)
    rounded = largest * real(torch.ones_like(shift), shift.long())
    held = float(largest.max()) <= _FLOAT64 and float(rounded.max()) <= _ROUNDED
    return held and sums + float(bias.max()) <= _FLOAT32


def _addresses(tensors: Sequence[Tensor]) -> tuple[int, int | None]:
    return tensors[0].data_ptr(), tensors[1].data_ptr() if len(tensors) > 1 else None


def _channels_last(sums: Tensor) -> Tensor:
    return sums.contiguous(memory_format=torch.channels_last) if sums.dim() == 4 else sums.contiguous()


@dataclass(frozen=True, eq=False)
class Rounding:
    """What oneDNN does with each accumulator, what is done behind it, and whether that is exact."""

    targets: tuple[Target, ...]
    join: Join | None
    is_exact: bool
    why: str = ""


def rounding(op: Weighted, grids: Grids, constants: Constants, in_bias: int, largest: int) -> Rounding:
    """For weights up to ``largest``; ``in_bias`` is the part of the input's zero-point that b takes."""
    channels, fan_in = op.weight_shape[0], math.prod(op.weight_shape[1:])
    sums = ((1 << grids.bits[0]) - 1) * largest * fan_in
    join = Join(channels, grids, constants, sums, op.weights.bias_limit(constants))
    ends = (int(constants["low"]), int(constants["high"]))
    joined = tuple(Target(scales, 0, *ends, real=True) for scales in join.scales)
    if op.weights.accumulators == 2:
        return Rounding(joined, join, join.is_exact)
    scales = real(constants["multiplier"], constants["shift"].long()).float()
    found = edges(constants, scales, grids.zero)
    bias = _largest_bias(op, constants, in_bias, largest * fan_in)
    is_clear = found.clear(bias * scales.double() + found.offset.abs())
    few = grids.out_bits <= _FEW_BITS or float(scales.abs().max()) >= _LARGE_UNIT
    if not is_clear and join.is_exact and few:
        return Rounding(joined, join, True, "float32 cannot tell some of its codes apart")
    target = Target(scales.expand(channels).contiguous(), grids.zero, *ends, offset=found.offset)
    return Rounding((target,), None, is_clear)


def _largest_bias(op: Weighted, constants: Constants, in_bias: int, sum_of_weights: int) -> Tensor:
    """The magnitude of ``b − Z Σ w``, which oneDNN adds: of the codes themselves, or of any draw."""
    if op.is_stochastic:
        return op.weights.bias_limit(constants) + in_bias * sum_of_weights
    codes = constants["weight"].flatten(1).long()
    sums = codes.sum(1) - codes.shape[1] * op.weights.zero(constants)
    return (constants["bias"].long() - in_bias * sums).double().abs()
