r"""Fake quantisation on a CPU as one pass over memory forward and one backward, in C.

What ``quant.kernels.fake_quantize`` and ``quant.kernels.epilogue`` do on a GPU, with the same formulas: ReLU,
fake quantisation, and the gradients of the tensor and of a learned scale. The bias stays in the convolution,
whose own library adds it at no cost. Values have the bits of the plain path; the gradient of a scale has the
same bits with any number of threads.
"""

import ctypes
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qbayes.device import lay_out
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE
from qbayes.native.functions import (
    F32,
    F64,
    I32,
    I64,
    PTR,
    Functions,
    load_or_warn,
    threads_for,
    training_source,
)
from qbayes.threads import once

__all__ = ["Kernels", "kernels", "threads_for"]

SWITCH = "QBAYES_QUANT_KERNELS"
_SOURCE = training_source("quant", Path(__file__).with_name("kernels.c"), SWITCH)
_GRID = (I64, I64, PTR, PTR, F32, F32, F32, F32, I32)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "round": (PTR, I32, PTR, I32, *_GRID, I32),
    "follow": (PTR, I32, I64, *(PTR,) * 6, *(F64,) * 6, PTR, I32),
    "differentiate": (PTR, I32, PTR, I32, PTR, *_GRID, PTR, PTR, F64, I32),
}


class Kernels(Functions):
    """The functions of the shared library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library, _SIGNATURES)
        # numbers whose shares of a sum are added at once.
        self.chunk = ctypes.c_int64.in_dll(library, "qbayes_chunk").value


@once
def kernels() -> Kernels | None:
    """The compiled kernels; None without a compiler or a safe cache, which is said, or switched off."""
    library = load_or_warn(_SOURCE, "fine-tuning")
    return None if library is None else Kernels(library)


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
        g, dx = lay_out(g, x), torch.empty_like(x)
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


def fake_quantize_in_c(
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
