r"""Fake quantisation on a CPU as one pass over memory forward and one backward, in C.

What ``quant.kernels.fake_quantize`` and ``quant.kernels.epilogue`` do on a GPU, with the same formulas: ReLU,
fake quantisation, and the gradients of the tensor and of a learned scale. The bias stays in the convolution,
whose own library adds it at no cost. Values have the bits of the plain path; the gradient of a scale has the
same bits with any number of threads.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE
from qbayes.quant.kernels.c_build import kernels, threads_for
from qbayes.triton_support import laid_out

DTYPES = (torch.float32, torch.bfloat16)


class CompiledFakeQuantize(torch.autograd.Function):
    """``apply(x, scale, zero_point, low, high, served, dtype, relu)``, on tensors that ``can_fuse`` allows.

    As ``qbayes.quant.kernels.fake_quantize.FusedFakeQuantize``, of max(x, 0) with ``relu``.
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
        relu: bool,
    ) -> Tensor:
        library = kernels()
        assert library is not None
        y = torch.empty_like(x, dtype=dtype)
        on = _grid(x, scale, zero, low, high, served, relu=relu)
        library.round(*_memory(x), *_memory(y), *on, threads_for(x.numel()))
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
        low, high, served, _, relu = ctx.how
        library = kernels()
        assert library is not None
        g, dx = laid_out(g, x), torch.empty_like(x)
        dp = None if served is None else torch.empty_like(scale)
        rows = scale.numel()
        shares = torch.empty(rows * -(-x.numel() // rows // library.chunk), dtype=torch.float64)
        library.differentiate(
            *(*_memory(x), *_memory(g), dx.data_ptr()),
            *_grid(x, scale, zero, low, high, served, relu=relu),
            *(shares.data_ptr(), None if dp is None else dp.data_ptr(), float(served or 1)),
            threads_for(x.numel()),
        )
        return dx, dp, None, None, None, None, None, None


def compiled(
    x: Tensor,
    grid: tuple[Tensor, Tensor],
    ends: tuple[int, int],
    served: int | None,
    dtype: torch.dtype,
    *,
    relu: bool,
) -> Tensor:
    """Fake quantisation of ``x``, or of max(x, 0); in its own type where the kernels have no ``dtype``."""
    dtype = dtype if dtype in DTYPES else x.dtype
    # torch leaves open what a function of ours gives.
    return cast(Tensor, CompiledFakeQuantize.apply(x, *grid, *ends, served, dtype, relu))


def _memory(x: Tensor) -> tuple[int, int]:
    """Where the numbers are, and whether they have half the bits of a float32."""
    return x.data_ptr(), int(x.dtype == torch.bfloat16)


def _grid(
    x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, served: int | None, *, relu: bool
) -> tuple[Any, ...]:
    """The rows of ``x`` and the codes of its numbers, as the kernels take them."""
    rows = scale.numel()
    # what a constant scale is, it is: no bound holds it.
    bounds = (0.0, 0.0) if served is None else (SMALLEST_SCALE, LARGEST_SCALE)
    places = (scale.data_ptr(), zero.data_ptr())
    return rows, x.numel() // rows, *places, float(low), float(high), *bounds, int(relu)
