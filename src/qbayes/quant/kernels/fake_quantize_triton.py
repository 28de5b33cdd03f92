"""The kernels of ``quant.kernels.fake_quantize``, in Triton's Python: functions until ``kernels`` has them
compiled.

A program takes ``BLOCK`` numbers of one row; a row is the memory of all numbers that share a scale, of which
there are ``length``, for ``blocks`` programs.
"""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
from typing import Any

# triton.language: Triton looks a kernel's names up among its module's, where ``kernels`` puts it.
tl: Any = None
slope_of: Any = None


def of_parameter(
    total: tl.tensor,
    p: tl.tensor,
    zero: tl.tensor,
    high: tl.tensor,
    served: tl.tensor,
    LARGEST: tl.constexpr,
) -> tl.tensor:
    """∂p of a learned scale from the sum ∂S: sign(p) [|p| ≤ S_max] ∂S / √(N max(high − Z, 1))."""
    above = high - zero
    root = tl.sqrt_rn(tl.where(above < 1.0, 1.0, above) * served)
    slope = tl.where(tl.abs(p) <= LARGEST, tl.div_rn(total, root), 0.0)
    return slope * tl.where(p > 0.0, 1.0, tl.where(p < 0.0, -1.0, 0.0))


def _round(
    x: tl.tensor,
    y: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    length: tl.tensor,
    blocks: tl.tensor,
    SMALLEST: tl.constexpr,
    LARGEST: tl.constexpr,
    LEARNED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """y = r S."""
    row = tl.program_id(0) // blocks
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(scale + row)
    if LEARNED:
        # comparisons, here and below, and not minima: a NaN stays a NaN.
        s = tl.where(tl.abs(s) > LARGEST, LARGEST, tl.abs(s))
        s = tl.where(s < SMALLEST, SMALLEST, s)
    z = tl.load(zero + row)
    at = row * length + columns
    # rounded as IEEE says: Triton's own division is approximate, and a code could be another.
    v = tl.div_rn(tl.load(x + at, mask=columns < length, other=0.0).to(tl.float32), s)
    v = tl.where(v < low - z, low - z, tl.where(v > high - z, high - z, v))
    # 1.5 · 2^23 has no room for halves: it rounds any code to even, in either direction.
    r = (v + 12582912.0) - 12582912.0
    tl.store(y + at, (r * s).to(y.dtype.element_ty), mask=columns < length)


def _differentiate(
    x: tl.tensor,
    g: tl.tensor,
    dx: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    length: tl.tensor,
    blocks: tl.tensor,
    SMALLEST: tl.constexpr,
    LARGEST: tl.constexpr,
    LEARNED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """∂x, and where the scale is learned this program's share of ∂S."""
    row = tl.program_id(0) // blocks
    columns = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(scale + row)
    if LEARNED:
        s = tl.where(tl.abs(s) > LARGEST, LARGEST, tl.abs(s))
        s = tl.where(s < SMALLEST, SMALLEST, s)
    z = tl.load(zero + row)
    at = row * length + columns
    v = tl.div_rn(tl.load(x + at, mask=columns < length, other=0.0).to(tl.float32), s)
    # 0 where there is nothing: it adds nothing.
    slope = tl.load(g + at, mask=columns < length, other=0.0).to(tl.float32)
    inside = (v >= low - z) & (v <= high - z)
    tl.store(dx + at, tl.where(inside, slope, 0.0).to(dx.dtype.element_ty), mask=columns < length)
    if LEARNED:
        held = tl.where(v < low - z, low - z, tl.where(v > high - z, high - z, v))
        r = (held + 12582912.0) - 12582912.0
        tl.store(sums + tl.program_id(0), tl.sum(slope * (r - tl.where(inside, v, 0.0)), axis=0))


def _total(
    sums: tl.tensor,
    dp: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    high: tl.tensor,
    served: tl.tensor,
    blocks: tl.tensor,
    LARGEST: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """∂p of one row, from its programs' shares of ∂S."""
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(STEPS):
        columns = step * BLOCK + tl.arange(0, BLOCK)
        total += tl.load(sums + row * blocks + columns, mask=columns < blocks, other=0.0)
    p, z = tl.load(scale + row), tl.load(zero + row)
    tl.store(dp + row, slope_of(tl.sum(total, axis=0), p, z, high, served, LARGEST))


@functools.cache
def kernels() -> tuple[Any, Any, Any]:
    """The three functions above as kernels, compiled when they are first called."""
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")
    globals()["slope_of"] = triton.jit(of_parameter)
    # one variant each, whatever these are: none is compiled while a graph is recorded.
    alike = ["scale", "zero", "sums", "dp", "low", "high", "served", "blocks"]
    jit = functools.partial(triton.jit, do_not_specialize=alike)
    return jit(_round), jit(_differentiate), jit(_total)
