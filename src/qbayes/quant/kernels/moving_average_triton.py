"""The kernels of ``quant.kernels.moving_average``, in Triton's Python: functions until they are compiled."""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
from typing import Any

# triton.language: Triton looks a kernel's names up among its module's, where ``kernels`` puts it.
tl: Any = None


def _extremes(x: tl.tensor, lows: tl.tensor, highs: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr) -> None:
    """The least and the largest of ``BLOCK`` numbers; NaN where one of them is not finite."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < count
    v = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    finite = v - v == 0.0
    sound = tl.sum(tl.where(finite, 0, 1), axis=0) == 0
    low = tl.min(tl.where(here & finite, v, float("inf")), axis=0)
    high = tl.max(tl.where(here & finite, v, float("-inf")), axis=0)
    tl.store(lows + tl.program_id(0), tl.where(sound, low, float("nan")))
    tl.store(highs + tl.program_id(0), tl.where(sound, high, float("nan")))


def _follow(
    lows: tl.tensor,
    highs: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    started: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    ready: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    blocks: tl.tensor,
    MOVES: tl.constexpr,
    PACE: tl.constexpr,
    EMPTY: tl.constexpr,
    SMALLEST: tl.constexpr,
    LARGEST: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The range moves towards the batch's extremes, and the grid with it; nothing moves if one is NaN."""
    a = tl.full([BLOCK], float("inf"), dtype=tl.float32)
    b = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    bad = tl.zeros([BLOCK], dtype=tl.int32)
    for step in range(STEPS):
        at = step * BLOCK + tl.arange(0, BLOCK)
        some = tl.load(lows + at, mask=at < blocks, other=float("inf"))
        bad += tl.where(some == some, 0, 1)
        a = tl.where(some < a, some, a)
        some = tl.load(highs + at, mask=at < blocks, other=float("-inf"))
        b = tl.where(some > b, some, b)
    least, most = tl.min(a, axis=0), tl.max(b, axis=0)
    if tl.sum(bad, axis=0) == 0:
        if MOVES:
            pace = tl.where(tl.load(started) != 0, PACE, 1.0)
            before, behind = tl.load(low), tl.load(high)
            least = tl.where(pace < 0.5, before + pace * (least - before), least)
            most = tl.where(pace < 0.5, behind + pace * (most - behind), most)
            tl.store(low, least)
            tl.store(high, most)
            tl.store(started, 1)
        # float64: the width of a range of float32 numbers may be no float32.
        bottom, top = least.to(tl.float64), most.to(tl.float64)
        bottom, top = tl.where(bottom > 0.0, 0.0, bottom), tl.where(top < 0.0, 0.0, top)
        size = (top - bottom) / (last - first)
        size = tl.where(size == 0.0, EMPTY, size)
        size = tl.where(size < SMALLEST, SMALLEST, tl.where(size > LARGEST, LARGEST, size)).to(tl.float32)
        # 1.5 · 2^52 has no room for halves: it rounds to even.
        steps = (bottom / size.to(tl.float64) + 6755399441055744.0) - 6755399441055744.0
        middle = first - steps
        middle = tl.where(middle < first, first, tl.where(middle > last, last, middle))
        tl.store(scale, size)
        tl.store(zero, middle.to(tl.float32))
        tl.store(ready, 1)


@functools.cache
def kernels() -> tuple[Any, Any]:
    """Both functions as kernels, compiled when they are first called."""
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")
    # one variant each, whatever these are: none is compiled while a graph is recorded.
    pointers = ["lows", "highs", "low", "high", "started", "scale", "zero", "ready"]
    jit = functools.partial(triton.jit, do_not_specialize=[*pointers, "count", "first", "last", "blocks"])
    return jit(_extremes), jit(_follow)
