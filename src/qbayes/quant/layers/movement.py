"""Layers that move or choose codes, whose grid goes through, and average pooling, which has its own."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes import noise
from qbayes.integer import ops
from qbayes.integer.arithmetic.fixed_point import real, shared_shift
from qbayes.integer.arithmetic.pooling_windows import all_windows, divisors, window_sums
from qbayes.integer.ops import AvgPool, MaxPool, MovingOp, Op, Pad
from qbayes.posterior.sites import Mask
from qbayes.quant.layers.base import UNLIMITED, Coded, Constants, Limits, Names, QuantLayer, Requantised, Span
from qbayes.quant.quantizer import Quantizer


class Movement(QuantLayer):
    """``move`` acts on floats in training and on codes in evaluation."""

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.move(x)

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.move_codes(self.move(x.codes))

    def pass_channels(self, indices: Tensor) -> Tensor | None:
        return self.move(indices)

    @abstractmethod
    def move(self, x: Tensor) -> Tensor: ...


class QuantMove(Movement):
    """The layer of any op that only puts codes at other places: the op itself does it, in floats and codes.

    Args:
        op: the class of the op.
        options: its own fields, by name.
    """

    def __init__(self, op: type[MovingOp], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.op, self.options = op, dict(options)
        self._made = op("move", ("x",), "y", **self.options)

    def move(self, x: Tensor) -> Tensor:
        return self._made.move(x)

    def lower(self, names: Names) -> Op:
        return self.op(*names, **self.options)


class QuantMaxPool(Movement):
    """The largest code of each window; padding never wins."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = dict(options)

    def move(self, x: Tensor) -> Tensor:
        o = self.options
        pool = F.max_pool1d if x.ndim == 3 else F.max_pool2d
        return pool(x, o["kernel"], o["stride"], o["padding"], o["dilation"], o["ceil_mode"])

    def compute(self, x: Coded) -> Coded:
        # torch pads with −∞, which a dilated window may find alone on a short axis; no code is below 0.
        return x.move_codes(self.move(x.codes).clamp_min(0.0))

    def lower(self, names: Names) -> Op:
        return MaxPool(*names, **self.options)


class QuantPad(QuantLayer):
    """Positions added around: a constant, or copies of those at the edge."""

    def __init__(self, amounts: Sequence[tuple[int, int]], mode: str, value: float) -> None:
        super().__init__()
        self.amounts, self.value = tuple(amounts), value
        self.mode: Any = mode
        # F.pad has the last axis first.
        self.around = [n for pair in reversed(self.amounts) for n in pair]

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._pad(x, self.value)

    def constants(self, x: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.mode != "constant":
            return {}
        code = (x.zero.double() + (self.value / x.scale.double()).round()).clamp(0, (1 << x.bits) - 1)
        return {"fill": code.reshape(1).to(torch.int64)}

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        fill = float(self.constants(x)["fill"]) if self.mode == "constant" else 0.0
        return x.move_codes(self._pad(x.codes, fill))

    def lower(self, names: Names) -> Op:
        return Pad(*names, amounts=self.amounts, mode=self.mode)

    def _pad(self, x: Tensor, fill: float) -> Tensor:
        if self.mode == "constant":
            return F.pad(x, self.around, value=fill)
        spatial = 2 * (x.ndim - 2)
        return F.pad(x, self.around[:spatial], mode=self.mode)


class QuantMask(QuantLayer):
    """``q_o = k ? q : Z`` and ``S_o = S / (1 − p)``: one bit, no rounding, no error."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = Mask(mask.rate, mask.site, mask.channelwise)

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.mask(x)

    def settle(self, *spans: Span) -> Span:
        return spans[0][0], spans[0][1] / (1.0 - self.mask.rate)

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        stream = noise.current()
        if stream is None:
            return x
        keep = self.mask.keep(x.codes, stream)
        return Coded(torch.where(keep, x.codes, x.zero), x.scale / (1.0 - self.mask.rate), x.zero, x.bits)

    def lower(self, names: Names) -> Op:
        mask = self.mask
        return ops.Mask(*names, site=mask.site, rate=mask.rate, channelwise=mask.channelwise)

    def pass_channels(self, indices: Tensor) -> Tensor | None:
        return indices


class QuantDropout(Movement):
    """A network's own dropout that is no site: it acts in training only, as it always did."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def simulate(self, x: Tensor) -> Tensor:
        return self.module(x)

    def move(self, x: Tensor) -> Tensor:
        return x

    def lower(self, names: Names) -> None:
        return None


# a node may have more options: a clamp that was folded into it, and its name.
_OPTIONS = ("kernel", "stride", "padding", "ceil_mode", "count_include_pad", "divisor", "adaptive")


class QuantAverage(Requantised):
    """``q_o = clamp(Z_o + round(M_p Σ (q − Z)))`` with ``M_p = S / (S_o · divisor_p)`` at position p."""

    def __init__(self, options: Mapping[str, Any], out: Quantizer, limits: Limits = UNLIMITED) -> None:
        super().__init__(out, limits)
        self.options = {name: options[name] for name in _OPTIONS}

    def simulate(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        o, plane = self.options, x.ndim == 4
        if o["adaptive"] is not None:
            pool = F.adaptive_avg_pool2d if plane else F.adaptive_avg_pool1d
            return self.finish(pool(x, o["adaptive"]))
        shared = (o["kernel"], o["stride"], o["padding"], o["ceil_mode"], o["count_include_pad"])
        if plane:
            return self.finish(F.avg_pool2d(x, *shared, divisor_override=o["divisor"]))
        return self.finish(F.avg_pool1d(x, *shared))

    def unit(self, *spans: Span) -> Tensor:
        return spans[0][1].double()

    def constants(self, x: Coded) -> Constants:  # pyright: ignore[reportIncompatibleMethodOverride]
        o = self.options
        pooling = (o["kernel"], o["stride"], o["padding"], o["ceil_mode"])
        counts = divisors(x.codes.shape[2:], *pooling, o["count_include_pad"], o["divisor"], o["adaptive"])
        counts = counts.double().to(x.scale.device).flatten()
        if bool((counts == counts[0]).all()):
            counts = counts[:1]
        scale, _ = self.out.grid()
        codes, shift = shared_shift(x.scale.double() / (scale.double() * counts))
        return {"multiplier": codes, "shift": codes.new_tensor([shift])} | self.clamp_constants()

    def compute(self, x: Coded) -> Coded:  # pyright: ignore[reportIncompatibleMethodOverride]
        o, constants = self.options, self.constants(x)
        pooling = (o["kernel"], o["stride"], o["padding"], o["ceil_mode"])
        windows = all_windows(x.codes.shape[2:], *pooling, o["adaptive"])
        sums = window_sums(x.offsets.double(), windows)
        factor = real(constants["multiplier"], constants["shift"])
        return self.to_codes(
            sums * (factor.view(sums.shape[2:]) if factor.numel() > 1 else factor), constants
        )

    def lower(self, names: Names) -> Op:
        return AvgPool(*names, **self.options)
