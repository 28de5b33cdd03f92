"""Average pooling: the integer sum of each window, rescaled."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from qbayes.integer.arithmetic.fixed_point import real, shared_shift
from qbayes.integer.arithmetic.pooling_windows import all_windows, divisors, window_sums
from qbayes.integer.ops import AvgPool, Op
from qbayes.quant.layers.base import UNLIMITED, Constants, Limits, Names, Requantised, Span
from qbayes.quant.layers.coded_tensor import Coded
from qbayes.quant.quantizer import Quantizer

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
            return self.finished(pool(x, o["adaptive"]))
        shared = (o["kernel"], o["stride"], o["padding"], o["ceil_mode"], o["count_include_pad"])
        if plane:
            return self.finished(F.avg_pool2d(x, *shared, divisor_override=o["divisor"]))
        return self.finished(F.avg_pool1d(x, *shared))

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
        sums = window_sums(x.centred.double(), windows)
        factor = real(constants["multiplier"], constants["shift"])
        return self.coded(sums * (factor.view(sums.shape[2:]) if factor.numel() > 1 else factor), constants)

    def lower(self, names: Names) -> Op:
        return AvgPool(*names, **self.options)
