"""Conv and Linear: ``q_o = clamp(Z_o + round((Σ (q_x − Z_x)(q_w − Z_w) + b) · m_c / 2^s_c), low, high)``.

``b`` is an int32 at the scale ``S_x S_w`` and ``m_c / 2^s_c ≈ S_x S_w / S_o``; a ReLU is ``low = Z_o``. With
two accumulators ``q_o = clamp(Z_o + round(((Σ x_c μ_q + b) m_c + (Σ x_c n) m'_c) / 2^s_c), low, high)``.
Padding is by zeros, that is by the code Z_x. The products before the shift do not depend on the width of the
output: ``|Σ| < 2^31`` and ``|m| < 2^31`` (``2^30`` each with two sums) stay below 2^62 for 16 bits as for 2.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qbayes.integer.arithmetic.exact_matmul import LARGEST_COLUMNS, exact_conv, exact_linear
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
    check_padded,
    clamp_codes,
    pad_lengths,
    register_op,
)
from qbayes.integer.ops.cuda_rescale import can_fuse, rescale_sums
from qbayes.integer.ops.weights import Weights

# bytes of lanes an output takes when the inputs are gone and its sums become codes.
_SUMS = 80


@dataclass(frozen=True)
class Weighted(Op):
    """What Conv and Linear share: drawing weights, accumulating, rescaling."""

    lanes: ClassVar[tuple[int, int]] = (32, 32)
    computes_wide: ClassVar[bool] = True
    # where the output's channels lie in a batch.
    channel_axis: ClassVar[int]

    weights: Weights

    @property
    def is_stochastic(self) -> bool:
        return self.weights.is_gaussian

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight's codes, output channels first."""

    @abstractmethod
    def linear_map(self, x: Tensor, weight: Tensor, x_limit: int, w_limit: int, bound: int) -> Tensor:
        """``Σ x_c w_c`` as exact integers in float lanes."""

    @abstractmethod
    def per_channel(self, constant: Tensor) -> Tensor:
        """A constant of one element, or one for each output channel, to broadcast with the output."""

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        return self.weights.constants(self.weight_shape, values[self.output].bits)

    @property
    def weight_count(self) -> int:
        return math.prod(self.weight_shape)

    @property
    def weight_bits(self) -> tuple[int, ...]:
        weights = self.weights
        return (weights.bits, weights.sigma_bits) if weights.is_gaussian else (weights.bits,)

    @property
    def fan_in(self) -> int:
        """Products that are summed for each output."""
        return math.prod(self.weight_shape[1:])

    def limits(self, name: str, grids: Grids) -> tuple[int, int] | None:
        if name in ("weight", "mean", "weight_zero", "mean_zero"):
            return self.weights.limits
        return super().limits(name, grids)

    def sites(self) -> list[tuple[int, object]]:
        weights = self.weights
        if not weights.is_gaussian:
            return []
        found: list[tuple[int, object]] = [(weights.site, ("weights", self.weight_shape))]
        if weights.bias_site is not None:
            found.append((weights.bias_site, ("bias", self.weight_shape)))
        return found

    def lane_bytes(self, shapes: Sequence[Shape], out: Value) -> int:
        """The most while sums are made, or while they become codes and the inputs are gone."""
        count, (read, written) = math.prod(out.shape), self.lanes
        return max(read * self.elements_read(shapes, out.shape) + written * count, _SUMS * count)

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        """``Σ|q_w − Z_w| · reach + |b|`` for each channel, and where the noise has its own sum, also that."""
        far = grids.reaches[0]
        sums = far * self._weight_sums(constants) + self._largest_bias(constants)
        scaled = _products(sums, constants["multiplier"])
        noise = 0
        if self.weights.accumulators == 2:
            noise = far * self.fan_in * self.weights.limits[1]
            second = _products(torch.full_like(sums, noise), constants["second_multiplier"])
            scaled = [one + two for one, two in zip(scaled, second, strict=True)]
        return Bound(max(int(sums.max()), noise), max(scaled))

    def _weight_sums(self, constants: Constants) -> Tensor:
        """``Σ|q_w − Z_w|`` of each channel, int64: of the codes, or of the clamp for sampled weights."""
        weights, channels = self.weights, self.weight_shape[0]
        if weights.is_gaussian and weights.grids < 2:
            zero = int(constants["weight_zero"]) if weights.affine else 0
            low, high = weights.limits
            return torch.full((channels,), self.fan_in * max(zero - low, high - zero))
        codes = constants["mean" if weights.is_gaussian else "weight"].flatten(1).to(torch.int16)
        if weights.affine:
            codes = codes - constants["weight_zero"].to(torch.int16).view(-1, 1)
        return codes.abs().sum(1, dtype=torch.int64)

    def _largest_bias(self, constants: Constants) -> Tensor:
        """``|b|`` of each channel with the furthest that noise on the bias can take it."""
        bias = constants["bias"].long().abs()
        if not self.is_stochastic or self.weights.bias_site is None:
            return bias
        furthest = constants["bias_sigma"].long() * ((1 << self.weights.noise_bits - 1) - 1)
        multiplier = constants["bias_noise_multiplier"].long().abs()
        return bias + rescale(furthest, multiplier, constants["bias_noise_shift"].long())

    def macs(self, values: Mapping[str, Value]) -> int:
        outputs = math.prod(values[self.output].shape)
        return outputs * math.prod(self.weight_shape[1:]) * self.weights.accumulators

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        if not self.is_stochastic:
            return self.run_draw(inputs[0], grids, constants, self.weights.draw(constants, 0, 0))
        batch, draws = inputs[0].shape[0], noise.draws.tolist()
        fields.fits(
            batch == len(draws) * noise.rows, self.name, "the batch must be draws × rows", f"{batch} rows"
        )
        parts = inputs[0].split(noise.rows)
        return torch.cat(
            [
                self.run_draw(part, grids, constants, self.weights.draw(constants, noise.seed, draw))
                for part, draw in zip(parts, draws, strict=True)
            ]
        )

    def run_draw(self, x: Tensor, grids: Grids, constants: Constants, drawn: Mapping[str, Tensor]) -> Tensor:
        """The output's codes for rows that share one draw of the weights (as ``Weights.draw`` gives it)."""
        first = drawn["weight"] if "weight" in drawn else drawn["mean"]
        sums = self.sums(x, grids, first, self.weights.zero(constants))
        spread = self.sums(x, grids, drawn["noise"], 0) if "noise" in drawn else None
        if can_fuse(sums, *(() if spread is None else (spread,))):
            return rescale_sums(sums, spread, drawn, constants, grids, self.channel_axis % sums.dim())
        total = (sums.long() + self.per_channel(drawn["bias"].long())) * self.per_channel(
            constants["multiplier"].long()
        )
        if spread is not None:
            total += spread.long() * self.per_channel(constants["second_multiplier"].long())
        shift = self.per_channel(constants["shift"].long())
        return clamp_codes(grids.zero + round_shift(total, shift), constants, grids.out_bits)

    def sums(self, x: Tensor, grids: Grids, weight: Tensor, zero: Tensor | int) -> Tensor:
        """``Σ (q_x − Z_x)(q_w − Z_w)`` as exact integers in float lanes."""
        centred = weight.long()
        if isinstance(zero, Tensor):
            centred = centred - zero.view(-1, *(1,) * (centred.dim() - 1))
        sizes = centred.abs().flatten(1)
        x_limit = max(grids.zeros[0], (1 << grids.bits[0]) - 1 - grids.zeros[0])
        bound, w_limit = int(sizes.sum(1).max()) * x_limit, int(sizes.max())
        x_centred = x.float() - grids.zeros[0]
        return self.linear_map(x_centred, centred.float(), x_limit, w_limit, bound)


