"""Ops with several inputs: Add, Mul, Concat. Each brings its inputs to the output's grid and rounds once."""

import math
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
from qbayes.integer.ops.cuda_rescale import add_codes, can_fuse
from qbayes.integer.ops.weights import SHIFT_BITS, clamp_constants


def _broadcast(op: Op, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape; all rows have the same number of axes, and an axis of length 1 is repeated."""
    same = all(len(shape) == len(shapes[0]) for shape in shapes)
    fields.fits(same, op.name, "the rows must have the same number of axes", shapes)
    lengths = tuple(max(along) for along in zip(*shapes, strict=True))
    right = all(n in (1, most) for shape in shapes for n, most in zip(shape, lengths, strict=True))
    fields.fits(right, op.name, "the rows must have the same shape, or length 1 to be repeated", shapes)
    return lengths


@register_op
@dataclass(frozen=True)
class Add(Op):
    """``q_o = clamp(Z_o + round(Σ_i (q_i − Z_i) m_i / 2^s), low, high)``; a difference has a negative m_i."""

    kind: ClassVar[str] = "add"
    lanes: ClassVar[tuple[int, int]] = (0, 64)
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1)

    @property
    def label(self) -> str:
        return "sum"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        multipliers = constants["multipliers"].tolist()
        return Bound(0, sum(abs(m) * far for m, far in zip(multipliers, grids.reaches, strict=True)))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        multipliers = Constant("multipliers", (len(self.inputs),), 32, True)
        return multipliers, Constant("shift", (1,), SHIFT_BITS, False), *clamp_constants()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return _broadcast(self, shapes)

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        if len(inputs) == 2 and can_fuse(*inputs):
            return add_codes(inputs[0], inputs[1], constants, grids)
        multipliers = constants["multipliers"].tolist()
        terms = zip(inputs, grids.zeros, multipliers, strict=True)
        total = torch.zeros((), dtype=torch.int64, device=inputs[0].device)
        for codes, zero, multiplier in terms:
            total = total + (codes.long() - zero) * multiplier
        return clamp_codes(grids.zero + round_shift(total, constants["shift"]), constants)


@register_op
@dataclass(frozen=True)
class Mul(Op):
    """``q_o = clamp(Z_o + round((q_a − Z_a)(q_b − Z_b) · m / 2^s), low, high)``."""

    kind: ClassVar[str] = "mul"
    lanes: ClassVar[tuple[int, int]] = (0, 80)
    in_place: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 2, 2)

    @property
    def label(self) -> str:
        return "product"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        total = math.prod(grids.reaches)
        return Bound(total, total * largest(constants["multiplier"]))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        scaling = Constant("multiplier", (1,), 32, True), Constant("shift", (1,), SHIFT_BITS, False)
        return *scaling, *clamp_constants()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return _broadcast(self, shapes)

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        a, b = (codes.long() - zero for codes, zero in zip(inputs, grids.zeros, strict=True))
        product = rescale(a * b, constants["multiplier"], constants["shift"])
        return clamp_codes(grids.zero + product, constants)


@register_op
@dataclass(frozen=True)
class Concat(Op):
    """``q_o = clamp(Z_o + round((q_i − Z_i) m_i / 2^s_i), low, high)``, joined along ``axis`` (batch: 0)."""

    kind: ClassVar[str] = "concat"
    lanes: ClassVar[tuple[int, int]] = (0, 64)

    axis: int

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1)
        fields.whole(f"{self.name}: axis", self.axis, 1)

    @property
    def label(self) -> str:
        return f"concatenation, axis {self.axis}"

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        multipliers = constants["multipliers"].tolist()
        return Bound(0, max(abs(m) * far for m, far in zip(multipliers, grids.reaches, strict=True)))

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        count = (len(self.inputs),)
        scaling = Constant("multipliers", count, 32, True), Constant("shifts", count, SHIFT_BITS, False)
        return *scaling, *clamp_constants()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        at = self.axis - 1
        right = all(
            len(shape) == len(shapes[0]) > at
            and shape[:at] + shape[at + 1 :] == shapes[0][:at] + shapes[0][at + 1 :]
            for shape in shapes
        )
        fields.fits(right, self.name, f"the rows must agree in all axes but {self.axis}", shapes)
        return (*shapes[0][:at], sum(shape[at] for shape in shapes), *shapes[0][at + 1 :])

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        multipliers, shifts = constants["multipliers"].tolist(), constants["shifts"].tolist()
        parts = zip(inputs, grids.zeros, multipliers, shifts, strict=True)
        rescaled = [rescale(codes.long() - zero, m, s) for codes, zero, m, s in parts]
        return clamp_codes(grids.zero + torch.cat(rescaled, dim=self.axis), constants)
