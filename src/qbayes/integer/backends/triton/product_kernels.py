"""The kernels of ``integer.backends.triton.products``, in Triton's Python: functions until ``kernels``
compiles them.

Codes lie in memory with the channels last. A program of ``_convolve`` makes ``ROWS`` pixels of ``COLUMNS``
output channels: products of int8 in int32 by the tensor cores, then the rescaling of ``rescale_kernels``.
"""

# pyright: reportInvalidTypeForm=false
# Triton reads the annotations, and pyright cannot where Triton is not installed.
from __future__ import annotations

import functools
import importlib
from typing import Any

from qbayes.integer.ops.cuda_rescale_triton import jit_codes_of

# triton.language: Triton looks a kernel's names up among its module's, where ``kernels`` puts it.
tl: Any = None
codes_of: Any = None


def _convolve(
    x: tl.tensor,
    weight: tl.tensor,
    noise: tl.tensor,
    codes: tl.tensor,
    bias: tl.tensor,
    noise_bias: tl.tensor,
    weight_zero: tl.tensor,
    multiplier: tl.tensor,
    second: tl.tensor,
    shift: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    zero_in: tl.tensor,
    zero_out: tl.tensor,
    pixels: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    channels: tl.constexpr,
    channels_held: tl.constexpr,
    out_channels: tl.constexpr,
    taps_down: tl.constexpr,
    taps_across: tl.constexpr,
    stride_down: tl.constexpr,
    stride_across: tl.constexpr,
    pad_down: tl.constexpr,
    pad_across: tl.constexpr,
    apart_down: tl.constexpr,
    apart_across: tl.constexpr,
    TWO: tl.constexpr,
    AFFINE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """``clamp(Z_o + round(((Σ (q − Z)(w − Z_w) + b) m + Σ (q − Z) n m') / 2^s), low, high)``.

    Bytes are multiplied as q − 128, which int8 holds: ``bias`` has (128 − Z) Σ w in it. Outside the image and
    behind the last channel q is Z, which counts as nothing. With a zero-point of the weights (``AFFINE``)
    Z_w Σ (q − Z) is taken off.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    inside = row < pixels
    image = row // (out_height * out_width)
    down = (row // out_width) % out_height * stride_down - pad_down
    across = row % out_width * stride_across - pad_across
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    more = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    total_in = tl.zeros((ROWS,), dtype=tl.int32)
    taps: tl.constexpr = taps_down * taps_across
    pieces: tl.constexpr = channels_held // DEPTH
    for step in range(taps * pieces):
        tap = step // pieces
        channel = (step % pieces) * DEPTH + depth
        at_down = down + (tap // taps_across) * apart_down
        at_across = across + (tap % taps_across) * apart_across
        seen = inside & (at_down >= 0) & (at_down < height) & (at_across >= 0) & (at_across < width)
        pixel = (image * height + at_down) * width + at_across
        held = seen[:, None] & (channel < channels)[None, :]
        q = tl.load(x + pixel[:, None] * channels + channel[None, :], mask=held, other=zero_in)
        centred = (q ^ 128).to(tl.int8, bitcast=True)
        at = column[None, :] * (taps * channels_held) + tap * channels_held + channel[:, None]
        sums = tl.dot(centred, tl.load(weight + at), acc=sums, out_dtype=tl.int32)
        if TWO:
            more = tl.dot(centred, tl.load(noise + at), acc=more, out_dtype=tl.int32)
        if AFFINE:
            total_in += tl.sum(centred.to(tl.int32), axis=1)
    total = sums.to(tl.int64) + tl.load(bias + column)[None, :]
    if AFFINE:
        window = total_in + taps * channels_held * (128 - zero_in)
        total -= window.to(tl.int64)[:, None] * tl.load(weight_zero + column).to(tl.int64)[None, :]
    total *= tl.load(multiplier + column).to(tl.int64)[None, :]
    if TWO:
        spread = more.to(tl.int64) + tl.load(noise_bias + column)[None, :]
        total += spread * tl.load(second + column).to(tl.int64)[None, :]
    places = tl.load(shift + column).to(tl.int64)[None, :] + tl.zeros((ROWS, 1), dtype=tl.int64)
    found = codes_of(total, places, zero_out, low, high)
    kept = inside[:, None] & (column < out_channels)[None, :]
    at = row[:, None] * out_channels + column[None, :]
    tl.store(codes + at, found.to(codes.dtype.element_ty), mask=kept)


def _keep(
    kept: tl.tensor,
    draws: tl.tensor,
    seed: tl.tensor,
    site: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    elements: tl.tensor,
    quads: tl.tensor,
    count: tl.tensor,
    threshold: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The bits of ``noise.keep_masks``: four from each Philox counter (site, draw, row, element / 4)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    line, quad = at // quads, at % quads
    draw = tl.load(draws + line // rows, mask=inside, other=0)
    row = first_row + line % rows
    nothing = tl.zeros((BLOCK,), dtype=tl.uint32)
    words = tl.philox(
        seed, nothing + site.to(tl.uint32), draw.to(tl.uint32), row.to(tl.uint32), quad.to(tl.uint32)
    )
    for index in tl.static_range(4):
        element = 4 * quad + index
        bit = ((words[index] >> 16).to(tl.int32) >= threshold).to(tl.int8)
        tl.store(kept + line * elements + element, bit, mask=inside & (element < elements))


def _mask(
    codes: tl.tensor,
    kept: tl.tensor,
    out: tl.tensor,
    zero: tl.tensor,
    count: tl.tensor,
    row: tl.tensor,
    channels: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``k ? q : Z`` with one bit a channel; ``row`` is how many codes a row has."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    q = tl.load(codes + at, mask=inside, other=0)
    k = tl.load(kept + (at // row) * channels + at % channels, mask=inside, other=0)
    tl.store(out + at, tl.where(k != 0, q, zero.to(q.dtype)), mask=inside)


@functools.cache
def kernels() -> tuple[Any, Any, Any]:
    """The three functions above as kernels, compiled when they are first called."""
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")
    globals()["codes_of"] = jit_codes_of()
    # one variant each, whatever these are.
    sizes = ["zero_in", "zero_out", "pixels", "height", "width", "out_height", "out_width"]
    numbers = ["seed", "site", "first_row", "rows", "elements", "quads", "count", "threshold"]
    return (
        triton.jit(_convolve, do_not_specialize=sizes),
        triton.jit(_keep, do_not_specialize=numbers),
        triton.jit(_mask, do_not_specialize=["zero", "count", "row"]),
    )
