"""oneDNN's int8 convolution and matrix product, as torch carries them.

The operators are private to torch, so everything about them is checked where it is used (``trial``).
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LARGEST_WEIGHT = 127


@dataclass(frozen=True)
class Shape:
    """What chooses oneDNN's kernel. A matrix product is a convolution without ``kernel``."""

    channels_in: int
    channels_out: int
    kernel: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def fan_in(self) -> int:
        """Products that are summed for each output."""
        return self.channels_in // self.groups * math.prod(self.kernel)

    @property
    def lengths_out(self) -> tuple[int, ...]:
        """The lengths of the output's axes."""
        axes = zip(self.lengths, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)

    def in_parts(self, parts: int) -> "Shape":
        """The shape of the same map when its weights come in several parts, side by side."""
        return replace(self, channels_in=self.channels_in * parts)


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights in oneDNN's own layout and the bias, already in units of the output's codes."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False)
class Target:
    """What becomes of the sums: ``clamp(Z + round(M_c · sum), low, high)``, or float32 ``M_c · sum``.

    ``offset`` is added to ``M_c · sum``: it keeps float32 off the edges between codes (``edges``).
    """

    scales: Tensor
    zero: int
    low: int
    high: int
    real: bool = False
    offset: Tensor | None = None

    def beta(self, bias: Tensor) -> Tensor:
        """The bias in units of the output's codes, as oneDNN adds it: ``M_c · bias`` and the offset."""
        scaled = bias.double() * self.scales.double()
        return (scaled if self.offset is None else scaled + self.offset).float()


def pack(shape: Shape, codes: Tensor, bias: Tensor, target: Target, x_zero: int) -> Packed:
    """int8 ``codes`` (channels out, channels in / groups, …) in oneDNN's layout; ``bias`` in int32."""
    scaled = target.beta(bias)
    if not shape.kernel:
        return Packed(torch.ops.onednn.qlinear_prepack.default(codes.contiguous(), None), scaled)
    prepack = torch.ops.onednn.qconv_prepack.default
    placing = (list(shape.stride), list(shape.padding), list(shape.dilation), shape.groups)
    # for a guessed size oneDNN may choose another layout, and changes it at each call, one number at a time.
    row = [1, shape.channels_in, *shape.lengths]
    return Packed(prepack(codes.contiguous(), target.scales, 1.0, x_zero, *placing, row), scaled)


def product(shape: Shape, x: Tensor, x_zero: int, packed: Packed, target: Target, zeros: Tensor) -> Tensor:
    """The map of ``x`` (uint8; images with channels last, or a matrix): uint8 codes, or float32.

    ``zeros`` are the weights' zero-points, which oneDNN wants to see and does not use.
    """
    name, ends = _after(target)
    kind, zero = (torch.float32, 0) if target.real else (torch.uint8, target.zero)
    weights = (packed.weight, target.scales, zeros, packed.bias)
    if not shape.kernel:
        return torch.ops.onednn.qlinear_pointwise.default(
            x, 1.0, x_zero, *weights, 1.0, zero, kind, name, ends, ""
        )
    placing = (list(shape.stride), list(shape.padding), list(shape.dilation), shape.groups)
    return torch.ops.onednn.qconv2d_pointwise.default(
        x, 1.0, x_zero, *weights, *placing, 1.0, zero, kind, name, ends, None
    )


def whole_product(x: Tensor, x_zero: int, weight: Tensor) -> Tensor:
    """``Σ (x − Z) w`` in exact int32, of uint8 lines and int8 weights (out, in) that need no packing.

    The operator takes int8 on both sides: ``Σ (x − Z) w = Σ (x − 128) w + (128 − Z) Σ w``.
    """
    signed = torch.bitwise_xor(x, 128).view(torch.int8)
    sums = torch.ops.aten._int_mm.default(signed, weight.t())
    return sums.add_(weight.sum(1, dtype=torch.int32).mul_(128 - x_zero))


def _after(target: Target) -> tuple[str, list[float]]:
    """The clamp as an operation behind the sum; uint8 saturates at 0 … 255 by itself."""
    if target.real or (target.low == 0 and target.high == (1 << 8) - 1):
        return "none", []
    return "hardtanh", [float(target.low - target.zero), float(target.high - target.zero)]
