r"""A quantiser: the module that learns, from data or by gradient, the grid of one tensor and rounds it.

A learned scale has its gradient multiplied by :math:`1/\sqrt{N Q_p}`, where Q_p = high − Z is the largest
number of steps above 0 and N how many numbers one scale serves: of weights the elements that share it, of
activations the features of one row (all axes but the first), so that the batch size does not matter.
"""

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    code_range,
    fake_quantize,
    grid_on_codes,
    per_channel,
    quantize,
    scale_gradient,
)
from qbayes.quant.kernels.epilogue import can_finish, run_epilogue
from qbayes.quant.kernels.fake_quantize import can_fuse, fuse_fake_quantize
from qbayes.quant.kernels.moving_average import Grid, can_follow, follow
from qbayes.quant.observers import QUANTIZERS, State

PREFIX = "observed_"


class Quantizer(nn.Module):
    """Rounds a tensor to codes of ``bits`` bits, on a grid that ``rule`` finds.

    ``signed`` codes are for weights, unsigned ones for activations; ``channels`` gives each slice along
    ``axis`` a scale of its own (weights only). ``weight`` says whether each call sees the whole of one tensor
    (by default: signed, or per channel) and not a batch of many. ``learn=False`` keeps the scale of a learned
    rule as data set it. ``headroom`` is how far the codes reach beyond each end of the rule's range,
    as a share of its width.

    In training, calls are observed unless ``observing`` is off; nothing is rounded where ``quantizing`` is
    off. While ``calibrating``, every call sets the range, a learned one too, and must be finite.
    """

    scale: Tensor
    zero_point: Tensor
    ready: Tensor

    def __init__(
        self,
        bits: int,
        *,
        rule: str,
        signed: bool,
        symmetric: bool,
        channels: int | None = None,
        axis: int = 0,
        learn: bool = True,
        weight: bool | None = None,
        headroom: float = 0.0,
    ) -> None:
        super().__init__()
        self.bits, self.signed, self.symmetric = bits, signed, symmetric
        self.low, self.high = code_range(bits, signed, symmetric)
        self.channels, self.axis, self.headroom = channels, axis, headroom
        self.weight = signed or channels is not None if weight is None else weight
        if channels is not None and not self.weight:
            raise BadInput(
                "activations must have one scale a tensor", f"{channels} channels", "leave channels out"
            )
        self.rule = QUANTIZERS[rule](bits, signed, symmetric)
        self.learned = self.rule.learned and learn
        # whether the range goes on moving with the data of training, once some have set it.
        self.follows = not self.learned
        self.observing = True
        self.quantizing = True
        self.calibrating = False
        # `ready` for Python: a compiled step cannot branch on a tensor.
        self.started = False
        # whether calibration saw data from which the range is still to be set.
        self.unset = False
        self._allocate()
        self.register_load_state_dict_post_hook(_note_start)

    def _allocate(self) -> None:
        shape = () if self.channels is None else (self.channels,)
        scale = torch.ones(shape)
        if self.learned:
            self.scale = nn.Parameter(scale)
        else:
            self.register_buffer("scale", scale)
        self.register_buffer("zero_point", torch.zeros(shape))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        state = {} if self.weight else self.rule.init_state()
        for name, value in state.items():
            self.register_buffer(PREFIX + name, value)
        self._state_names = tuple(state)

    def forward(self, x: Tensor, *, factor: bool = False) -> Tensor:
        """``x`` on the grid; a ``factor`` of a product may come in the precision that autocast gives it."""
        if self.calibrating:
            self.calibrate(x.detach())
        elif self.training and self.observing:
            self.observe(x.detach())
        if not self.quantizing:
            return x
        if can_fuse(x, self.scale, self.zero_point, self.low, self.high, self.axis):
            return self._fuse(x, factor)
        scale, zero = self.grid()
        if self.learned:
            scale = scale_gradient(scale, self._gradient_factor(x))
        return fake_quantize(x, self._along(scale, x), self._along(zero, x), self.low, self.high)

    def _fuse(self, x: Tensor, factor: bool) -> Tensor:
        """What ``forward`` computes, in one kernel or pass."""
        lower = factor and torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if lower else x.dtype
        grid = (self.scale, self.zero_point) if self.learned else self.grid()
        return fuse_fake_quantize(
            x, grid, (self.low, self.high), self._elements_of_a_scale(x) if self.learned else None, dtype
        )

    def finish(self, x: Tensor, bias: Tensor | None, *, relu: bool) -> Tensor | None:
        """``forward(relu(x + bias))`` in one kernel, where one serves ``x``; else None: nothing is done.

        ``bias`` lies along axis 1.
        """
        looks = self.calibrating or (self.training and self.observing and (self.follows or not self.started))
        ends = (self.low, self.high)
        if looks or not self.quantizing or not can_finish(x, bias, self.scale, self.zero_point, *ends):
            return None
        grid = (self.scale, self.zero_point) if self.learned else self.grid()
        served = self._elements_of_a_scale(x) if self.learned else None
        return run_epilogue(x, bias, grid, ends, served, relu=relu)

    def grid(self) -> tuple[Tensor, Tensor]:
        """Scale (positive, finite) and zero-point: scalars, or one a channel.

        A learned scale counts by its size: a step of the optimiser across 0 turns back, and does
        not die there.
        """
        if not self.learned:
            if not (self.training and self.observing):
                return self.scale, self.zero_point
            # a layer called twice moves its range in between: the gradient of the first call needs the old.
            return self.scale.clone(), self.zero_point.clone()
        size = self.scale.abs().clamp(max=LARGEST_SCALE)
        # straight through the lower bound, so that a scale held there can leave it.
        held = size.clamp(min=SMALLEST_SCALE).detach()
        return held + (size - size.detach()), self.zero_point

    @torch.no_grad()
    def codes(self, x: Tensor) -> Tensor:
        """The codes of ``x``: whole numbers in a float tensor."""
        scale, zero = self.grid()
        return quantize(x, self._along(scale, x), self._along(zero, x), self.low, self.high)

    @torch.no_grad()
    def observe(self, x: Tensor) -> None:
        """Let the rule see ``x``. A batch that is not finite is passed over; the scale of a learned rule that
        data have set is left to its gradient, and one that is not to learn as calibration set it.
        """
        if x.numel() and (self.follows or not self.started):
            self._update(x)

    @torch.no_grad()
    def calibrate(self, x: Tensor, where: str = "") -> None:
        """Observe ``x``, whatever the mode; refuse it where it is not finite.

        While ``calibrating``, more is to come: the range is set at the end.
        """
        if not x.numel() or not bool(torch.isfinite(x).all()):
            bad = int((~torch.isfinite(x)).sum())
            raise BadInput(
                f"calibration data{f' at {where}' if where else ''} must be finite numbers",
                f"{bad} of {x.numel()} are NaN or infinite" if x.numel() else "an empty tensor",
                "check the data and the float network's activations; remove such rows",
            )
        if self.weight:
            self._set_grid(*self._range_of_weights(x), torch.ones_like(self.ready))
        else:
            self._see(x)
            self.unset = True
            if not self.calibrating:
                self.end_calibration()
        # the search of a learned rule costs as much as a small network's step: what was calibrated is kept.
        self.follows = not self.rule.learned

    @torch.no_grad()
    def end_calibration(self) -> None:
        """Set the range from all that ``calibrate`` saw of activations: once, for the search is long."""
        if self.unset:
            self._set_grid(*self.rule.batch_range(self._state()), torch.ones_like(self.ready))
            self.unset = False

    @torch.no_grad()
    def reset(self) -> None:
        """Forget all data, as if new."""
        self.scale.fill_(1.0)
        self.zero_point.zero_()
        self.ready.zero_()
        self.started, self.follows = False, not self.learned
        for name, value in self.rule.init_state().items():
            if name in self._state_names:
                getattr(self, PREFIX + name).copy_(value)

    def require_ready(self, where: str) -> None:
        """Raise unless data have set the range."""
        if not bool(self.ready):
            raise BadInput(
                f"the range of {where} must have seen data",
                "ranges that never saw data",
                "calibrate the network on a few batches, or train it, before this",
            )

    def _update(self, x: Tensor) -> None:
        if self._follow(x):
            return
        if not self.weight:
            sane = self._see(x)
            self._set_grid(*self.rule.batch_range(self._state()), sane)
            return
        least, most = x.aminmax()
        sane = torch.isfinite(least) & torch.isfinite(most)
        self._set_grid(*self._range_of_weights(x), sane)

    def _follow(self, x: Tensor) -> bool:
        """Whether kernels of ours served ``x``: those of plain extremes on an affine grid."""
        whole = 1.0 if self.rule.extremes else None
        pace = whole if self.weight else self.rule.pace
        grid = Grid(self.scale, self.zero_point, self.ready, self.low, self.high)
        if pace is None or self.symmetric or self.headroom or not can_follow(x, grid):
            return False
        follow(x, grid, {} if self.weight else self._state(), pace)
        self.started = True
        return True

    def _state(self) -> State:
        return {name: getattr(self, PREFIX + name) for name in self._state_names}

    def _see(self, x: Tensor) -> Tensor:
        """Let the rule see activations; whether they are finite, or else they are passed over."""
        x = x.detach().float()
        least, most = x.aminmax()
        # a NaN or an infinity anywhere shows in the extremes.
        sane = torch.isfinite(least) & torch.isfinite(most)
        before = self._state()
        after = self.rule.update(x, least, most, before)
        for name, value in before.items():
            value.copy_(torch.where(sane, after[name], value))
        return sane

    def _range_of_weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().float()
        rows = x.reshape(1, -1) if self.channels is None else x.movedim(self.axis, 0).flatten(1)
        low, high = self.rule.row_range(rows)
        return (low[0], high[0]) if self.channels is None else (low, high)

    def _set_grid(self, low: Tensor, high: Tensor, sane: Tensor) -> None:
        if self.headroom:
            low, high = low.clamp(max=0), high.clamp(min=0)
            room = self.headroom * (high - low)
            low, high = low - room, high + room
        scale, zero = grid_on_codes(
            low, high, self.low, self.high, signed=self.signed, symmetric=self.symmetric
        )
        self.scale.copy_(torch.where(sane, scale, self.scale))
        self.zero_point.copy_(torch.where(sane, zero, self.zero_point))
        self.ready.copy_(self.ready | sane)
        self.started = True

    def _elements_of_a_scale(self, x: Tensor) -> int:
        """How many numbers of ``x`` one scale serves: the N of its gradient's factor."""
        served = x.numel() // (self.channels or 1) if self.weight else x.numel() // max(x.shape[0], 1)
        return max(served, 1)

    def _gradient_factor(self, x: Tensor) -> Tensor:
        # a range without positive numbers has Z = high.
        above = (self.high - self.zero_point).clamp(min=1)
        return torch.rsqrt(above * self._elements_of_a_scale(x))

    def _along(self, t: Tensor, x: Tensor) -> Tensor:
        return per_channel(t, x.ndim, self.axis)

    def extra_repr(self) -> str:
        kind = "symmetric" if self.symmetric else "affine"
        grain = "tensor" if self.channels is None else f"{self.channels} channels"
        return f"{self.bits} bits, {self.rule.name}, {kind}, codes {self.low} … {self.high}, per {grain}"


def _note_start(module: nn.Module, keys: object) -> None:
    """What was loaded may have seen data."""
    assert isinstance(module, Quantizer)
    module.started = bool(module.ready)
