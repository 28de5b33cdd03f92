"""Pooling: the largest code of each window, or the rescaled sum of its centred codes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.integer.ops import fields
from qbayes.integer.ops.base import Constant, Constants, Grids, Noise, Op, Value, clamp_codes
from qbayes.integer.ops.weights import SHIFT_BITS, clamp_constants
from qbayes.quant.fixed_point import rounded_shift
from qbayes.quant.windows import Windows, all_windows, divisors, pooled_length, window_sums


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


@dataclass(frozen=True)
class MaxPool(Op):
    """``q_o = max q`` over each window, 1-D or 2-D; padded with code 0, which no code is below."""

    kind: ClassVar[str] = "max_pool"

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        _check_windows(self, self.kernel, self.stride, self.padding)
        fields.wholes(f"{self.name}: dilation", self.dilation, 1, lengths=(len(self.kernel),))
        fields.flag(f"{self.name}: ceil_mode", self.ceil_mode)

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        _check_row(self, shape, self.kernel, self.padding)
        axes = zip(shape[1:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        lengths = tuple(pooled_length(n, k, s, p, d, self.ceil_mode) for n, k, s, p, d in axes)
        fields.fits(min(lengths) > 0, self.name, "the kernel must fit into the padded row", shape)
        return (shape[0], *lengths)

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        pool: Callable[..., Tensor] = F.max_pool1d if len(self.kernel) == 1 else F.max_pool2d
        codes = inputs[0].float()  # exact, and available on every device
        pooled = pool(codes, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)
        # torch pads with −∞, which a dilated window may find alone on a short axis.
        return pooled.clamp(min=0).to(torch.uint8)


@dataclass(frozen=True)
class AvgPool(Op):
    """``q_o = clamp(Z_o + round(m_p / 2^s · Σ (q − Z)), low, high)`` over each window, 1-D or 2-D.

    ``m_p / 2^s ≈ S / (S_o · divisor)``: one multiplier, or one for each output position p (flattened) where
    the windows are divided by different numbers: padding that does not count, ceil mode, uneven adaptive
    windows. ``adaptive`` gives the output's lengths; kernel, stride and padding are then of no effect.
    """

    kind: ClassVar[str] = "avg_pool"

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
        return clamp_codes(grids.zero + rounded_shift(sums * positions, constants["shift"]), constants)
