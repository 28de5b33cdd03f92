"""Ops that move codes and change none: Upsample, Pad, Slice, Reshape, Permute. Scale and zero-point stay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.ops import fields
from qbayes.integer.ops.base import (
    Bound,
    Constant,
    Constants,
    Grids,
    MovingOp,
    Noise,
    Op,
    Shape,
    Value,
    register_op,
    require,
)


@register_op
@dataclass(frozen=True)
class Upsample(MovingOp):
    """``q_o[…, i, j] = q[…, ⌊i / f⌋, ⌊j / g⌋]``: repetition by a whole factor for each spatial axis."""

    kind: ClassVar[str] = "upsample"

    factors: tuple[int, ...]

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.wholes(f"{self.name}: factors", self.factors, 1)

    @property
    def label(self) -> str:
        return f"repeat {fields.lengths_text(self.factors)}"

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        axes = len(self.factors)
        fields.fits(len(shape) == 1 + axes, self.name, f"a row must be channels × {axes} axes", shape)
        return (shape[0], *(n * f for n, f in zip(shape[1:], self.factors, strict=True)))

    def move(self, x: Tensor) -> Tensor:
        for axis, factor in enumerate(self.factors, start=2):
            x = x.repeat_interleave(factor, dim=axis)
        return x


@register_op
@dataclass(frozen=True)
class Pad(Op):
    """Adds ``(before, after)`` elements along each axis after the batch; negative amounts cut.

    ``constant`` puts the code ``fill``, ``replicate`` the edge, ``reflect`` the mirror without the edge.
    """

    kind: ClassVar[str] = "pad"
    lanes: ClassVar[tuple[int, int]] = (4, 2)
    keeps_grid: ClassVar[bool] = True
    moves_codes: ClassVar[bool] = True

    amounts: tuple[tuple[int, int], ...]
    mode: Literal["constant", "reflect", "replicate"] = "constant"

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.one_of(f"{self.name}: mode", self.mode, ("constant", "reflect", "replicate"))
        if not isinstance(self.amounts, tuple):
            raise BadInput(
                f"{self.name}: amounts must be a tuple of pairs", f"{self.amounts!r}", "lower again"
            )
        for pair in self.amounts:
            fields.wholes(f"{self.name}: amounts", pair, -fields.LARGEST, lengths=(2,))

    @property
    def label(self) -> str:
        return f"pad, {self.mode}"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound()

    def check_size(self, shapes: Sequence[Shape]) -> None:
        pairs = zip(shapes[0], self.amounts, strict=False)
        left = [n - max(-before, 0) - max(-after, 0) for n, (before, after) in pairs]
        require(min(left, default=1) > 0, f"'{self.name}': a cut must leave some of every axis", self.amounts)

    def elements_read(self, shapes: Sequence[Shape], out: Shape) -> int:
        return math.prod(max(pair) for pair in zip(shapes[0], out, strict=True))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        return (Constant("fill", (1,), 8, False),) if self.mode == "constant" else ()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        fields.fits(
            len(shape) == len(self.amounts), self.name, "amounts must name every axis of a row", shape
        )
        lengths = tuple(n + a + b for n, (a, b) in zip(shape, self.amounts, strict=True))
        fields.fits(min(lengths, default=1) > 0, self.name, "something of every axis must be left", shape)
        if self.mode == "reflect":
            inside = all(max(pair) < n for n, pair in zip(shape, self.amounts, strict=True))
            fields.fits(inside, self.name, "a reflection must be shorter than its axis", shape)
        return lengths

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        codes = inputs[0]
        if self.mode == "constant":
            # torch wants the last axis first.
            amounts = [n for pair in reversed(self.amounts) for n in pair]
            return torch.nn.functional.pad(codes, amounts, value=int(constants["fill"]))
        for axis, (before, after) in enumerate(self.amounts, start=1):
            last = codes.shape[axis] - 1
            index = torch.arange(-before, last + 1 + after, device=codes.device)
            index = index.clamp(0, last) if self.mode == "replicate" else last - (last - index.abs()).abs()
            codes = codes.index_select(axis, index)
        return codes


@register_op
@dataclass(frozen=True)
class Slice(MovingOp):
    """``start : stop : step`` along ``axis`` (the batch is 0), with ``0 ≤ start < stop ≤ length``."""

    kind: ClassVar[str] = "slice"
    lanes: ClassVar[tuple[int, int]] = (0, 2)
    carries_wide: ClassVar[bool] = True

    axis: int
    start: int
    stop: int
    step: int = 1

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.whole(f"{self.name}: axis", self.axis, 1)
        fields.whole(f"{self.name}: start", self.start)
        fields.whole(f"{self.name}: stop", self.stop, self.start + 1)
        fields.whole(f"{self.name}: step", self.step, 1)

    @property
    def label(self) -> str:
        return f"slice, axis {self.axis}"

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        right = self.axis <= len(shape) and self.stop <= shape[self.axis - 1]
        fields.fits(right, self.name, f"axis {self.axis} must reach to {self.stop}", shape)
        length = len(range(self.start, self.stop, self.step))
        return (*shape[: self.axis - 1], length, *shape[self.axis :])

    def move(self, x: Tensor) -> Tensor:
        return x[(slice(None),) * self.axis + (slice(self.start, self.stop, self.step),)]

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        """In memory of its own, so that the input can be let go."""
        index = torch.arange(self.start, self.stop, self.step, device=inputs[0].device)
        return inputs[0].index_select(self.axis, index)


@register_op
@dataclass(frozen=True)
class Reshape(MovingOp):
    """Each row in another shape, elements in the same order."""

    kind: ClassVar[str] = "reshape"
    lanes: ClassVar[tuple[int, int]] = (0, 2)
    carries_wide: ClassVar[bool] = True
    is_view: ClassVar[bool] = True

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.wholes(f"{self.name}: shape", self.shape, 1)

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        right = math.prod(shapes[0]) == math.prod(self.shape)
        fields.fits(right, self.name, f"a row must have as many elements as {self.shape}", shapes[0])
        return self.shape

    def move(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)


@register_op
@dataclass(frozen=True)
class Permute(MovingOp):
    """The axes in another order; ``order`` counts the batch, which stays first: ``(0, …)``."""

    kind: ClassVar[str] = "permute"
    lanes: ClassVar[tuple[int, int]] = (0, 2)
    carries_wide: ClassVar[bool] = True

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.wholes(f"{self.name}: order", self.order)
        right = self.order[:1] == (0,) and sorted(self.order) == list(range(len(self.order)))
        fields.fits(right, self.name, "order must hold every axis once, the batch first", self.order)

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        fields.fits(len(shape) == len(self.order) - 1, self.name, f"a row must fit {self.order}", shape)
        return tuple(shape[axis - 1] for axis in self.order[1:])

    def move(self, x: Tensor) -> Tensor:
        return x.permute(self.order)
