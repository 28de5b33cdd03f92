"""The kernels of ``posterior.reparametrize.draw``, in Triton's Python: functions until they are compiled.

A program takes ``BLOCK`` numbers as they lie in memory, of ``count``.
"""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
from typing import Any

# triton.language: Triton looks a kernel's names up among its module's, where ``kernels`` puts it.
tl: Any = None


def _draw(
    mean: tl.tensor,
    variance: tl.tensor,
    epsilon: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """y = m + √max(v, v₀) ε."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    v = tl.load(variance + at, mask=here, other=1.0).to(tl.float32)
    # a comparison and not a maximum: a NaN stays a NaN.
    deviation = tl.sqrt_rn(tl.where(v < LEAST, LEAST, v))
    drawn = deviation * tl.load(epsilon + at, mask=here, other=0.0).to(tl.float32)
    found = tl.load(mean + at, mask=here, other=0.0).to(tl.float32) + drawn
    tl.store(y + at, found.to(y.dtype.element_ty), mask=here)


def _differentiate(
    variance: tl.tensor,
    epsilon: tl.tensor,
    g: tl.tensor,
    dv: tl.tensor,
    count: tl.tensor,
    LEAST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """∂v = g ε / (2 √v), and 0 where v is held."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    v = tl.load(variance + at, mask=here, other=1.0).to(tl.float32)
    e = tl.load(epsilon + at, mask=here, other=0.0).to(tl.float32)
    slope = tl.load(g + at, mask=here, other=0.0).to(tl.float32) * e
    held = v < LEAST
    slope = tl.where(held, 0.0, 0.5 * tl.div_rn(slope, tl.sqrt_rn(tl.where(held, LEAST, v))))
    tl.store(dv + at, slope.to(dv.dtype.element_ty), mask=here)


def _twice_the_product(
    x: tl.tensor, g: tl.tensor, dx: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """∂x = 2 g x, of a square."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    slope = tl.load(g + at, mask=here, other=0.0).to(tl.float32)
    slope *= 2.0 * tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=here)


@functools.cache
def kernels() -> tuple[Any, Any, Any]:
    """``_draw``, ``_differentiate`` and ``_twice_the_product``, compiled when they are first called."""
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")
    # one variant whatever the count is: none is compiled while a graph is recorded.
    jit = functools.partial(triton.jit, do_not_specialize=["count"])
    return jit(_draw), jit(_differentiate), jit(_twice_the_product)
