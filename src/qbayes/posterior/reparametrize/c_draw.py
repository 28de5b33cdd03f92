"""Local reparametrisation on a CPU as one pass over memory each way, in C: see ``reparametrise``.

ε is float32 whatever the other tensors are, and is drawn in the order of memory: torch draws Gaussians of any
other layout, and of bfloat16, one by one, nine times as slowly.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qbayes.device import dense, in_memory, lay_out, on_a_cpu
from qbayes.native.functions import F32, I32, I64, PTR, Functions, load_or_warn, threads_for, training_source
from qbayes.threads import once

_SOURCE = training_source("draw", Path(__file__).with_name("draw.c"), "QBAYES_DRAW_KERNELS")
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "draw": (PTR, PTR, PTR, PTR, I32, I64, F32, I32),
    "differentiate_draw": (PTR, PTR, PTR, PTR, I32, I64, F32, I32),
    "differentiate_square": (PTR, PTR, PTR, I32, I64, I32),
}


@once
def draw_kernels() -> Functions | None:
    """The compiled kernels; None without a compiler or a safe cache, which is said, or switched off."""
    library = load_or_warn(_SOURCE, "training of Gaussian weights")
    return None if library is None else Functions(library, _SIGNATURES)


DTYPES = (torch.float32, torch.bfloat16)


class CompiledDraw(torch.autograd.Function):
    """``apply(mean, variance, epsilon, least)``, of tensors for which ``can_draw`` holds."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, epsilon: Tensor, least: float) -> Tensor:
        ctx.save_for_backward(variance, epsilon)
        ctx.least = least
        library = draw_kernels()
        assert library is not None
        y = torch.empty_like(mean)
        library.draw(*_addresses(mean, variance, epsilon, y), *_numbers(mean, least))
        return y

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, g: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        variance, epsilon = ctx.saved_tensors
        library = draw_kernels()
        assert library is not None
        g, dv = lay_out(g, variance), torch.empty_like(variance)
        library.differentiate_draw(*_addresses(variance, epsilon, g, dv), *_numbers(variance, ctx.least))
        return g, dv, None, None


class CompiledSquare(torch.autograd.Function):
    """``apply(x)``: x², whose gradient is one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, g: Tensor
    ) -> Tensor:
        (x,) = ctx.saved_tensors
        library = draw_kernels()
        assert library is not None
        g, dx = lay_out(g, x), torch.empty_like(x)
        half, count = int(x.dtype == torch.bfloat16), x.numel()
        library.differentiate_square(*_addresses(x, g, dx), half, count, threads_for(count))
        return dx


def can_square(x: Tensor) -> bool:
    """Whether the kernels serve ``x``."""
    if x.dtype not in DTYPES or x.numel() == 0 or not on_a_cpu(x) or not dense(x):
        return False
    return draw_kernels() is not None


def can_draw(mean: Tensor, variance: Tensor, epsilon: Tensor) -> bool:
    """Whether the kernels serve these: of one layout, mean and variance of one type, ε of float32."""
    if variance.dtype != mean.dtype or epsilon.dtype != torch.float32:
        return False
    if not in_memory(variance, epsilon) or not variance.device == epsilon.device == mean.device:
        return False
    return mean.stride() == variance.stride() == epsilon.stride() and can_square(mean)


def draw_normals(like: Tensor) -> Tensor:
    """Independent standard normals in the shape and layout of ``like``, from torch's own generator.

    Of a tensor of float32 or bfloat16 on a CPU they have float32.
    """
    if like.dtype not in DTYPES or not on_a_cpu(like) or not dense(like):
        return torch.randn_like(like)
    return torch.randn(like.numel()).as_strided(like.shape, like.stride())


def _addresses(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(t.data_ptr() for t in tensors)


def _numbers(x: Tensor, least: float) -> tuple[int, int, float, int]:
    count = x.numel()
    return int(x.dtype == torch.bfloat16), count, least, threads_for(count)
