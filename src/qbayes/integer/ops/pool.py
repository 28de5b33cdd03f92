"""Pooling: the largest code of each window, or the rescaled sum of its centred codes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.integer.arithmetic.fixed_point import round_shift
from qbayes.integer.arithmetic.pooling_windows import (
    Windows,
    all_windows,
    divisors,
    largest_window,
    pooling_length,
    window_sums,
)
from qbayes.integer.ops import fields
from qbayes.integer.ops.base import (
    MOST_WINDOWS,
    Bound,
    Constant,
    Constants,
    Grids,
    Noise,
    Op,
    Shape,
    Value,
    check_padded,
    clamp_codes,
    largest,
    pad_lengths,
    register_op,
    require,
)
from qbayes.integer.ops.weights import SHIFT_BITS, clamp_constants


def _check_windows(op: Op, kernel: object, stride: object, padding: object) -> None:
    fields.inputs(op.name, op.inputs, 1, 1)
    fields.wholes(f"{op.name}: kernel", kernel, 1, lengths=(1, 2))
    lengths = (len(kernel),) if isinstance(kernel, tuple) else ()
    fields.wholes(f"{op.name}: stride", stride, 1, lengths=lengths)
    fields.wholes(f"{op.name}: padding", padding, 0, lengths=lengths)


def _check_row(op: Op, shape: tuple[int, ...], kernel: Sequence[int], padding: Sequence[int]) -> None:
    axes = len(kernel)
    fields.fits(len(shape) == 1 + axes, op.name, f"a row must be channels × {axes} axes", shape)
    # dilated windows are no wider in this: so torch has it.
    right = all(2 * p <= size for size, p in zip(kernel, padding, strict=True))
    fields.fits(right, op.name, f"padding {padding} must be at most half the kernel", tuple(kernel))


@register_op
@dataclass(frozen=True)
class MaxPool(Op):
    """``q_o = max q`` over each window, 1-D or 2-D; padded with code 0, which no code is below."""

    kind: ClassVar[str] = "max_pool"
    lanes: ClassVar[tuple[int, int]] = (8, 20)
    keeps_grid: ClassVar[bool] = True

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        _check_windows(self, self.kernel, self.stride, self.padding)
        fields.wholes(f"{self.name}: dilation", self.dilation, 1, lengths=(len(self.kernel),))
        fields.flag(f"{self.name}: ceil_mode", self.ceil_mode)

    @property
    def label(self) -> str:
        return f"max pool {fields.lengths_text(self.kernel)}"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound()

    def check_size(self, shapes: Sequence[Shape]) -> None:
        check_padded(self.name, shapes[0], self.padding)

    def window_count(self, out: Shape) -> int:
        return math.prod(out[1:])

    def elements_read(self, shapes: Sequence[Shape], out: Shape) -> int:
        return math.prod(pad_lengths(shapes[0], self.padding))

    def operations(self, shapes: Sequence[Shape], out: Shape, macs: int) -> int:
        """The elements of all windows count too."""
        return super().operations(shapes, out, macs) + math.prod((*out, *self.kernel))

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        _check_row(self, shape, self.kernel, self.padding)
        axes = zip(shape[1:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        lengths = tuple(pooling_length(n, k, s, p, d, self.ceil_mode) for n, k, s, p, d in axes)
        fields.fits(min(lengths) > 0, self.name, "the kernel must fit into the padded row", shape)
        return (shape[0], *lengths)

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        pool: Callable[..., Tensor] = F.max_pool1d if len(self.kernel) == 1 else F.max_pool2d
        codes = inputs[0].float()  # exact, and available on every device
        pooled = pool(codes, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)
        # torch pads with −∞, which a dilated window may find alone on a short axis.
        return pooled.clamp(min=0).to(torch.uint8)


@register_op
@dataclass(frozen=True)
class AvgPool(Op):
    """``q_o = clamp(Z_o + round(m_p / 2^s · Σ (q − Z)), low, high)`` over each window, 1-D or 2-D.

    ``m_p / 2^s ≈ S / (S_o · divisor)``: one multiplier, or one for each output position p (flattened) where
    the windows are divided by different numbers: padding that does not count, ceil mode, uneven adaptive
    windows. ``adaptive`` gives the output's lengths; kernel, stride and padding are then of no effect.
    """

    kind: ClassVar[str] = "avg_pool"
    lanes: ClassVar[tuple[int, int]] = (64, 64)

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor: int | None = None
    adaptive: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_windows(self, self.kernel, self.stride, self.padding)
        fields.flag(f"{self.name}: ceil_mode", self.ceil_mode)
        fields.flag(f"{self.name}: count_include_pad", self.count_include_pad)
        if self.divisor is not None:
            fields.whole(f"{self.name}: divisor", self.divisor, 1)
        if self.adaptive is not None:
            fields.wholes(f"{self.name}: adaptive", self.adaptive, 1, lengths=(len(self.kernel),))

    @property
    def label(self) -> str:
        if self.adaptive is not None:
            return f"average to {fields.lengths_text(self.adaptive)}"
        return f"average pool {fields.lengths_text(self.kernel)}"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        total = grids.reaches[0] * largest_window(self.windows(shapes[0][1:]))
        return Bound(total, total * largest(constants["multiplier"]))

    def check_size(self, shapes: Sequence[Shape]) -> None:
        check_padded(self.name, shapes[0], self.padding)
        spans = zip(shapes[0][1:], self.padding, self.stride, strict=False)
        windows = math.prod(self.adaptive or [(n + 2 * p) // s + 1 for n, p, s in spans])
        require(windows <= MOST_WINDOWS, f"'{self.name}': there must be at most 2^22 windows", windows)

    def window_count(self, out: Shape) -> int:
        return math.prod(out[1:])

    def elements_read(self, shapes: Sequence[Shape], out: Shape) -> int:
        """One axis after the other; a running sum has one element more than its axis."""
        shape = shapes[0]
        between = [(*out[:axis], *shape[axis:]) for axis in range(1, len(shape))]
        return max(math.prod(part) // part[axis] * (part[axis] + 1) for axis, part in enumerate(between, 1))

    def operations(self, shapes: Sequence[Shape], out: Shape, macs: int) -> int:
        """The elements of all windows count too."""
        widths = [min(k, n) for k, n in zip(self.kernel, shapes[0][1:], strict=True)]
        if self.adaptive is not None:
            widths = [-(-n // count) + 1 for n, count in zip(shapes[0][1:], self.adaptive, strict=True)]
        return super().operations(shapes, out, macs) + math.prod((*out, *widths))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        along = self.windows(values[self.inputs[0]].shape[1:])
        count = 1 if self._are_even(along) else math.prod(len(axis) for axis in along)
        multiplier = Constant("multiplier", (count,), 32, True)
        return multiplier, Constant("shift", (1,), SHIFT_BITS, False), *clamp_constants()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        _check_row(
            self, shape, self.kernel, self.padding if self.adaptive is None else (0,) * len(self.kernel)
        )
        lengths = tuple(len(along) for along in self.windows(shape[1:]))
        fields.fits(min(lengths) > 0, self.name, "the kernel must fit into the padded row", shape)
        return (shape[0], *lengths)

    def _are_even(self, along: Sequence[Windows]) -> bool:
        """Whether one number divides all sums: sizes are above 0, so it is a matter of each axis."""
        if self.divisor is not None:
            return True
        sizes = [axis.sizes(self.count_include_pad) for axis in along]
        return all(bool((size == size[0]).all()) for size in sizes)

    def windows(self, lengths: Sequence[int]) -> list[Windows]:
        """Start and stop of each window along each axis, for an input of these lengths."""
        return all_windows(lengths, self.kernel, self.stride, self.padding, self.ceil_mode, self.adaptive)

    def divisors(self, lengths: Sequence[int]) -> Tensor:
        """By what each window's sum is divided, in the output's spatial shape."""
        pooling = (self.kernel, self.stride, self.padding, self.ceil_mode)
        return divisors(lengths, *pooling, self.count_include_pad, self.divisor, self.adaptive)

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        centred = inputs[0].long() - grids.zeros[0]
        sums = window_sums(centred, self.windows(centred.shape[2:]))
        multiplier = constants["multiplier"].long()
        positions = multiplier.view(sums.shape[2:]) if multiplier.numel() > 1 else multiplier
        return clamp_codes(grids.zero + round_shift(sums * positions, constants["shift"]), constants)
