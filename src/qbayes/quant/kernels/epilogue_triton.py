"""The kernels of ``quant.kernels.epilogue``, in Triton's Python: functions until ``kernels`` has them
compiled.

A program takes ``ROWS`` lines of memory, each of all ``channels`` of one place.
"""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
from typing import Any

from qbayes.quant.kernels import fake_quantize_triton

# triton.language: Triton looks a kernel's names up among its module's, where ``kernels`` puts it.
tl: Any = None
scale_of: Any = None
slope_of: Any = None


def _scale_of(
    scale: tl.tensor, LEARNED: tl.constexpr, SMALLEST: tl.constexpr, LARGEST: tl.constexpr
) -> tl.tensor:
    """S, of a learned scale |p| within the usable ones; comparisons and not minima: a NaN stays a NaN."""
    s = tl.load(scale)
    if LEARNED:
        s = tl.where(tl.abs(s) > LARGEST, LARGEST, tl.abs(s))
        s = tl.where(s < SMALLEST, SMALLEST, s)
    return s


def _finish(
    x: tl.tensor,
    y: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    lines: tl.tensor,
    channels: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    SMALLEST: tl.constexpr,
    LARGEST: tl.constexpr,
    LEARNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """y = r S of t = x + b, at least 0 with ``RELU``."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, COLUMNS)
    here = (line < lines)[:, None] & (channel < channels)[None, :]
    at = line[:, None] * channels + channel[None, :]
    t = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    if BIAS:
        t += tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    if RELU:
        t = tl.where(t < 0.0, 0.0, t)
    s, z = scale_of(scale, LEARNED, SMALLEST, LARGEST), tl.load(zero)
    v = tl.div_rn(t, s)
    v = tl.where(v < low - z, low - z, tl.where(v > high - z, high - z, v))
    # 1.5 · 2^23 has no room for halves: it rounds any code to even, in either direction.
    r = (v + 12582912.0) - 12582912.0
    tl.store(y + at, (r * s).to(y.dtype.element_ty), mask=here)


def _differentiate(
    x: tl.tensor,
    g: tl.tensor,
    dx: tl.tensor,
    sums: tl.tensor,
    biases: tl.tensor,
    bias: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    lines: tl.tensor,
    channels: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    SMALLEST: tl.constexpr,
    LARGEST: tl.constexpr,
    LEARNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """∂x, and this program's share of ∂S and ∂b."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, COLUMNS)
    here = (line < lines)[:, None] & (channel < channels)[None, :]
    at = line[:, None] * channels + channel[None, :]
    t = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    if BIAS:
        t += tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    # 0 where there is nothing: it adds nothing.
    slope = tl.load(g + at, mask=here, other=0.0).to(tl.float32)
    passes = here
    if RELU:
        passes = passes & (t > 0.0)
        t = tl.where(t < 0.0, 0.0, t)
    s, z = scale_of(scale, LEARNED, SMALLEST, LARGEST), tl.load(zero)
    v = tl.div_rn(t, s)
    inside = (v >= low - z) & (v <= high - z)
    through = tl.where(inside & passes, slope, 0.0)
    tl.store(dx + at, through.to(dx.dtype.element_ty), mask=here)
    if BIAS:
        share = tl.sum(through, axis=0)
        tl.store(biases + tl.program_id(0) * channels + channel, share, mask=channel < channels)
    if LEARNED:
        held = tl.where(v < low - z, low - z, tl.where(v > high - z, high - z, v))
        r = (held + 12582912.0) - 12582912.0
        terms = tl.where(here, slope * (r - tl.where(inside, v, 0.0)), 0.0)
        tl.store(sums + tl.program_id(0), tl.sum(tl.sum(terms, axis=1), axis=0))


def _gather(
    sums: tl.tensor,
    biases: tl.tensor,
    dp: tl.tensor,
    db: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    high: tl.tensor,
    served: tl.tensor,
    programs: tl.tensor,
    channels: tl.constexpr,
    LEARNED: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS_OF_ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """∂p and ∂b from the programs' shares: the first program here has ∂p, each other some of the channels."""
    if tl.program_id(0) == 0:
        if LEARNED:
            total = tl.zeros([BLOCK], dtype=tl.float32)
            for step in range(STEPS):
                at = step * BLOCK + tl.arange(0, BLOCK)
                total += tl.load(sums + at, mask=at < programs, other=0.0)
            found = slope_of(tl.sum(total, axis=0), tl.load(scale), tl.load(zero), high, served, LARGEST)
            tl.store(dp, found)
    else:
        channel = (tl.program_id(0) - 1) * COLUMNS + tl.arange(0, COLUMNS)
        shares = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for step in range(STEPS_OF_ROWS):
            row = step * ROWS + tl.arange(0, ROWS)
            here = (row < programs)[:, None] & (channel < channels)[None, :]
            shares += tl.load(biases + row[:, None] * channels + channel[None, :], mask=here, other=0.0)
        slopes = tl.sum(shares, axis=0)
        tl.store(db + channel, slopes.to(db.dtype.element_ty), mask=channel < channels)


@functools.cache
def kernels() -> tuple[Any, Any, Any]:
    """``_finish``, ``_differentiate`` and ``_gather`` as kernels, compiled when they are first called."""
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")
    globals()["scale_of"] = triton.jit(_scale_of)
    fake_quantize_triton.kernels()  # gives its functions their language
    globals()["slope_of"] = triton.jit(fake_quantize_triton.of_parameter)
    # one variant for each number of channels, whatever these are: none is compiled while a graph is recorded.
    pointers = ["scale", "zero", "bias", "sums", "biases", "dp", "db"]
    alike = [*pointers, "low", "high", "served", "lines", "programs"]
    jit = functools.partial(triton.jit, do_not_specialize=alike)
    return jit(_finish), jit(_differentiate), jit(_gather)
