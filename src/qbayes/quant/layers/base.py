"""What fake-quantised layers share: two ways to compute, a quantiser behind, limits on the codes."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from qbayes.integer.arithmetic.fixed_point import fixed_point, real
from qbayes.integer.ops.base import Op
from qbayes.quant.quantizer import Quantizer


@dataclass(frozen=True, eq=False)
class Coded:
    """``f = S (q − Z)``: whole numbers ``0 … 2^n − 1`` in float lanes with their scale and zero-point."""

    codes: Tensor
    scale: Tensor
    zero: Tensor
    bits: int

    @property
    def offsets(self) -> Tensor:
        """``q − Z``, so that 0 is 0."""
        return self.codes - self.zero

    @property
    def real(self) -> Tensor:
        """``S (q − Z)`` in float32."""
        return self.scale * self.offsets

    @property
    def limit(self) -> int:
        """The largest ``|q − Z|`` whatever Z is."""
        return (1 << self.bits) - 1

    def move_codes(self, codes: Tensor) -> "Coded":
        """The same grid with codes that were moved or chosen, not computed."""
        return replace(self, codes=codes)

    def times(self, factor: Tensor) -> "Coded":
        """The same codes, each worth ``factor`` times as much."""
        return replace(self, scale=self.scale * factor)


Constants = dict[str, Tensor]
Limits = tuple[float, float]
# what an op is called: its name, those of its inputs, and that of its output.
Names = tuple[str, tuple[str, ...], str]
UNLIMITED: Limits = (-math.inf, math.inf)
_RELU: Limits = (0.0, math.inf)
# the smallest and the largest scale that an activation may have: a mask that draws makes it larger.
Span = tuple[Tensor, Tensor]
# a multiplier M = S / S_o has 30 bits before the point at most.
_LARGEST_MULTIPLIER = float(1 << 29)


class QuantLayer(nn.Module, ABC):
    """One node of the quantised network.

    Training: ``simulate`` on float tensors, rounding passed straight through. Evaluation: ``compute`` on
    codes, rounding like the integer op that the layer becomes (``lower``). In between ``settle`` makes its
    grids final.
    """

    def forward(self, *inputs: Tensor | Coded) -> Tensor | Coded:
        return self.simulate(*inputs) if self.training else self.compute(*inputs)  # pyright: ignore[reportArgumentType]

    def settle(self, *spans: Span) -> Span:
        """The span of the output's scale, from those of the inputs; here: the input's grid goes through."""
        return spans[0]

    @abstractmethod
    def simulate(self, *inputs: Tensor) -> Tensor: ...

    @abstractmethod
    def compute(self, *inputs: Coded) -> Coded: ...

    @abstractmethod
    def lower(self, names: Names) -> Op | None:
        """The integer op of this layer; None where its output is its input."""

    def constants(self, *inputs: Coded) -> Constants:
        """The integers of that op, for inputs on these grids."""
        return {}

    def pass_channels(self, indices: Tensor) -> Tensor | None:
        """Which channel each number of the output is, from those of the input; None: of several."""
        return None


class Requantised(QuantLayer):
    """A layer that computes new numbers and puts them on a grid of their own.

    ``limits`` are those of the activation folded into it (ReLU is ``(0, ∞)``), in real units.
    ``constants`` are the integers that the layer's op will have; ``compute`` uses the same ones, in float
    lanes.
    """

    def __init__(self, out: Quantizer, limits: Limits = UNLIMITED) -> None:
        super().__init__()
        self.out = out
        self.limits = limits

    def finish(self, y: Tensor, bias: Tensor | None = None, axis: int = 1) -> Tensor:
        """The bias along ``axis``, the activation and the fake-quantiser behind a float result."""
        low, high = self.limits
        served = self.limits == _RELU or (self.limits == UNLIMITED and bias is not None)
        if served and (bias is None or axis % y.ndim == 1):
            at_once = self.out.finish(y, bias, relu=self.limits == _RELU)
            if at_once is not None:
                return at_once
        if bias is not None:
            y = y + broadcast_vector(bias.to(y.dtype), y.ndim, axis)
        if low > -math.inf or high < math.inf:
            y = torch.relu(y) if self.limits == _RELU else y.clamp(low, high)
        return self.out(y)

    @abstractmethod
    def unit(self, *spans: Span) -> Tensor:
        """``M S_o``: the most that one step of the inputs is worth, in real units (float64)."""

    @torch.no_grad()
    def settle(self, *spans: Span) -> Span:
        """Raise the output's scale where it is next to nothing beside a step of the inputs."""
        scale, _ = self.out.grid()
        self.out.scale.copy_(torch.maximum(scale, (self.unit(*spans) / _LARGEST_MULTIPLIER).float()))
        scale, _ = self.out.grid()
        return scale, scale

    def clamp_constants(self) -> Constants:
        """``low`` and ``high``: the limits as codes, inside the output's range."""
        scale, zero = self.out.grid()
        codes = torch.stack([self._limit_code(limit, scale, zero) for limit in self.limits])
        return {"low": codes[:1], "high": codes[1:]}

    def _limit_code(self, limit: float, scale: Tensor, zero: Tensor) -> Tensor:
        top = (1 << self.out.bits) - 1
        if math.isinf(limit):
            return torch.full_like(zero, 0 if limit < 0 else top).to(torch.int64)
        return (zero.double() + (limit / scale.double()).round()).clamp(0, top).to(torch.int64)

    def to_codes(self, steps: Tensor, constants: Constants) -> Coded:
        """``q = clamp(Z + round(steps), low, high)`` from a result in steps of the output's scale.

        The integer op rounds ``v m / 2^s`` exactly. So does float64 where the sums that the n bits of the
        output span, ``|v| ≤ 2^a``, have a ≤ 22: there ``s ≤ 31 + a − n``, no product that is not a tie lies
        nearer than ``2^−s`` to one, and float64 is off by ``2^(n − 54)`` at most, whatever n is.
        """
        scale, zero = self.out.grid()
        codes = steps.round() + zero.double()
        codes = codes.clamp(constants["low"].double(), constants["high"].double())
        return Coded(codes.float(), scale, zero, self.out.bits)


def multiplier_constants(multipliers: Tensor) -> Constants:
    """``M ≈ multiplier / 2^shift`` as one-dimensional constants."""
    code, shift = fixed_point(multipliers.double().reshape(-1))
    return {"multiplier": code, "shift": shift}


def real_multiplier(constants: Constants, ndim: int, axis: int = 1) -> Tensor:
    """``multiplier / 2^shift`` in float64, shaped to act along ``axis`` of a tensor with ``ndim`` axes."""
    return broadcast_vector(real(constants["multiplier"], constants["shift"]), ndim, axis)


def broadcast_vector(values: Tensor, ndim: int, axis: int) -> Tensor:
    """A vector (of one element or one a channel) as a tensor that broadcasts along ``axis``."""
    shape = [1] * ndim
    shape[axis] = values.numel()
    return values.view(shape)
