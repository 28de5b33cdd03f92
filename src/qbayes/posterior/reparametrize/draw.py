r"""Local reparametrisation in training: one kernel a step of it on a CUDA device, one pass in C on a CPU.

A Gaussian layer draws its output from the mean m and the variance v that its two linear maps give (Kingma,
Salimans and Welling, NeurIPS 2015):

.. math::
    y = m + \sqrt{\max(v, v_0)}\, \epsilon, \qquad \partial L/\partial m = g, \qquad
    \partial L/\partial v = \frac{g\,\epsilon}{2 \sqrt v}\,[v \ge v_0]

In plain operations these are four passes over the feature map forward and seven backward, and the square of
the input has three more: together as much as the convolutions of a small network. In bfloat16 the kernels
round once where plain operations round after each. Tensors must lie alike in memory, without gaps. A CPU has
``qbayes.posterior.reparametrize.c_draw``.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qbayes.device import (
    ALIGNMENT,
    DTYPES,
    MOST_ELEMENTS,
    dense,
    in_memory,
    lay_out,
    on_a_gpu,
    triton_works_on,
)
from qbayes.posterior.reparametrize.c_draw import CompiledDraw, CompiledSquare, can_draw, can_square
from qbayes.posterior.reparametrize.draw_triton import kernels

# √ has an infinite gradient at 0: an output whose inputs are all zero gets a deviation of 1e-8 instead.
LEAST_VARIANCE = 1e-16
_BLOCK = 2048


class FusedDraw(torch.autograd.Function):
    """``apply(mean, variance, epsilon)``, of tensors for which ``_can_draw`` holds."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, epsilon: Tensor) -> Tensor:
        ctx.save_for_backward(variance, epsilon)
        y = torch.empty_like(mean)
        grid, numbers = _program(mean)
        with torch.cuda.device_of(mean):
            kernels()[0][grid](mean, variance, epsilon, y, LEAST=LEAST_VARIANCE, **numbers)
        return y

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, g: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        variance, epsilon = ctx.saved_tensors
        g, dv = lay_out(g, variance), torch.empty_like(variance)
        grid, numbers = _program(variance)
        with torch.cuda.device_of(g):
            kernels()[1][grid](variance, epsilon, g, dv, LEAST=LEAST_VARIANCE, **numbers)
        return g, dv, None


class FusedSquare(torch.autograd.Function):
    """``apply(x)``: x², whose gradient is one kernel."""

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
        g, dx = lay_out(g, x), torch.empty_like(x)
        grid, numbers = _program(x)
        with torch.cuda.device_of(g):
            kernels()[2][grid](x, g, dx, **numbers)
        return dx


def reparametrise(mean: Tensor, variance: Tensor, epsilon: Tensor) -> Tensor:
    """``m + √max(v, v₀) ε``, of the type of ``m``."""
    # torch leaves open what a function of ours gives.
    if _can_draw(mean, variance, epsilon):
        return cast(Tensor, FusedDraw.apply(mean, variance, epsilon))
    if can_draw(mean, variance, epsilon):
        return cast(Tensor, CompiledDraw.apply(mean, variance, epsilon, LEAST_VARIANCE))
    return mean + variance.clamp_min(LEAST_VARIANCE).sqrt() * epsilon.to(mean.dtype)


def square_values(x: Tensor) -> Tensor:
    """``x²``, of the inputs of a layer."""
    if _readable(x):
        return cast(Tensor, FusedSquare.apply(x))
    return cast(Tensor, CompiledSquare.apply(x)) if can_square(x) else x * x


def _can_draw(mean: Tensor, variance: Tensor, epsilon: Tensor) -> bool:
    """Whether the kernel serves these: of one type and one layout."""
    if not _readable(mean) or not in_memory(variance, epsilon):
        return False
    alike = all(t.dtype == mean.dtype and t.stride() == mean.stride() for t in (variance, epsilon))
    return alike and all(t.device == mean.device and _is_aligned(t) for t in (variance, epsilon))


def _readable(x: Tensor) -> bool:
    if not on_a_gpu(x) or x.dtype not in DTYPES or not 0 < x.numel() <= MOST_ELEMENTS:
        return False
    return _is_aligned(x) and dense(x) and triton_works_on(x.device)


def _is_aligned(x: Tensor) -> bool:
    return x.data_ptr() % ALIGNMENT == 0


def _program(x: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """How many programs run over ``x``, and the numbers that they are given."""
    return (-(-x.numel() // _BLOCK),), {"count": x.numel(), "BLOCK": _BLOCK}
