r"""Fake quantisation as one pass: on a CUDA device one kernel forward and two backward, on a CPU compiled C.

``integer.arithmetic.grid`` and ``Quantizer.grid`` in about 35 kernels a call; here, by Triton, the same
numbers in one. With v = x / S, the whole numbers a = low − Z, b = high − Z and r = round(clamp(v, a, b)):

.. math::
    y = r S, \qquad \partial L/\partial x = g\,[a \le v \le b], \qquad
    \partial L/\partial S = \sum g\,(r - v\,[a \le v \le b])

A learned scale is a parameter p, S = |p| held within the usable scales, and has its gradient scaled by the N
numbers that it serves, straight through the lower bound:

.. math:: \partial L/\partial p
    = \mathrm{sign}(p)\,[|p| \le S_{max}]\,(N \max(b, 1))^{-1/2}\,\partial L/\partial S

Values have the bits of the plain path. Sums are taken in a fixed order, without atomics: training twice gives
the same bits. A kernel reads memory in its own order, a tensor's whole or channel after channel, so that any
layout without gaps will do. Nothing waits for the device: all of it can be recorded as a CUDA graph, once a
first call has compiled the kernels (``quant.kernels.fake_quantize_triton``). A CPU has
``quant.kernels.c_kernels``.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qbayes.device import (
    DTYPES,
    MOST_ELEMENTS,
    dense,
    in_memory,
    lay_out,
    on_a_cpu,
    on_a_gpu,
    triton_works_on,
)
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE, Code
from qbayes.quant.kernels import c_kernels
from qbayes.quant.kernels.fake_quantize_triton import kernels

# elements a program, of which each of its warps takes 512 at most.
_LEAST_BLOCK, _BLOCK, _LARGEST_BLOCK = 128, 1024, 4096
# from here on there are programs enough for every device without small blocks.
_LARGE = 1 << 20


class FusedFakeQuantize(torch.autograd.Function):
    """``apply(x, scale, zero_point, low, high, served, dtype)``, on tensors for which ``can_fuse`` holds.

    ``served`` is how many numbers share a learned scale, and None of a scale that is a constant. ``dtype`` is
    that of y: what a product in lower precision would make of it, in the same pass.
    """

    # of vmap no tensor comes here that it runs over, but others may, from inside.
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        scale: Tensor,
        zero: Tensor,
        low: int,
        high: int,
        served: int | None,
        dtype: torch.dtype,
    ) -> Tensor:
        x = lay_out(x, x)
        y = torch.empty_like(x, dtype=dtype)
        grid, numbers = _program(x, scale, low, high, served)
        with torch.cuda.device_of(x):
            kernels()[0][grid](x, y, scale, zero, **numbers)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, scale, zero, *ctx.how = inputs
        ctx.save_for_backward(x, scale, zero)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, g: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, scale, zero = ctx.saved_tensors
        low, high, served, _ = ctx.how
        _, differentiate, total = kernels()
        x, g = lay_out(x, x), lay_out(g, x)
        grid, numbers = _program(x, scale, low, high, served)
        dx, dp = torch.empty_like(x), None
        sums = x.new_empty(grid, dtype=torch.float32)
        with torch.cuda.device_of(x):
            differentiate[grid](x, g, dx, sums, scale, zero, **numbers)
            if served is not None:
                dp, blocks = torch.empty_like(scale), numbers["blocks"]
                width = max(_LEAST_BLOCK, min(_BLOCK, _power_of_2(blocks)))
                size = {"LARGEST": LARGEST_SCALE, "STEPS": -(-blocks // width), "BLOCK": width}
                total[(scale.numel(),)](sums, dp, scale, zero, float(high), float(served), blocks, **size)
        return dx, dp, None, None, None, None, None


def _program(
    x: Tensor, scale: Tensor, low: int, high: int, served: int | None
) -> tuple[tuple[int], dict[str, Any]]:
    """How many programs run over ``x``, and the numbers that they are given."""
    length = x.numel() // scale.numel()
    block = _LARGEST_BLOCK if length >= _LARGE else max(_LEAST_BLOCK, min(_BLOCK, _power_of_2(length)))
    blocks = -(-length // block)
    numbers = {
        "low": float(low),
        "high": float(high),
        "length": length,
        "blocks": blocks,
        "SMALLEST": SMALLEST_SCALE,
        "LARGEST": LARGEST_SCALE,
        "LEARNED": served is not None,
        "BLOCK": block,
        "num_warps": 8 if block > _BLOCK else 4,
    }
    return (scale.numel() * blocks,), numbers


def _power_of_2(number: int) -> int:
    """The least power of 2 that is not below ``number``."""
    return 1 << (number - 1).bit_length()


def fuse_fake_quantize(
    x: Tensor,
    grid: tuple[Tensor, Tensor],
    ends: tuple[int, int],
    served: int | None,
    dtype: torch.dtype,
) -> Tensor:
    """Fake quantisation of ``x``, for which ``can_fuse`` holds."""
    if not on_a_gpu(x):
        return c_kernels.fake_quantize_in_c(x, grid, ends, served, dtype, relu=False)
    # torch leaves open what a function of ours gives.
    return cast(Tensor, FusedFakeQuantize.apply(x, *grid, *ends, served, dtype))


def can_fuse(x: Tensor, scale: Tensor, zero: Tensor, low: Code, high: Code, axis: int) -> bool:
    """Whether kernels serve these tensors, with a scale for all or one for each slice along ``axis``."""
    gpu = on_a_gpu(x)
    if not (gpu or on_a_cpu(x)) or not (isinstance(low, int) and isinstance(high, int)):
        return False
    numbers = x.dtype in (DTYPES if gpu else c_kernels.DTYPES) and scale.dtype == zero.dtype == torch.float32
    together = scale.device == zero.device == x.device and scale.shape == zero.shape
    if not (numbers and together and 0 < x.numel() <= MOST_ELEMENTS and in_memory(x, scale, zero)):
        return False
    rows = scale.numel()
    if not ((rows == 1 or (axis == 0 and len(x) == rows)) and dense(x, rows)):
        return False
    return triton_works_on(x.device) if gpu else c_kernels.kernels() is not None
