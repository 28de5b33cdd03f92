"""Codes from sums that oneDNN gives in float32: ``clamp(Z + round(a f_c))``, or ``a f_c + b g_c`` of two.

Two are the sums of the mean and of the noise. Float32 holds whole sums up to 2^24, and float64 their products
with 31-bit multipliers up to 2^53: then nothing is rounded but the code, and ties are ties. Larger sums are
scaled by oneDNN, in float32, and f and g are 1; that is right to a code.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from qbayes.integer.kernels_build import kernels, threads_for
from qbayes.integer.ops.base import Constants, Grids
from qbayes.quant.fixed_point import real

_FLOAT32, _FLOAT64 = 1 << 24, 1 << 53  # up to here every whole number is held
_ROUNDED = 1 << 51  # up to here adding 1.5 · 2^52 rounds to whole numbers
_RUN = 256  # elements that C takes at once, or one of each channel where there are more


class Join:
    """What turns an op's sums to codes; ``sums`` and ``bias`` are the largest magnitudes of Σ and of b."""

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
