"""oneDNN's int8 convolution and matrix product, as torch carries them, and what they can do here.

The operators are private to torch, so everything about them is checked where it is used. On x86 without VNNI
they add products of two neighbouring codes in int16, which saturates: ``2 · 255 · 127 > 32767``. Each shape
of kernel is therefore tried once with codes at the limits against exact integers, and ``Shape.limit`` says
how large a weight may be.
"""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

_NAMES = ("qconv2d_pointwise", "qconv_prepack", "qlinear_pointwise", "qlinear_prepack")
_INT16 = (1 << 15) - 1
LARGEST_WEIGHT = 127
# more rows or a larger image run the same kernel, and the exact product in float64 takes time.
_TRIED_LENGTH = 6
_TRIED_IMAGES, _TRIED_LINES = (1, 2), (1, 33)


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

    def limit(self, x_top: int) -> int:
        """The largest weight code that cannot saturate with input codes ``0 … x_top`` on this processor."""
        return min(LARGEST_WEIGHT, _INT16 // (2 * x_top)) if saturates(self) else LARGEST_WEIGHT

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
    return Packed(prepack(codes.contiguous(), target.scales, 1.0, x_zero, *placing, None), scaled)


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


@functools.cache
def whole_product_is_exact(inputs: int, outputs: int) -> bool:
    """Whether ``whole_product`` can be used for weights of this shape: it is there, and does not saturate."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.aten, "_int_mm"):
        return False
    generator = torch.Generator().manual_seed(0)
    for rows in _TRIED_LINES:
        x = torch.randint(0, 1 << 8, (rows, inputs), generator=generator, dtype=torch.uint8)
        x[: rows // 2] = 255
        w = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (outputs, inputs), generator=generator)
        w[::3], w[1::3] = LARGEST_WEIGHT, -LARGEST_WEIGHT
        try:
            got = whole_product(x, 3, w.to(torch.int8))
        except RuntimeError:
            return False
        if not torch.equal(got.double(), F.linear(x.double() - 3, w.double())):
            return False
    return True


def _after(target: Target) -> tuple[str, list[float]]:
    """The clamp as an operation behind the sum; uint8 saturates at 0 … 255 by itself."""
    if target.real or (target.low == 0 and target.high == (1 << 8) - 1):
        return "none", []
    return "hardtanh", [float(target.low - target.zero), float(target.high - target.zero)]


@functools.cache
def why_missing() -> str | None:
    """Why int8 operators cannot be used in this process; None if they can."""
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    missing = [name for name in _NAMES if not hasattr(torch.ops.onednn, name)]
    if missing:
        return f"this torch ({torch.__version__}) has no operator onednn::{missing[0]}"
    tried = (Shape(8, 8, (3, 3), (6, 6), (1, 1), (1, 1), (1, 1)), Shape(8, 8))
    for shape in tried:
        reason = why_wrong(shape)
        if reason is not None:
            return reason
    return None


@functools.cache
def why_wrong(shape: Shape) -> str | None:
    """Why the int8 kernel of this shape must not be used: it fails, or its sums are not exact."""
    try:
        right = all(_exact(shape, rows, 7, 3, random=True) for rows in _rows(shape))
    except (RuntimeError, TypeError) as error:
        return f"oneDNN cannot run it: {str(error).splitlines()[0]}"
    return None if right else "oneDNN's sums are not those of exact integers"


@functools.cache
def saturates(shape: Shape) -> bool:
    """Whether sums of 8 × 8-bit products come out wrong on this processor, for a kernel that runs."""
    return not all(_exact(shape, rows, LARGEST_WEIGHT, 0, random=False) for rows in _rows(shape))


def _rows(shape: Shape) -> tuple[int, int]:
    return _TRIED_IMAGES if shape.kernel else _TRIED_LINES


def _exact(shape: Shape, rows: int, w_top: int, x_zero: int, random: bool) -> bool:
    """Whether codes up to ``w_top`` and 255 give exact sums: random ones, or of one sign at the limits."""
    generator = torch.Generator().manual_seed(0)
    lengths = tuple(
        min(n, _TRIED_LENGTH + d * (k - 1))
        for n, k, d in zip(shape.lengths, shape.kernel, shape.dilation, strict=True)
    )
    x_shape = (rows, shape.channels_in, *lengths)
    w_shape = (shape.channels_out, shape.channels_in // shape.groups, *shape.kernel)
    if random:
        x = torch.randint(0, 1 << 8, x_shape, generator=generator, dtype=torch.uint8)
        w = torch.randint(-w_top, w_top + 1, w_shape, generator=generator, dtype=torch.int8)
    else:
        x = torch.full(x_shape, 255, dtype=torch.uint8)
        w = torch.full(w_shape, w_top, dtype=torch.int8)
        w[1::2] = -w_top
    ones, zeros = torch.ones(shape.channels_out), torch.zeros(shape.channels_out, dtype=torch.int32)
    target = Target(ones, 0, 0, 255, real=True)
    if shape.kernel:
        x = x.contiguous(memory_format=torch.channels_last)
    got = product(shape, x, x_zero, pack(shape, w, zeros, target, x_zero), target, zeros)
    centred = x.double() - x_zero
    if shape.kernel:
        want = F.conv2d(centred, w.double(), None, shape.stride, shape.padding, shape.dilation, shape.groups)
    else:
        want = F.linear(centred, w.double())
    # float32 rounds sums beyond 2^24; saturation loses half of a product.
    return torch.allclose(got.double(), want, rtol=2.0**-22, atol=0)
