"""Sums, products, concatenations, per-channel affine maps, lookups and stand-alone limits."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from qbayes.integer.arithmetic.fixed_point import fixed_point, real, shared_shift
from qbayes.integer.ops import Add, Affine, Concat, Lookup, Mul, Op, Rescale
from qbayes.quant.layers.base import (
    UNLIMITED,
    Coded,
    Constants,
    Limits,
    Names,
    QuantLayer,
    Requantised,
    Span,
    broadcast_vector,
    multiplier_constants,
    real_multiplier,
)
from qbayes.quant.quantizer import Quantizer

# an affine map's offset is an int32 at 2^−shift of an output step: 22 bits leave room for 512 steps.
_AFFINE_SHIFT = 22
_INT32 = float((1 << 31) - 1)


class QuantInput(QuantLayer):
    """The network's input on its grid."""

    def __init__(self, out: Quantizer) -> None:
        super().__init__()
        self.out = out

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.out(x)

    def settle(self, *spans: Span) -> Span:
        scale, _ = self.out.grid()
        return scale, scale

    def compute(self, x: Tensor) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, zero = self.out.grid()
        return Coded(self.out.codes(x), scale, zero, self.out.bits)

    def lower(self, names: Names) -> None:
        return None


class QuantAdd(Requantised):
    """``q_o = clamp(Z_o + round(Σ_i M_i (q_i − Z_i)))`` with one shift for all ``M_i = a_i S_i / S_o``."""

    def __init__(self, factors: Sequence[float], out: Quantizer, limits: Limits = UNLIMITED) -> None:
        super().__init__(out, limits)
        self.factors = tuple(factors)

    def simulate(self, *inputs: Tensor) -> Tensor:
        parts = [x if a == 1 else a * x for a, x in zip(self.factors, inputs, strict=True)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return self.finish(total)

    def unit(self, *spans: Span) -> Tensor:
        worth = [abs(a) * high.double() for a, (_, high) in zip(self.factors, spans, strict=True)]
        return torch.stack(worth).max()

    def constants(self, *inputs: Coded) -> Constants:
        scale, _ = self.out.grid()
        wanted = [a * x.scale.double() / scale.double() for a, x in zip(self.factors, inputs, strict=True)]
        codes, shift = shared_shift(torch.stack(wanted))
        return {"multipliers": codes, "shift": codes.new_tensor([shift])} | self.clamp_constants()

    def compute(self, *inputs: Coded) -> Coded:
        constants = self.constants(*inputs)
        factors = real(constants["multipliers"], constants["shift"])
        total = sum(factor * x.offsets.double() for factor, x in zip(factors.unbind(), inputs, strict=True))
        assert isinstance(total, Tensor)
        return self.to_codes(total, constants)

    def lower(self, names: Names) -> Op:
        return Add(*names)


class QuantMul(Requantised):
    """``q_o = clamp(Z_o + round(M (a − Z_a)(b − Z_b)))``, ``M = S_a S_b / S_o``."""

    def simulate(self, a: Tensor, b: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.finish(a * b)

    def unit(self, *spans: Span) -> Tensor:
        return spans[0][1].double() * spans[1][1].double()

    def constants(self, a: Coded, b: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, _ = self.out.grid()
        wanted = a.scale.double() * b.scale.double() / scale.double()
        return multiplier_constants(wanted) | self.clamp_constants()

    def compute(self, a: Coded, b: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        constants = self.constants(a, b)
        product = a.offsets.double() * b.offsets.double()
        return self.to_codes(product * real_multiplier(constants, product.ndim), constants)

    def lower(self, names: Names) -> Op:
        return Mul(*names)


class QuantConcat(Requantised):
    """Each input brought to the output's grid, then joined along ``axis``."""

    def __init__(self, axis: int, out: Quantizer, limits: Limits = UNLIMITED) -> None:
        super().__init__(out, limits)
        self.axis = axis

    def simulate(self, *inputs: Tensor) -> Tensor:
        return self.finish(torch.cat(inputs, dim=self.axis))

    def unit(self, *spans: Span) -> Tensor:
        return torch.stack([high.double() for _, high in spans]).max()

    def constants(self, *inputs: Coded) -> Constants:
        scale, _ = self.out.grid()
        codes, shifts = fixed_point(torch.stack([x.scale.double() / scale.double() for x in inputs]))
        return {"multipliers": codes, "shifts": shifts} | self.clamp_constants()

    def compute(self, *inputs: Coded) -> Coded:
        constants = self.constants(*inputs)
        factors = real(constants["multipliers"], constants["shifts"]).unbind()
        parts = [factor * x.offsets.double() for factor, x in zip(factors, inputs, strict=True)]
        return self.to_codes(torch.cat(parts, dim=self.axis), constants)

    def lower(self, names: Names) -> Op:
        return Concat(*names, axis=self.axis)


class QuantAffine(Requantised):
    """``g_c x + o_c``: a BatchNorm that could not be folded; both learn on."""

    def __init__(self, gain: Tensor, offset: Tensor, out: Quantizer, limits: Limits = UNLIMITED) -> None:
        super().__init__(out, limits)
        self.gain = nn.Parameter(gain.detach().float().clone())
        self.offset = nn.Parameter(offset.detach().float().clone())

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.finish(
            x * broadcast_vector(self.gain, x.ndim, 1) + broadcast_vector(self.offset, x.ndim, 1)
        )

    def unit(self, *spans: Span) -> Tensor:
        """The offset counts too: it is an int32 at the multiplier's shift."""
        return torch.maximum(
            spans[0][1].double() * self.gain.abs().max().double(), self.offset.abs().max().double()
        )

    def constants(self, x: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, _ = self.out.grid()
        gain = self.gain.detach().double() * x.scale.double() / scale.double()
        offset = self.offset.detach().double() / scale.double()
        largest = torch.stack([gain.abs().max(), offset.abs().max()]).max().clamp_min(1e-30)
        shift = (_INT32 / largest).log2().floor().clamp(0, _AFFINE_SHIFT)
        unit = torch.exp2(shift)
        found = {
            "multiplier": (gain * unit).round().clamp(-_INT32, _INT32).to(torch.int32),
            "offset": (offset * unit).round().clamp(-_INT32, _INT32).to(torch.int32),
            "shift": shift.reshape(1).to(torch.int32),
        }
        return found | self.clamp_constants()

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        constants = self.constants(x)
        gain = broadcast_vector(real(constants["multiplier"], constants["shift"]), x.codes.ndim, 1)
        offset = broadcast_vector(real(constants["offset"], constants["shift"]), x.codes.ndim, 1)
        return self.to_codes(x.offsets.double() * gain + offset, constants)

    def lower(self, names: Names) -> Op:
        return Affine(*names, channels=len(self.gain))


class QuantLookup(Requantised):
    """Any function of one activation: a table of its 2^n codes."""

    def __init__(self, function: Callable[[Tensor], Tensor], label: str, out: Quantizer) -> None:
        super().__init__(out)
        self.function, self.label = function, label

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.finish(self.function(x))

    def unit(self, *spans: Span) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=spans[0][1].device)

    def constants(self, x: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        codes = torch.arange(1 << x.bits, device=x.scale.device, dtype=torch.float32)
        # a code that no data had may lie where the function has no value (√ below 0): it gives 0.
        values = self.function(x.scale * (codes - x.zero)).nan_to_num(0.0, math.inf, -math.inf)
        return {"table": self.out.codes(values).to(torch.uint8)}

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, zero = self.out.grid()
        table = self.constants(x)["table"].float()
        return Coded(table[x.codes.long()], scale, zero, self.out.bits)

    def lower(self, names: Names) -> Op:
        return Lookup(*names)


class QuantRescale(Requantised):
    """``q_o = clamp(Z_o + round(M (q − Z)))``: a ReLU or clamp that nothing before it could take in."""

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.finish(x * self.gain())

    def gain(self) -> Tensor | float:
        return 1.0

    def unit(self, *spans: Span) -> Tensor:
        return spans[0][1].double()

    def constants(self, x: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        scale, _ = self.out.grid()
        wanted = self.gain() * x.scale.double() / scale.double()
        return multiplier_constants(wanted) | self.clamp_constants()

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        constants = self.constants(x)
        total = x.offsets.double() * real_multiplier(constants, x.codes.ndim)
        return self.to_codes(total, constants)

    def lower(self, names: Names) -> Op:
        return Rescale(*names)


class QuantNarrow(QuantRescale):
    """The same numbers on fewer bits, for the layers that multiply them
    (``quant.graph.bit_widths``)."""

    def simulate(self, x: Tensor) -> Tensor:
        return self.finish(x)


class QuantReach(QuantRescale):
    """A grid that reaches to ``value`` also where no data do: positions are about to be filled with it."""

    def __init__(self, value: float, out: Quantizer) -> None:
        super().__init__(out)
        self.value = value

    def simulate(self, x: Tensor) -> Tensor:
        with_value = torch.cat([x.flatten(1), x.new_full((len(x), 1), self.value)], dim=1)
        return self.out(with_value)[:, :-1].view_as(x)


class QuantMaskProduct(QuantRescale):
    """The paper's mask: "1" is quantised with the scale S of the product, to ``S · round(1 / S)``.

    That is 0 once S > 2: the activation is gone. Here to show what it does; ours is one exact bit.
    """

    def gain(self) -> Tensor:
        scale, _ = self.out.grid()
        top = float((1 << self.out.bits) - 1)
        return (scale * (1.0 / scale).round().clamp(0.0, top)).detach()
