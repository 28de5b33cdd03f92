"""What oneDNN's int8 kernels can do on this machine: known defects, and a trial of every shape.

oneDNN is wrong for two kinds of convolution. Both were found by comparing 61,000 random shapes with exact
integers; outside of them no shape was wrong. The kernel that reads too far may end the process, so these
shapes are told by their numbers, not by a trial.

| kind | what happens |
|---|---|
| a window that lies wholly in the padding, along any axis | uninitialised memory is read |
| one channel a group, an output of width 1, a stride and a kernel wider than 1 | sums are wrong |

Every other shape is tried once in a process, at its real size and with dirty memory around it. On x86 without
VNNI, oneDNN adds products of two neighbouring codes in int16, which saturates: ``2 · 255 · 127 > 32767``.
``weight_limit`` says how large a weight may be.
"""

import ctypes
import functools
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.integer.arithmetic.exact_matmul import dirty_memory, is_thin
from qbayes.integer.backends.onednn.primitives import (
    LARGEST_WEIGHT,
    Shape,
    Target,
    pack,
    product,
    whole_product,
)

# mallopt(3): blocks from this size on are always the system's own (the most that it takes), and so much free
# memory stays with the process: a few tensors of ``Backend.codes_at_once`` codes.
_OPTIONS = {-3: 1 << 25, -1: 1 << 26}
# By these a user has chosen already.
_CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> bool:
    """Ask for it, once a process; whether it was granted. What the environment says about it stands."""
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, size) == 1 for option, size in _OPTIONS.items())


_NAMES = ("qconv2d_pointwise", "qconv_prepack", "qlinear_pointwise", "qlinear_prepack")
_INT16 = (1 << 15) - 1
_LARGEST_CODE = (1 << 8) - 1
_FLOAT32_EXACT = 1 << 24
# images and lines of one call: a single row has kernels of its own.
_IMAGES, _LINES = (1, 2), (1, 33)
# saturation is a matter of the arithmetic alone, which a small image shows as well.
_SATURATION_LENGTH = 6
_TRIED_ZERO = 131
_DIRT = (0x55, 0xAA)
# random factors of the output channels: an error is missed once in that many.
_LARGEST_FACTOR = 1 << 12
# so many inputs are written down at once.
_COLUMNS = 1 << 20


@functools.cache
def why_missing() -> str | None:
    """Why int8 operators cannot be used in this process; None if they can."""
    if not torch.backends.mkldnn.is_available():
        return "this torch was built without oneDNN"
    missing = [name for name in _NAMES if not hasattr(torch.ops.onednn, name)]
    if missing:
        return f"this torch ({torch.__version__}) has no operator onednn::{missing[0]}"
    tried = (Shape(8, 8, (3, 3), (6, 6), (1, 1), (1, 1), (1, 1)), Shape(8, 8))
    return next((reason for reason in (why_wrong(shape, 3) for shape in tried) if reason is not None), None)


def why_wrong(shape: Shape, x_zero: int) -> str | None:
    """Why the int8 kernel of this shape must not be used: it is known to be wrong, or its trial failed."""
    return _why_defect(shape) or _why_failed(shape, x_zero > 0)


