"""What must be proven of one op: that it asks for a sane amount of memory, that its constants lie in their
ranges, and how large its sums and products can become.

The reach of a value is the largest ``|q − Z|`` that its codes allow, ``max(Z, 2^n − 1 − Z)``.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.ops import (
    Add,
    Affine,
    AvgPool,
    Concat,
    Constants,
    Conv,
    Grids,
    Mask,
    MaxPool,
    Mul,
    Op,
    Pad,
    Permute,
    Rescale,
    Reshape,
    Slice,
    Upsample,
    Weighted,
)
from qbayes.quant.fixed_point import LARGEST_SHIFT, rescale
from qbayes.quant.windows import largest_window

ACCUMULATOR_LIMIT = (1 << 31) - 1
PRODUCT_LIMIT = (1 << 62) - 1
LARGEST_VALUE = 1 << 28  # elements of one row
MOST_WINDOWS = 1 << 22  # of an average pooling, which are listed one by one

# ops that hand codes on: bits and zero-point of the output are those of the input.
_HAND_ON = (Mask, MaxPool, Upsample, Pad, Slice, Reshape, Permute)
DO = "lower the network again; if the program came from a file, it was damaged or made by hand"


def require(holds: bool, must: str, got: object) -> None:
    if not holds:
        raise BadInput(must, f"{got}"[:200], DO)


@dataclass(frozen=True)
class Bound:
    """The largest sum that int32 must hold, and the largest product or sum of products for int64."""

    accumulator: int = 0
    product: int = 0


def check_resources(op: Op, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise where computing the shape, or running the op, would ask for absurd amounts of memory."""
    if isinstance(op, Conv | MaxPool | AvgPool):
        lengths = [n + 2 * p for n, p in zip(shapes[0][1:], op.padding, strict=False)]
        padded = math.prod([*shapes[0][:1], *lengths])
        require(padded <= LARGEST_VALUE, f"'{op.name}': a padded row must be below 2^28 elements", padded)
    if isinstance(op, AvgPool):
        spans = zip(shapes[0][1:], op.padding, op.stride, strict=False)
        windows = math.prod(op.adaptive or [(n + 2 * p) // s + 1 for n, p, s in spans])
        require(windows <= MOST_WINDOWS, f"'{op.name}': there must be at most 2^22 windows", windows)
    if isinstance(op, Pad):
        pairs = zip(shapes[0], op.amounts, strict=False)
        left = [n - max(-before, 0) - max(-after, 0) for n, (before, after) in pairs]
        require(min(left, default=1) > 0, f"'{op.name}': a cut must leave some of every axis", op.amounts)


def check_codes(op: Op, constants: Constants, grids: Grids) -> None:
    """Raise unless the constants, already of their declared widths, lie in the ranges their roles have."""
    highest = (1 << grids.out_bits) - 1
    for name, codes in constants.items():
        if name in ("shift", "shifts") or name.endswith("_shift"):
            _within(op, name, codes, 0, LARGEST_SHIFT)
        elif "multiplier" in name or name == "mix":
            _within(op, name, codes, -ACCUMULATOR_LIMIT, ACCUMULATOR_LIMIT)
        elif name in ("low", "high", "fill"):
            _within(op, name, codes, 0, highest)
        elif isinstance(op, Weighted) and name in ("weight", "mean", "weight_zero", "mean_zero"):
            _within(op, name, codes, *op.weights.limits)
    if "low" in constants:
        low, high = int(constants["low"]), int(constants["high"])
        if low > high:
            require(False, f"'{op.name}': low must be at most high", f"{low} and {high}")
    if isinstance(op, _HAND_ON):
        before, after = (grids.bits[0], grids.zeros[0]), (grids.out_bits, grids.zero)
        if before != after:
            must = f"'{op.name}' must keep the bits and the zero-point of its codes"
            require(False, must, f"{before} before, {after} after")


def _within(op: Op, name: str, codes: Tensor, low: int, high: int) -> None:
    least, most = extremes(codes)
    if not low <= least <= most <= high:
        require(False, f"'{op.name}': {name} must lie in {low} … {high}", f"{least} … {most}")


def extremes(codes: Tensor) -> tuple[int, int]:
    """The least and the greatest of integers; most constants are a single one."""
    if codes.numel() == 1:
        return (only := int(codes)), only
    return int(codes.min()), int(codes.max())


def reach(bits: int, zero: int) -> int:
    """The largest ``|q − Z|``."""
    return max(zero, (1 << bits) - 1 - zero)


def _reaches(grids: Grids) -> list[int]:
    return [reach(bits, zero) for bits, zero in zip(grids.bits, grids.zeros, strict=True)]


def _largest(codes: Tensor) -> int:
    return int(codes.long().abs().max())


@functools.singledispatch
def accumulator_bound(op: Op, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    """How large the sums of ``op`` can become for any input; ops that compute nothing have no bound."""
    return Bound()


@accumulator_bound.register(Add)
def _(op: Add, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    multipliers = constants["multipliers"].tolist()
    return Bound(0, sum(abs(m) * far for m, far in zip(multipliers, _reaches(grids), strict=True)))


@accumulator_bound.register(Concat)
def _(op: Concat, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    multipliers = constants["multipliers"].tolist()
    return Bound(0, max(abs(m) * far for m, far in zip(multipliers, _reaches(grids), strict=True)))


@accumulator_bound.register(Mul)
def _(op: Mul, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    total = math.prod(_reaches(grids))
    return Bound(total, total * _largest(constants["multiplier"]))


@accumulator_bound.register(Rescale)
def _(op: Rescale, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    return Bound(0, _reaches(grids)[0] * _largest(constants["multiplier"]))


@accumulator_bound.register(Affine)
def _(op: Affine, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    scaled = _reaches(grids)[0] * constants["multiplier"].long().abs()
    return Bound(0, int((scaled + constants["offset"].long().abs()).max()))


@accumulator_bound.register(AvgPool)
def _(op: AvgPool, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    total = _reaches(grids)[0] * largest_window(op.windows(shapes[0][1:]))
    return Bound(total, total * _largest(constants["multiplier"]))


@accumulator_bound.register(Weighted)
def _(op: Weighted, constants: Constants, grids: Grids, shapes: Sequence[tuple[int, ...]]) -> Bound:
    """``Σ|q_w − Z_w| · reach + |b|`` for each channel, and where the noise has its own sum, also that."""
    far = _reaches(grids)[0]
    sums = far * _weight_sums(op, constants) + _largest_bias(op, constants)
    scaled = _products(sums, constants["multiplier"])
    noise = 0
    if op.weights.accumulators == 2:
        noise = far * _fan_in(op) * op.weights.limits[1]
        second = _products(torch.full_like(sums, noise), constants["second_multiplier"])
        scaled = [one + two for one, two in zip(scaled, second, strict=True)]
    return Bound(max(int(sums.max()), noise), max(scaled))


def _fan_in(op: Weighted) -> int:
    return math.prod(op.weight_shape[1:])


def _weight_sums(op: Weighted, constants: Constants) -> Tensor:
    """``Σ|q_w − Z_w|`` of each output channel, int64: of the codes, or of the clamp for sampled weights."""
    weights, channels = op.weights, op.weight_shape[0]
    if weights.is_gaussian and weights.grids < 2:
        zero = int(constants["weight_zero"]) if weights.affine else 0
        low, high = weights.limits
        return torch.full((channels,), _fan_in(op) * max(zero - low, high - zero))
    codes = constants["mean" if weights.is_gaussian else "weight"].flatten(1).to(torch.int16)
    if weights.affine:
        codes = codes - constants["weight_zero"].to(torch.int16).view(-1, 1)
    return codes.abs().sum(1, dtype=torch.int64)


def _largest_bias(op: Weighted, constants: Constants) -> Tensor:
    """``|b|`` of each channel with the furthest that noise on the bias can take it."""
    bias = constants["bias"].long().abs()
    if not op.weights.is_gaussian or op.weights.bias_site is None:
        return bias
    furthest = constants["bias_sigma"].long() * ((1 << op.weights.noise_bits - 1) - 1)
    multiplier = constants["bias_noise_multiplier"].long().abs()
    return bias + rescale(furthest, multiplier, constants["bias_noise_shift"].long())


def _products(sums: Tensor, multiplier: Tensor) -> list[int]:
    """``sum · |m|`` of each channel in Python's integers, which cannot wrap."""
    factors = multiplier.long().abs().expand_as(sums)
    return [total * factor for total, factor in zip(sums.tolist(), factors.tolist(), strict=True)]
