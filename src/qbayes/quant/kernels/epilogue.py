r"""What follows a convolution in training, as one kernel: bias, ReLU and fake quantisation.

With t = x + b, at least 0 with ReLU, v = t / S and r = round(clamp(v, a, b')) as in
``quant.kernels.fake_quantize``:

.. math::
    y = r S, \qquad \partial L/\partial x = g\,[a \le v \le b']\,[t > 0], \qquad
    \partial L/\partial b = \sum \partial L/\partial x, \qquad
    \partial L/\partial S = \sum g\,(r - v\,[a \le v \le b'])

In plain operations these are three passes over the feature map forward and four backward, more than half of
what fine-tuning adds to a step. In bfloat16 the bias is added in float32 here: one rounding less. Channels
must lie last in memory. Sums are taken in a fixed order: training twice gives the same bits.

On a CPU (``quant.kernels.c_kernels``) ReLU and fake quantisation are one pass, whatever the layout; the bias
stays in the convolution.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qbayes.device import ALIGNMENT, lay_out, on_a_gpu
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE
from qbayes.quant.kernels import c_kernels
from qbayes.quant.kernels.epilogue_triton import kernels
from qbayes.quant.kernels.fake_quantize import can_fuse

# numbers that a program holds.
_TILE = 4096
_LEAST_COLUMNS, _MOST_COLUMNS = 16, 1024
# shares that are added at once: of the scale, and of each bias.
_BLOCK, _ROWS = 1024, 64


class FusedFinish(torch.autograd.Function):
    """``apply(x, bias, scale, zero_point, low, high, served, relu)``; ``bias`` may be None.

    ``served`` is how many numbers share a learned scale, and None of a scale that is a constant.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        zero: Tensor,
        low: int,
        high: int,
        served: int | None,
        relu: bool,
    ) -> Tensor:
        y = torch.empty_like(x)
        grid, numbers = _program(x, low, high, served, bias is not None, relu)
        with torch.cuda.device_of(x):
            kernels()[0][grid](x, y, x if bias is None else bias, scale, zero, **numbers)
        ctx.save_for_backward(x, bias, scale, zero)
        ctx.how = (low, high, served, relu)
        return y

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, g: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, bias, scale, zero = ctx.saved_tensors
        low, high, served, relu = ctx.how
        g = lay_out(g, x)
        grid, numbers = _program(x, low, high, served, bias is not None, relu)
        dx, programs = torch.empty_like(x), grid[0]
        sums = x.new_empty(programs, dtype=torch.float32)
        biases = sums if bias is None else x.new_empty((programs, bias.numel()), dtype=torch.float32)
        with torch.cuda.device_of(x):
            given = (biases, x if bias is None else bias, scale, zero)
            kernels()[1][grid](x, g, dx, sums, *given, **numbers)
            db, dp = _gather(sums, biases, bias, scale, zero, high, served)
        return dx, db, dp, None, None, None, None, None


def run_epilogue(
    x: Tensor,
    bias: Tensor | None,
    grid: tuple[Tensor, Tensor],
    ends: tuple[int, int],
    served: int | None,
    *,
    relu: bool,
) -> Tensor:
    """Bias, ReLU and fake quantisation of ``x``, for which ``can_finish`` holds."""
    if not on_a_gpu(x):
        return c_kernels.fake_quantize_in_c(x, grid, ends, served, x.dtype, relu=relu)
    # torch leaves open what a function of ours gives.
    return cast(Tensor, FusedFinish.apply(x, bias, *grid, *ends, served, relu))


def can_finish(x: Tensor, bias: Tensor | None, scale: Tensor, zero: Tensor, low: int, high: int) -> bool:
    """Whether a kernel serves ``x``: one scale; on a GPU channels (axis 1) last, on a CPU no bias."""
    # first of all: of what vmap runs over, the layout cannot be asked.
    if not can_fuse(x, scale, zero, low, high, 0) or scale.numel() > 1:
        return False
    if not on_a_gpu(x):
        return bias is None
    if x.ndim not in (2, 4):
        return False
    last = x.is_contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)
    fits = _channels(x) <= _MOST_COLUMNS and (bias is None or bias.shape == (_channels(x),))
    return last and fits and x.data_ptr() % ALIGNMENT == 0


def _channels(x: Tensor) -> int:
    return x.shape[1]


def _program(
    x: Tensor, low: int, high: int, served: int | None, bias: bool, relu: bool
) -> tuple[tuple[int], dict[str, Any]]:
    """How many programs run over ``x``, and the numbers that they are given."""
    channels = _channels(x)
    columns = max(_LEAST_COLUMNS, 1 << (channels - 1).bit_length())
    rows, lines = _TILE // columns, x.numel() // channels
    numbers = {
        "low": float(low),
        "high": float(high),
        "lines": lines,
        "channels": channels,
        "BIAS": bias,
        "RELU": relu,
        "SMALLEST": SMALLEST_SCALE,
        "LARGEST": LARGEST_SCALE,
        "LEARNED": served is not None,
        "ROWS": rows,
        "COLUMNS": columns,
        "num_warps": 8,
    }
    return (-(-lines // rows),), numbers


def _gather(
    sums: Tensor,
    biases: Tensor,
    bias: Tensor | None,
    scale: Tensor,
    zero: Tensor,
    high: int,
    served: int | None,
) -> tuple[Tensor | None, Tensor | None]:
    """∂b and ∂p from the programs' shares, in one kernel; None of what is not there or not learned."""
    db = None if bias is None else torch.empty_like(bias)
    dp = None if served is None else torch.empty_like(scale)
    if db is None and dp is None:
        return None, None
    channels = 0 if db is None else db.numel()
    numbers = {
        "channels": channels,
        "LEARNED": dp is not None,
        "LARGEST": LARGEST_SCALE,
        "BLOCK": _BLOCK,
        "STEPS": -(-sums.numel() // _BLOCK),
        "ROWS": _ROWS,
        "STEPS_OF_ROWS": -(-sums.numel() // _ROWS),
        "COLUMNS": _LEAST_COLUMNS,
    }
    given = (sums if dp is None else dp, sums if db is None else db, scale, zero)
    kernels()[2][(1 + -(-channels // _LEAST_COLUMNS),)](
        sums, biases, *given, float(high), float(served or 1), sums.numel(), **numbers
    )
    return db, dp