def weight_limit(shape: Shape, x_top: int) -> int:
    """The largest weight code that cannot saturate with input codes ``0 … x_top`` on this processor."""
    return min(LARGEST_WEIGHT, _INT16 // (2 * x_top)) if saturates(shape) else LARGEST_WEIGHT


@functools.cache
def saturates(shape: Shape) -> bool:
    """Whether sums of 8 × 8-bit products come out wrong on this processor, for a kernel that runs."""
    lengths = zip(shape.lengths, shape.kernel, shape.dilation, strict=True)
    small = tuple(min(n, _SATURATION_LENGTH + d * (k - 1)) for n, k, d in lengths)
    return not all(_is_exact_at_limits(shape, (rows, shape.channels_in, *small)) for rows in _rows(shape))


@functools.cache
def whole_product_is_exact(inputs: int, outputs: int) -> bool:
    """Whether ``whole_product`` can be used for weights of this shape: it is there, and does not saturate."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.aten, "_int_mm"):
        return False
    generator = torch.Generator().manual_seed(0)
    for rows in _LINES:
        x = _codes((rows, inputs), generator)
        x[: rows // 2] = _LARGEST_CODE
        w = torch.randint(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (outputs, inputs), generator=generator)
        w[::3], w[1::3] = LARGEST_WEIGHT, -LARGEST_WEIGHT
        try:
            got = whole_product(x, 3, w.to(torch.int8))
        except RuntimeError:
            return False
        if not torch.equal(got.double(), F.linear(x.double() - 3, w.double())):
            return False
    return True


def _why_defect(shape: Shape) -> str | None:
    if not shape.kernel:
        return None
    for n, k, s, p, d, count in _axes(shape):
        if _has_empty_window(n, k, s, p, d, count):
            return "oneDNN reads uninitialised memory where a window lies wholly in the padding"
    if is_thin(shape.channels_in, shape.groups, shape.kernel, shape.stride, shape.lengths_out):
        return "oneDNN is wrong for outputs of width 1 with one channel a group and a stride"
    return None


def _axes(shape: Shape) -> Iterator[tuple[int, int, int, int, int, int]]:
    placing = (shape.lengths, shape.kernel, shape.stride, shape.padding, shape.dilation, shape.lengths_out)
    return zip(*placing, strict=True)


def _has_empty_window(n: int, k: int, s: int, p: int, d: int, count: int) -> bool:
    """Whether some window along an axis of ``n`` has no tap inside; only windows over an edge can."""
    before, last = -(-p // s), count - 1
    # windows that begin before the axis, and those that end behind it.
    behind = max(0, (n + p - d * (k - 1)) // s)
    windows = {*range(min(before, count)), *range(min(behind, last), count)}
    return any(not any(0 <= w * s - p + t * d < n for t in range(k)) for w in windows)


@functools.cache
def _why_failed(shape: Shape, has_zero: bool) -> str | None:
    try:
        right = _is_exact(shape, _TRIED_ZERO if has_zero else 0)
    except (RuntimeError, TypeError) as error:
        return f"oneDNN cannot run it: {str(error).splitlines()[0]}"
    return None if right else "oneDNN's sums are not those of exact integers"


def _rows(shape: Shape) -> tuple[int, int]:
    return _IMAGES if shape.kernel else _LINES


def _is_exact(shape: Shape, x_zero: int) -> bool:
    """Whether random codes give exact sums, at the real size, whatever the memory around held before.

    Sums of a channel are checked together (Freivalds): ``Σ_c r_c y_c`` must be the convolution of x with
    ``Σ_c r_c w_c``, which is as much less work as a group has output channels.
    """
    generator = torch.Generator().manual_seed(0)
    x = _codes((max(_rows(shape)), shape.channels_in, *shape.lengths), generator)
    top = max(1, min(7, _FLOAT32_EXACT // (_LARGEST_CODE * shape.fan_in)))
    w_shape = (shape.channels_out, shape.channels_in // shape.groups, *shape.kernel)
    w = torch.randint(-top, top + 1, w_shape, generator=generator, dtype=torch.int8)
    factors = torch.randint(1, _LARGEST_FACTOR, (shape.channels_out,), generator=generator).double()
    mixed = (w.double().flatten(1) * factors[:, None]).unflatten(0, (shape.groups, -1)).sum(1)
    want = list(_exact_bands(shape, x, x_zero, mixed.view(shape.groups, *w_shape[1:])))
    with dirty_memory(_DIRT[0]):
        sums = _Sums(shape, w, x_zero)
    for rows, byte in itertools.product(_rows(shape), _DIRT):
        with dirty_memory(byte):
            got = sums(x[:rows])
        if not all(_is_equal(shape, got, band, factors) for band in want if band.row < rows):
            return False
    return True


@dataclass(frozen=True)
class _Band:
    """The exact ``Σ_c r_c y_c`` of one image and some lines of its output; of all rows of a product."""

    row: int
    first: int
    sums: Tensor


def _exact_bands(shape: Shape, x: Tensor, x_zero: int, w: Tensor) -> Iterator[_Band]:
    """Band by band: torch writes down the inputs of each output of a float64 convolution side by side."""
    if not shape.kernel:
        for row, line in enumerate(x):
            yield _Band(row, 0, F.linear(line.double() - x_zero, w))
        return
    (above, aside), (stride, _), (dilation, _) = shape.padding, shape.stride, shape.dilation
    reach = dilation * (shape.kernel[0] - 1) + 1
    lines, width = shape.lengths_out
    some = max(1, _COLUMNS // (shape.fan_in * shape.groups * width))
    for row, first in itertools.product(range(len(x)), range(0, lines, some)):
        count = min(some, lines - first)
        top = first * stride - above
        bottom = top + (count - 1) * stride + reach
        band = x[row : row + 1, :, max(top, 0) : max(bottom, 0)].double() - x_zero
        outside = (aside, aside, max(-top, 0), max(bottom - shape.lengths[0], 0))
        placing = (shape.stride, 0, shape.dilation, shape.groups)
        yield _Band(row, first, F.conv2d(F.pad(band, outside), w, None, *placing)[0])


def _is_equal(shape: Shape, got: Tensor, band: _Band, factors: Tensor) -> bool:
    """Whether the channels of a band of oneDNN's sums add up to the exact ones."""
    if not shape.kernel:
        return torch.equal((got[band.row].double() * factors).sum(-1, keepdim=True), band.sums)
    here = got[band.row, :, band.first : band.first + band.sums.shape[1]].double()
    return torch.equal((here * factors.view(-1, 1, 1)).unflatten(0, (shape.groups, -1)).sum(1), band.sums)


def _is_exact_at_limits(shape: Shape, x_shape: tuple[int, ...]) -> bool:
    """Whether weights of one sign at ±127 and codes of 255 give exact sums."""
    x = torch.full(x_shape, _LARGEST_CODE, dtype=torch.uint8)
    w_shape = (shape.channels_out, shape.channels_in // shape.groups, *shape.kernel)
    w = torch.full(w_shape, LARGEST_WEIGHT, dtype=torch.int8)
    w[1::2] = -LARGEST_WEIGHT
    # float32 rounds sums beyond 2^24; saturation loses half of a product.
    want = _exact(shape, x.double(), w.double())
    return torch.allclose(_Sums(shape, w, 0)(x).double(), want, rtol=2.0**-22, atol=0)


class _Sums:
    """oneDNN's sums in float32, of weights that are packed once."""

    def __init__(self, shape: Shape, w: Tensor, x_zero: int) -> None:
        self._shape, self._x_zero = shape, x_zero
        self._zeros = torch.zeros(shape.channels_out, dtype=torch.int32)
        self._target = Target(torch.ones(shape.channels_out), 0, 0, _LARGEST_CODE, real=True)
        self._packed = pack(shape, w, self._zeros, self._target, x_zero)

    def __call__(self, x: Tensor) -> Tensor:
        placed = x.contiguous(memory_format=torch.channels_last) if self._shape.kernel else x
        return product(self._shape, placed, self._x_zero, self._packed, self._target, self._zeros)


def _exact(shape: Shape, x: Tensor, w: Tensor) -> Tensor:
    if not shape.kernel:
        return F.linear(x, w)
    return F.conv2d(x, w, None, shape.stride, shape.padding, shape.dilation, shape.groups)


def _codes(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randint(0, _LARGEST_CODE + 1, shape, generator=generator, dtype=torch.uint8)
