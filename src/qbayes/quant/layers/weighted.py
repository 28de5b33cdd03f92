"""Linear maps: convolutions and linear layers with point weights or Gaussian ones.

    q_o = clamp(Z_o + round(M_c (Σ (q_x − Z_x)(q_w − Z_w) + b_q)), low, high),   M_c = S_x S_w,c / S_o

The bias is an integer at scale S_x S_w. A channel whose bias would not fit (|b| ≥ 2^30 S_x S_w: its weights
are nearly dead) gets a larger S_w when the network settles for evaluation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.device import on_a_gpu
from qbayes.integer.arithmetic.exact_matmul import exact_conv, exact_linear
from qbayes.integer.arithmetic.fixed_point import real, round_shift
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import Conv, Linear, Op, Weights
from qbayes.quant.layers.base import (
    UNLIMITED,
    Coded,
    Constants,
    Limits,
    Names,
    Requantised,
    Span,
    broadcast_vector,
    multiplier_constants,
)
from qbayes.quant.quantizer import Quantizer

_LARGEST_BIAS = float(1 << 30)


@dataclass(frozen=True)
class Geometry:
    """How a convolution moves over its input; ``None`` in its place means a linear layer."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> "Geometry | None":
        return None if options is None else cls(**options)


def apply_weights(geometry: Geometry | None, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer's linear map in float."""
    if geometry is None:
        return F.linear(x, weight, bias)
    convolve = F.conv1d if weight.ndim == 3 else F.conv2d
    g = geometry
    return convolve(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def accumulate(geometry: Geometry | None, x: Coded, weight: Tensor, limit: int, bound: int | None) -> Tensor:
    """``Σ (q_x − Z_x) w`` exactly, in float64; ``weight`` holds centred codes of at most ``limit``."""
    if geometry is None:
        total = exact_linear(x.offsets, weight, x_limit=x.limit, w_limit=limit, bound=bound)
    else:
        g = geometry
        total = exact_conv(
            x.offsets,
            weight,
            g.stride,
            g.padding,
            g.dilation,
            g.groups,
            x_limit=x.limit,
            w_limit=limit,
            bound=bound,
        )
    return total.double()


def in_steps(x: Coded, sums: Sequence[tuple[Tensor, Tensor]], shift: Tensor, axis: int) -> Tensor:
    """``Σ v m / 2^s`` of sums v with their multipliers m along ``axis``: steps of the output's scale.

    Sums over wide codes have more bits than float64 can multiply by 31 and still round right
    (``Requantised.coded`` says why): these are multiplied and rounded here, in integers.
    """
    ndim = sums[0][0].ndim
    if x.bits <= MOST_BITS:
        parts = [total * broadcast_vector(real(multiplier, shift), ndim, axis) for total, multiplier in sums]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]
    whole = [total.long() * broadcast_vector(multiplier.long(), ndim, axis) for total, multiplier in sums]
    product = whole[0] if len(whole) == 1 else whole[0] + whole[1]
    return round_shift(product, broadcast_vector(shift.long(), ndim, axis)).double()


class PointWeights(nn.Module):
    """Weights that are the same in every draw, with their quantiser; a layer called twice shares one."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, quantizer: Quantizer, geometry: Geometry | None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        self.quantizer = quantizer
        self.geometry = geometry

    @property
    def channel_axis(self) -> int:
        return -1 if self.geometry is None else 1

    @property
    def largest_scale(self) -> Tensor:
        """The largest S_w of a channel."""
        return self.quantizer.grid()[0].max()

    def simulate(self, x: Tensor, *, with_bias: bool = True) -> Tensor:
        bias = self.bias if with_bias else None
        return apply_weights(self.geometry, x, self.quantizer(self.weight, factor=True), bias)

    def calibrate(self, name: str) -> None:
        """Set the range from the weights as they are."""
        self.quantizer.calibrate(self.weight, f"the weights of '{name}'")

    def settle(self, x_scale: Tensor) -> None:
        """Make the grid final for inputs of this scale or larger ones."""
        if self.bias is not None:
            raise_scale(self.quantizer, self.bias, x_scale)

    def constants(self, x: Coded, out_scale: Tensor) -> Constants:
        """Codes, zero-point, bias and multipliers for an input on the grid of ``x``."""
        quantizer = self.quantizer
        scale, zero = quantizer.grid()
        codes = quantizer.codes(self.weight)
        found = {"weight": codes.to(torch.int8)}
        if not quantizer.symmetric:
            found["weight_zero"] = zero.reshape(-1).to(torch.int8)
        found["bias"] = bias_codes(self.bias, x.scale, scale, len(self.weight), codes.device)
        return found | multiplier_constants(x.scale.double() * scale.double() / out_scale.double())

    def lower(self) -> Weights:
        """How the op holds the weights."""
        per_channel, affine = self.quantizer.channels is not None, not self.quantizer.symmetric
        return Weights("point", self.quantizer.bits, affine=affine, per_channel=per_channel)

    def deviation(self) -> float | None:
        """The root mean square of σ; None without noise."""
        return None

    def steps(self, x: Coded, constants: Constants) -> Tensor:
        """The result in steps of the output's scale; whole ones where ``x`` is wide."""
        weight = constants["weight"].float()
        if "weight_zero" in constants:
            weight = weight - broadcast_vector(constants["weight_zero"].float(), weight.ndim, 0)
        bound = int(weight.abs().flatten(1).sum(1).max()) * x.limit
        total = accumulate(self.geometry, x, weight, 255, bound)
        axis = self.channel_axis
        total = total + broadcast_vector(constants["bias"].double(), total.ndim, axis)
        return in_steps(x, [(total, constants["multiplier"])], constants["shift"], axis)


@torch.no_grad()
def raise_scale(quantizer: Quantizer, bias: Tensor, x_scale: Tensor) -> None:
    """Raise ``S_w`` where ``|b| / (S_x S_w)`` would reach 2^30."""
    scale, _ = quantizer.grid()
    needed = (bias.detach().double().abs() / (x_scale.double() * _LARGEST_BIAS)).float()
    quantizer.scale.copy_(torch.maximum(scale, needed if scale.ndim else needed.max()))


def bias_codes(
    bias: Tensor | None, x_scale: Tensor, scale: Tensor, channels: int, device: torch.device
) -> Tensor:
    """``round(b / (S_x S_w))`` in int32."""
    if bias is None:
        return torch.zeros(channels, dtype=torch.int32, device=device)
    return (bias.detach().double() / (x_scale.double() * scale.double())).round().to(torch.int32)


class QuantWeighted(Requantised):
    """A convolution or linear layer with what was folded into it."""

    def __init__(self, weights: "PointWeights | Any", out: Quantizer, limits: Limits = UNLIMITED) -> None:
        super().__init__(out, limits)
        self.weights = weights

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        weights = self.weights
        if isinstance(weights, PointWeights) and weights.bias is not None and on_a_gpu(x):
            # there the bias is added by the kernel that rounds.
            return self.finish(weights.simulate(x, with_bias=False), weights.bias, weights.channel_axis)
        return self.finish(weights.simulate(x))

    def constants(self, x: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, _ = self.out.grid()
        return self.weights.constants(x, scale) | self.clamp_constants()

    def lower(self, names: Names) -> Op:
        held, geometry = self.weights, self.weights.geometry
        shape = tuple((held.weight if isinstance(held, PointWeights) else held.weight_mean).shape)
        if geometry is None:
            return Linear(*names, weights=held.lower(), features_in=shape[1], features_out=shape[0])
        return Conv(
            *names,
            weights=held.lower(),
            kernel=shape[2:],
            stride=geometry.stride,
            padding=geometry.padding,
            dilation=geometry.dilation,
            groups=geometry.groups,
            channels_in=shape[1] * geometry.groups,
            channels_out=shape[0],
        )

    def unit(self, *spans: Span) -> Tensor:
        return spans[0][1].double() * self.weights.largest_scale.double()

    @torch.no_grad()
    def settle(self, *spans: Span) -> Span:
        """The weights' grids first, for the input's smallest scale: that makes the largest bias."""
        self.weights.settle(spans[0][0])
        return super().settle(*spans)

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        constants = self.constants(x)
        return self.to_codes(self.weights.steps(x, constants), constants)
