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

from qbayes.integer.ops import fields
from qbayes.integer.ops.base import Constant, Constants, Grids, Noise, Op, Value, clamp_codes
from qbayes.integer.ops.weights import Weights
from qbayes.integer.rescale import can_fuse, rescaled
from qbayes.quant.exact import exact_conv, exact_linear
from qbayes.quant.fixed_point import rounded_shift


@dataclass(frozen=True)
class Weighted(Op):
    """What Conv and Linear share: drawing weights, accumulating, rescaling."""

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
            return rescaled(sums, spread, drawn, constants, grids, self.channel_axis % sums.dim())
        total = (sums.long() + self.per_channel(drawn["bias"].long())) * self.per_channel(
            constants["multiplier"].long()
        )
        if spread is not None:
            total += spread.long() * self.per_channel(constants["second_multiplier"].long())
        shift = self.per_channel(constants["shift"].long())
        return clamp_codes(grids.zero + rounded_shift(total, shift), constants, grids.out_bits)

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
    def weight_shape(self) -> tuple[int, ...]:
        return (self.channels_out, self.channels_in // self.groups, *self.kernel)

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
