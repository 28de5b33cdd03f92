"""How oneDNN's exact sums become codes, and whether those are the reference's for every input.

- One sum: oneDNN rounds it itself, in float32, with an offset that keeps it off the edges between codes.
  Where that leaves room enough the codes are exact (``edges``).
- Where it does not, and codes or sums are few, the sum comes as it is and is rounded in float64 (``join``):
  few codes are large steps, and a wrong one at an early layer is seen in the answer; few sums (of few bits,
  on 8) are many values with the same one, so that one at an edge is not rare. With more of both there is
  hardly ever room, and this would take a tenth longer for a large convolution and twice as long for a small
  one: oneDNN rounds, and a code within about 2^−15 of an edge may differ by one.
- Two sums are always joined.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from qbayes.integer.edges import edges
from qbayes.integer.int8_ops import Target
from qbayes.integer.join import Join
from qbayes.integer.ops.base import Constants, Grids
from qbayes.integer.ops.weighted import Weighted
from qbayes.quant.fixed_point import real

_FEW_BITS = 5
# of a code: what one more in the sum changes. With M of this size some 2^11 sums span 256 codes, and one of
# them at an edge is one value in a thousand or two.
_LARGE_UNIT = 2.0**-3


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
