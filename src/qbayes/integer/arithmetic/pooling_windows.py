"""The windows of average pooling, axis by axis: where each starts and stops, and by what its sum is divided.

They are those of ``torch.nn.functional.avg_pool1d/2d`` and ``adaptive_avg_pool1d/2d``. A window of several
axes is the product of one window for each, so sums and divisors are taken axis by axis.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor


def pooling_length(
    length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """Number of windows of a pooling; in ceil mode the last must start inside the input or its padding."""
    span = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    if ceil_mode and (count - 1) * stride >= length + padding:
        count -= 1
    return count


@dataclass(frozen=True)
class Windows(Sequence[tuple[int, int]]):
    """The part ``start … stop`` of an axis that each window of a pooling covers, padding left out.

    They are worked out where they are asked for: a few numbers may stand for millions of windows. Adaptive
    windows are ``⌊i L / n⌋ … ⌈(i + 1) L / n⌉``, of uneven width where n does not divide L.
    """

    length: int
    kernel: int
    stride: int
    padding: int
    ceil_mode: bool
    adaptive_out: int | None

    def __len__(self) -> int:
        if self.adaptive_out is not None:
            return self.adaptive_out
        return max(0, pooling_length(self.length, self.kernel, self.stride, self.padding, 1, self.ceil_mode))

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        starts, stops = self.ends()
        if isinstance(index, slice):
            return list(zip(starts[index].tolist(), stops[index].tolist(), strict=True))
        return int(starts[index]), int(stops[index])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        starts, stops = self.ends()
        return zip(starts.tolist(), stops.tolist(), strict=True)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Start and stop of every window, int64."""
        if self.adaptive_out is not None:
            index, out = torch.arange(self.adaptive_out), self.adaptive_out
            return index * self.length // out, ((index + 1) * self.length + out - 1) // out
        first = self._first()
        return first.clamp(min=0), (first + self.kernel).clamp(max=self.length)

    def sizes(self, count_include_pad: bool) -> Tensor:
        """How many elements each window counts; padding counts too with ``count_include_pad``."""
        if self.adaptive_out is not None or not count_include_pad:
            starts, stops = self.ends()
            return stops - starts
        # what ceil mode reaches beyond the padding does not count.
        first = self._first()
        return (first + self.kernel).clamp(max=self.length + self.padding) - first

    def _first(self) -> Tensor:
        """Where each window starts, in the padding too."""
        return torch.arange(len(self)) * self.stride - self.padding


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
    for along in all_windows(lengths, kernel, stride, padding, ceil_mode, adaptive):
        total = total.unsqueeze(-1) * along.sizes(count_include_pad)
    return total if divisor is None else torch.full_like(total, divisor)


def all_windows(
    lengths: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool = False,
    adaptive: Sequence[int] | None = None,
) -> list[Windows]:
    """The windows along every spatial axis."""
    if adaptive is not None:
        return [Windows(length, 1, 1, 0, False, out) for length, out in zip(lengths, adaptive, strict=True)]
    axes = zip(lengths, kernel, stride, padding, strict=True)
    return [Windows(length, k, s, p, ceil_mode, None) for length, k, s, p in axes]


def ends_of(along: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Start and stop of every window, int64."""
    if isinstance(along, Windows):
        return along.ends()
    starts, stops = torch.tensor(along, dtype=torch.int64).view(-1, 2).unbind(1)
    return starts, stops


def window_sums(x: Tensor, windows: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """The sum of x over each window of its last axes: differences of running sums, exact for integers.

    Float lanes stay exact while ``limit · elements of an axis`` fits them; int64 always does.
    """
    for axis, along in zip(range(-len(windows), 0), windows, strict=True):
        if len(along) == 1 and along[0] == (0, x.shape[axis]):
            # the average of all there is: on a GPU a running sum takes many times as long.
            x = x.sum(axis, keepdim=True, dtype=x.dtype)
            continue
        starts, stops = (ends.to(x.device) for ends in ends_of(along))
        before = x.new_zeros((*x.shape[:axis], 1, *x.shape[x.dim() + axis + 1 :]))
        running = torch.cat([before, x.cumsum(axis, dtype=x.dtype)], dim=axis)
        x = running.index_select(axis, stops) - running.index_select(axis, starts)
    return x


def largest_window(windows: Sequence[Sequence[tuple[int, int]]]) -> int:
    """Most elements that one window covers: bounds its sum."""
    widths = [stops - starts for starts, stops in map(ends_of, windows)]
    return math.prod(int(width.max()) for width in widths)
