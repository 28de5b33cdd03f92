"""Linear with drawn weights on codes wider than a byte: all draws in one exact product.

int8 kernels cannot read such codes, and the exact integers of the reference take a dozen small steps for each
draw. Here the draws are stacked: float64 holds every sum below 2^53, and those of a verified program lie
below 2^31, in whatever order they are taken. The rounding is that of ``Weighted.run_draw``.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import rounded_shift
from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.backends.onednn.conv_linear import drawn_codes, typed
from qbayes.integer.ops.base import Constants, Grids, Noise, clamp_codes
from qbayes.integer.ops.weighted import Linear, Weighted

# Weights up to which the float64 copies of a hundred draws stay small (50 MB).
_MOST_WEIGHTS = 1 << 16


def draws_few(op: Weighted) -> bool:
    """Whether ``op`` is a Linear that draws few enough weights to stack its draws."""
    return isinstance(op, Linear) and op.is_stochastic and math.prod(op.weight_shape) <= _MOST_WEIGHTS


class WideLines(Kernel):
    """A small Gaussian Linear, exactly as ``Weighted`` defines it; ``why`` it is not in int8."""

    takes_shared = True
    is_exact = True

    def __init__(self, op: Weighted, grids: Grids, constants: Constants, why: str) -> None:
        super().__init__(op, grids, typed(constants), "exact", why)
        self.weighted = op

    @property
    def draws_weights(self) -> bool:
        return True

    def draw(self, seed: int, draw: int) -> Drawn:
        return drawn_codes(self.weighted, self.constants, seed, draw)

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        codes, constants = inputs[0], self.constants
        own_rows = codes.shape[0] == len(drawn) * noise.rows
        lines = codes.reshape(len(drawn) if own_rows else 1, -1, codes.shape[-1])
        x = lines.double() - self.grids.zeros[0]
        zero = self.weighted.weights.zero(constants)
        first = "weight" if "weight" in drawn[0] else "mean"
        total = _sums(x, drawn, first, zero) + _stacked(drawn, "bias").long()[:, None]
        total *= constants["multiplier"].long()
        if "noise" in drawn[0]:
            total += _sums(x, drawn, "noise", 0) * constants["second_multiplier"].long()
        steps = rounded_shift(total, constants["shift"].long())
        made = clamp_codes(self.grids.zero + steps, constants, self.grids.out_bits)
        return made.view(-1, *codes.shape[1:-1], made.shape[-1])


def _sums(x: Tensor, drawn: Sequence[Mapping[str, Tensor]], name: str, zero: Tensor | int) -> Tensor:
    """``Σ (q_x − Z_x)(q_w − Z_w)`` of each draw, line and output in int64; all weights have one Z_w."""
    weights = _stacked(drawn, name).double() - zero
    return torch.matmul(x, weights.transpose(1, 2)).long()


def _stacked(drawn: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    return torch.stack([one[name] for one in drawn])
