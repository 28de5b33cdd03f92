"""The kernels of ``integer.arithmetic.cuda_rescale``, in Triton's Python: functions until ``kernels``
compiles them.

A program takes ``BLOCK`` numbers in the order of memory. Codes are computed in int64, as ``Op.run`` does.
"""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
from typing import Any

# triton.language: Triton looks a kernel's names up among its module's, where ``kernels`` puts it.
tl: Any = None
codes_of: Any = None


def _codes_of(
    total: tl.tensor, places: tl.tensor, zero: tl.tensor, low: tl.tensor, high: tl.tensor
) -> tl.tensor:
    """``clamp(Z + round(v / 2^s), low, high)``, ties to even as ``round_shift`` has them."""
    one = (places * 0 + 1) << places
    quotient = total >> places
    twice = 2 * (total & (one - 1)) + (quotient & 1)
    found = zero + quotient + tl.where(twice > one, 1, 0)
    least, most = tl.load(low).to(tl.int64), tl.load(high).to(tl.int64)
    found = tl.where(found < least, least, found)
    return tl.where(found > most, most, found)


def _rescale(
    sums: tl.tensor,
    spread: tl.tensor,
    codes: tl.tensor,
    bias: tl.tensor,
    multiplier: tl.tensor,
    second: tl.tensor,
    shift: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    zero: tl.tensor,
    count: tl.tensor,
    channels: tl.tensor,
    inner: tl.tensor,
    BIASES: tl.constexpr,
    MULTIPLIERS: tl.constexpr,
    SHIFTS: tl.constexpr,
    SECONDS: tl.constexpr,
    TWO: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``clamp(Z + round(((Σ + b) m + Σ' m') / 2^s), low, high)``; flags: each channel has its own."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    channel = (at // inner) % channels
    total = tl.load(sums + at, mask=inside, other=0.0).to(tl.int64)
    total += tl.load(bias + channel * BIASES).to(tl.int64)
    total *= tl.load(multiplier + channel * MULTIPLIERS).to(tl.int64)
    if TWO:
        more = tl.load(spread + at, mask=inside, other=0.0).to(tl.int64)
        total += more * tl.load(second + channel * SECONDS).to(tl.int64)
    places = tl.load(shift + channel * SHIFTS).to(tl.int64)
    found = codes_of(total, places, zero, low, high)
    tl.store(codes + at, found.to(codes.dtype.element_ty), mask=inside)


def _add(
    first: tl.tensor,
    second: tl.tensor,
    codes: tl.tensor,
    multipliers: tl.tensor,
    shift: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    zero_first: tl.tensor,
    zero_second: tl.tensor,
    zero: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """``clamp(Z + round(((q_a − Z_a) m_a + (q_b − Z_b) m_b) / 2^s), low, high)``."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    a = tl.load(first + at, mask=inside, other=0).to(tl.int64) - zero_first
    b = tl.load(second + at, mask=inside, other=0).to(tl.int64) - zero_second
    total = a * tl.load(multipliers).to(tl.int64) + b * tl.load(multipliers + 1).to(tl.int64)
    places = tl.load(shift).to(tl.int64)
    found = codes_of(total, places, zero, low, high)
    tl.store(codes + at, found.to(codes.dtype.element_ty), mask=inside)


@functools.cache
def jit_codes_of() -> Any:
    """The rounding and clamping that all kernels on integers share."""
    globals()["tl"] = importlib.import_module("triton.language")
    return importlib.import_module("triton").jit(_codes_of)


@functools.cache
def kernels() -> tuple[Any, Any]:
    """``_rescale`` and ``_add`` as kernels, compiled when they are first called."""
    triton = importlib.import_module("triton")
    globals()["codes_of"] = jit_codes_of()
    # one variant each, whatever these are.
    alike = ["bias", "multiplier", "second", "shift", "low", "high", "zero", "count", "channels", "inner"]
    rescale = triton.jit(_rescale, do_not_specialize=alike)
    alike = ["multipliers", "shift", "low", "high", "zero_first", "zero_second", "zero", "count"]
    return rescale, triton.jit(_add, do_not_specialize=alike)
