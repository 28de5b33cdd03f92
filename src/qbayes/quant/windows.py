"""The windows of average pooling, axis by axis: where each starts and stops, and by what its sum is divided.

They are those of ``torch.nn.functional.avg_pool1d/2d`` and ``adaptive_avg_pool1d/2d``. A window of several
axes is the product of one window for each, so sums and divisors are taken axis by axis.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def pooled_length(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Number of windows of a pooling; in ceil mode the last must start inside the input or its padding."""
    span = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= length + padding:
        count -= 1
    return count


def average_windows(
    length: int, kernel: int, stride: int, padding: int, ceil_mode: bool, adaptive_out: int | None
) -> list[tuple[int, int]]:
    """The part ``start … stop`` of an axis that each window covers, padding left out.

    Adaptive windows are ``⌊i L / n⌋ … ⌈(i + 1) L / n⌉``, of uneven width where n does not divide L.
    """
    if adaptive_out is not None:
        return [
            (i * length // adaptive_out, -(-(i + 1) * length // adaptive_out)) for i in range(adaptive_out)
        ]
    starts = _starts(length, kernel, stride, padding, ceil_mode)
    return [(max(start, 0), min(start + kernel, length)) for start in starts]


def window_sizes(
    length: int,
    kernel: int,
    stride: int,
    padding: int,
    ceil_mode: bool,
    count_include_pad: bool,
    adaptive_out: int | None,
) -> list[int]:
    """How many elements of an axis each window counts; padding counts too with ``count_include_pad``."""
    if adaptive_out is not None or not count_include_pad:
        windows = average_windows(length, kernel, stride, padding, ceil_mode, adaptive_out)
        return [stop - start for start, stop in windows]
    # what ceil mode reaches beyond the padding does not count.
    starts = _starts(length, kernel, stride, padding, ceil_mode)
    return [min(start + kernel, length + padding) - start for start in starts]


def divisors(
    lengths: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
    adaptive: Sequence[int] | None = None,
) -> Tensor:
    """By what the sum of each window is divided: int64 in the spatial shape of the output."""
    total = torch.ones((), dtype=torch.int64)
    for axis, length in enumerate(lengths):
        sizes = window_sizes(
            length,
            kernel[axis] if adaptive is None else 1,
            stride[axis] if adaptive is None else 1,
            padding[axis] if adaptive is None else 0,
            ceil_mode,
            count_include_pad,
            None if adaptive is None else adaptive[axis],
        )
        total = total.unsqueeze(-1) * torch.tensor(sizes, dtype=torch.int64)
    return total if divisor is None else torch.full_like(total, divisor)


def all_windows(
    lengths: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    adaptive: Sequence[int] | None = None,
) -> list[list[tuple[int, int]]]:
    """``average_windows`` for every spatial axis."""
    if adaptive is not None:
        pairs = zip(lengths, adaptive, strict=True)
        return [average_windows(length, 1, 1, 0, False, out) for length, out in pairs]
    axes = zip(lengths, kernel, stride, padding, strict=True)
    return [average_windows(length, k, s, p, ceil_mode, None) for length, k, s, p in axes]


def window_sums(x: Tensor, windows: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """The sum of x over each window of its last axes: differences of running sums, exact for integers.

    Float lanes stay exact while ``limit · elements of an axis`` fits them; int64 always does.
    """
    for axis, along in zip(range(-len(windows), 0), windows, strict=True):
        if list(along) == [(0, x.shape[axis])]:
            # the average of all there is: on a GPU a running sum takes many times as long.
            x = x.sum(axis, keepdim=True, dtype=x.dtype)
            continue
        starts, stops = (torch.tensor(ends, device=x.device) for ends in zip(*along, strict=True))
        before = x.new_zeros((*x.shape[:axis], 1, *x.shape[x.dim() + axis + 1 :]))
        running = torch.cat([before, x.cumsum(axis, dtype=x.dtype)], dim=axis)
        x = running.index_select(axis, stops) - running.index_select(axis, starts)
    return x


def largest_window(windows: Sequence[Sequence[tuple[int, int]]]) -> int:
    """Most elements that one window covers: bounds its sum."""
    return math.prod(max(stop - start for start, stop in along) for along in windows)


def _starts(length: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> list[int]:
    count = pooled_length(length, kernel, stride, padding, 1, ceil_mode)
    return [i * stride - padding for i in range(count)]