def _products(sums: Tensor, multiplier: Tensor) -> list[int]:
    """``sum · |m|`` of each channel in Python's integers, which cannot wrap."""
    factors = multiplier.long().abs().expand_as(sums)
    return [total * factor for total, factor in zip(sums.tolist(), factors.tolist(), strict=True)]


@register_op
@dataclass(frozen=True)
class Conv(Weighted):
    """1-D or 2-D convolution with symmetric zero padding along each axis."""

    kind: ClassVar[str] = "conv"
    channel_axis: ClassVar[int] = 1

    channels_in: int
    channels_out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        for name in ("channels_in", "channels_out", "groups"):
            fields.whole(f"{self.name}: {name}", getattr(self, name), 1)
        fields.wholes(f"{self.name}: kernel", self.kernel, 1, lengths=(1, 2))
        for name in ("stride", "dilation", "padding"):
            least, lengths = int(name != "padding"), (len(self.kernel),)
            fields.wholes(f"{self.name}: {name}", getattr(self, name), least, lengths=lengths)
        for name in ("channels_in", "channels_out"):
            must = f"groups ({self.groups}) must divide {name}"
            fields.fits(getattr(self, name) % self.groups == 0, self.name, must, getattr(self, name))

    @property
    def label(self) -> str:
        stride = f", stride {fields.lengths_text(self.stride)}" if max(self.stride) > 1 else ""
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        kind = "conv" if len(self.kernel) == 2 else "1-D conv"
        channels = f"{self.channels_in} → {self.channels_out}"
        return f"{kind} {fields.lengths_text(self.kernel)}, {channels}{stride}{groups}"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.channels_out, self.channels_in // self.groups, *self.kernel)

    def check_size(self, shapes: Sequence[Shape]) -> None:
        check_padded(self.name, shapes[0], self.padding)

    def elements_read(self, shapes: Sequence[Shape], out: Shape) -> int:
        return math.prod(pad_lengths(shapes[0], self.padding))

    def bytes_for_all_rows(self, out: Shape) -> int:
        """The columns that torch writes down, up to where it goes piece by piece."""
        return min(8 * math.prod((*self.weight_shape[1:], *out[1:])), LARGEST_COLUMNS)

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        right = len(shape) == 1 + len(self.kernel) and shape[0] == self.channels_in
        must = f"a row must be {self.channels_in} channels × {len(self.kernel)} axes"
        fields.fits(right, self.name, must, shape)
        axes = zip(shape[1:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        lengths = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)
        fields.fits(min(lengths) > 0, self.name, "the kernel must fit into the padded row", shape)
        return (self.channels_out, *lengths)

    def linear_map(self, x: Tensor, weight: Tensor, x_limit: int, w_limit: int, bound: int) -> Tensor:
        return exact_conv(
            *(x, weight, self.stride, self.padding, self.dilation, self.groups),
            x_limit=x_limit,
            w_limit=w_limit,
            bound=bound,
        )

    def per_channel(self, constant: Tensor) -> Tensor:
        return constant.view(-1, *(1,) * len(self.kernel))


@register_op
@dataclass(frozen=True)
class Linear(Weighted):
    """Product with a matrix along the last axis."""

    kind: ClassVar[str] = "linear"
    channel_axis: ClassVar[int] = -1

    features_in: int
    features_out: int

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.whole(f"{self.name}: features_in", self.features_in, 1)
        fields.whole(f"{self.name}: features_out", self.features_out, 1)

    @property
    def label(self) -> str:
        return f"linear, {self.features_in} → {self.features_out}"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.features_out, self.features_in)

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        (shape,) = shapes
        right = len(shape) >= 1 and shape[-1] == self.features_in
        fields.fits(right, self.name, f"the last axis of a row must have length {self.features_in}", shape)
        return (*shape[:-1], self.features_out)

    def linear_map(self, x: Tensor, weight: Tensor, x_limit: int, w_limit: int, bound: int) -> Tensor:
        return exact_linear(x, weight, x_limit=x_limit, w_limit=w_limit, bound=bound)

    def per_channel(self, constant: Tensor) -> Tensor:
        return constant
