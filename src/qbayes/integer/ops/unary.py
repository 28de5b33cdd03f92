"""Ops on one value, element by element: Rescale, Affine, Lookup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import rescale, round_shift
from qbayes.integer.ops import fields
from qbayes.integer.ops.base import (
    Bound,
    Constant,
    Constants,
    Grids,
    Noise,
    Op,
    Shape,
    Value,
    clamp_codes,
    largest,
    register_op,
)
from qbayes.integer.ops.weights import SHIFT_BITS, clamp_constants


@register_op
@dataclass(frozen=True)
class Rescale(Op):
    """``q_o = clamp(Z_o + round((q − Z) m / 2^s), low, high)``: the same numbers on another grid."""

    kind: ClassVar[str] = "rescale"
    lanes: ClassVar[tuple[int, int]] = (0, 64)
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)

    @property
    def label(self) -> str:
        return "new grid"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound(0, grids.reaches[0] * largest(constants["multiplier"]))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        scaling = Constant("multiplier", (1,), 32, True), Constant("shift", (1,), SHIFT_BITS, False)
        return *scaling, *clamp_constants()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return shapes[0]

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        centred = inputs[0].long() - grids.zeros[0]
        rescaled = rescale(centred, constants["multiplier"], constants["shift"])
        return clamp_codes(grids.zero + rescaled, constants)


@register_op
@dataclass(frozen=True)
class Affine(Op):
    """``q_o = clamp(Z_o + round(((q − Z) m_c + o_c) / 2^s), low, high)``: a factor and offset per channel.

    What is left of a batch normalisation that no layer could take in. The channels ``c`` lie on axis 1; the
    offset is at the scale ``S_o / 2^s``.
    """

    kind: ClassVar[str] = "affine"
    lanes: ClassVar[tuple[int, int]] = (0, 64)
    in_place: ClassVar[bool] = True

    channels: int

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.whole(f"{self.name}: channels", self.channels, 1)

    @property
    def label(self) -> str:
        return f"affine, {self.channels} channels"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        scaled = grids.reaches[0] * constants["multiplier"].long().abs()
        return Bound(0, int((scaled + constants["offset"].long().abs()).max()))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        listed = [Constant(name, (self.channels,), 32, True) for name in ("multiplier", "offset")]
        return *listed, Constant("shift", (1,), SHIFT_BITS, False), *clamp_constants()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        right = len(shape) >= 1 and shape[0] == self.channels
        fields.fits(right, self.name, f"a row must have {self.channels} channels", shape)
        return shape

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        along = (-1, *(1,) * (inputs[0].dim() - 2))
        centred = inputs[0].long() - grids.zeros[0]
        total = centred * constants["multiplier"].long().view(along) + constants["offset"].long().view(along)
        return clamp_codes(grids.zero + round_shift(total, constants["shift"]), constants)


@register_op
@dataclass(frozen=True)
class Lookup(Op):
    """``q_o = table[q]``: any function of one number, by a table of ``2^bits`` entries."""

    kind: ClassVar[str] = "lookup"
    lanes: ClassVar[tuple[int, int]] = (0, 16)
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)

    @property
    def label(self) -> str:
        return "table"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound()

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        entries = 1 << values[self.inputs[0]].bits
        return (Constant("table", (entries,), values[self.output].bits, False),)

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return shapes[0]

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        return constants["table"].to(torch.uint8)[inputs[0].long()]
