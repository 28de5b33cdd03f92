"""Conv and Linear on oneDNN's int8 kernels, with point and Gaussian weights.

The weights' zero-point is taken from the codes before they are packed. Codes that then exceed int8, or that
could saturate on this processor, come in two parts side by side, ``Σ x w = Σ x w₁ + Σ x w₂``: one product on
the input's channels twice over. Two accumulators (``grids = 2``) are two products. How sums become codes is
in ``float_rounding``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qbayes.integer.arithmetic.epsilon_table import epsilon_table
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.backends import layout
from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.backends.exact_kernel import exact_kernel, rows_of_draws
from qbayes.integer.backends.onednn.float_rounding import rounding
from qbayes.integer.backends.onednn.primitives import LARGEST_WEIGHT, Packed, Shape, Target, pack, product
from qbayes.integer.backends.onednn.trial import weight_limit, why_wrong
from qbayes.integer.c_library import kernels, threads_for
from qbayes.integer.ops.base import ACCUMULATOR_LIMIT, Constants, Grids, Noise
from qbayes.integer.ops.weighted import Conv, Linear, Weighted

_MOST_PARTS = 2


@dataclass(frozen=True)
class Form:
    """How oneDNN can run an op: in how many parts, with weights up to ``limit`` in each; or ``why`` not."""

    shape: Shape
    parts: int
    limit: int
    largest: int
    why: str | None = None


def int8_form(op: Weighted, grids: Grids, constants: Constants, row: tuple[int, ...]) -> Form:
    """The fewest parts in which no sum saturates."""
    whole, largest, x_top = _shape(op, row), _largest_weight(op, constants), (1 << grids.bits[0]) - 1
    form = Form(whole, 1, LARGEST_WEIGHT, largest)
    raw = x_top * largest * whole.fan_in
    if raw > ACCUMULATOR_LIMIT:
        return replace(form, why=f"sums of codes that are not centred could reach {raw}, above int32")
    x_zero = _zero_in_product(whole, grids)
    for parts in range(1, _MOST_PARTS + 1 if whole.groups == 1 else 2):
        shape = whole.in_parts(parts)
        reason = why_wrong(shape, x_zero)
        if reason is not None:
            return Form(shape, parts, 0, largest, reason)
        form = Form(shape, parts, weight_limit(shape, x_top), largest)
        if largest <= parts * form.limit:
            return form
    why = f"weights up to ±{largest} are too large for int8 kernels, right up to ±{form.limit} here"
    return replace(form, why=why)


def int8_kernel(op: Weighted, grids: Grids, constants: Constants, row: tuple[int, ...]) -> Kernel:
    """The op in int8, or in exact integers with the reason why.

    One product in float32, which is right to a code in 255, is not right to one in 65535.
    """
    why = why_not_bytes(grids)
    if why is not None:
        return exact_kernel(op, grids, constants, why)
    if grids.out_bits > MOST_BITS:
        why = f"int8 kernels round to bytes, not to {grids.out_bits} bits"
        return exact_kernel(op, grids, constants, why)
    form = int8_form(op, grids, constants, row)
    if form.why is not None:
        return exact_kernel(op, grids, constants, form.why)
    return Int8Kernel(op, grids, constants, form)


def why_not_bytes(grids: Grids) -> str | None:
    """Why no kernel for bytes can read an op's input; None where one can."""
    bits = max(grids.bits)
    return None if bits <= MOST_BITS else f"int8 kernels read bytes, not codes of {bits} bits"


class Int8Kernel(Kernel):
    """A weighted op whose sums oneDNN makes."""

    takes_shared = True

    def __init__(self, op: Weighted, grids: Grids, constants: Constants, form: Form) -> None:
        shape, parts = form.shape, form.parts
        self._x_zero = _zero_in_product(shape, grids)
        self._in_bias = grids.zeros[0] - self._x_zero
        self._rounding = rounding(op, grids, constants, self._in_bias, form.largest)
        how = "int8" if parts == 1 else "int8, weights in 2 parts"
        super().__init__(
            op, grids, as_sampler_types(constants), how, _why_in_parts(form) or self._rounding.why
        )
        self.is_exact = self._rounding.is_exact
        self.weighted = op
        self._shape, self._parts, self._limit = shape, parts, form.limit
        self._zeros = torch.zeros(shape.channels_out, dtype=torch.int32)
        self._weight_zero = op.weights.zero(constants)
        self._points = None if op.is_stochastic else self._pack(constants["weight"], constants["bias"])
        # with two accumulators the mean's weights are the same in every draw.
        two = op.weights.accumulators == 2
        self._mean = self._pack(constants["mean"], self._zeros) if two else None

    @property
    def draws_weights(self) -> bool:
        return self._points is None

    def draw(self, seed: int, draw: int) -> Drawn:
        drawn = draw_codes(self.weighted, self.constants, seed, draw)
        if self._mean is None:
            return self._pack(drawn["weight"], drawn["bias"])
        first, second = self._rounding.targets
        bias = self._mean.bias.double() + drawn["bias"].double() * first.scales.double()
        noise = self._pack(drawn["noise"], self._zeros, second)
        return Packed(self._mean.weight, bias.float()), noise

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        x = self._arrange(inputs[0])
        if self._points is not None:
            return self._reshape(self._codes(x, self._points), inputs[0])
        step = x.shape[0] // inputs[0].shape[0]  # a matrix has several lines for a row of several axes
        rows = rows_of_draws(x, Noise(noise.seed, noise.draws, noise.first_row, noise.rows * step))
        found = [self._codes(some, one) for some, one in zip(rows, drawn, strict=True)]
        return self._reshape(found[0] if len(found) == 1 else torch.cat(found), inputs[0])

    def _codes(self, x: Tensor, drawn: Drawn) -> Tensor:
        targets, join = self._rounding.targets, self._rounding.join
        packed = drawn if self._mean is not None else (drawn,)
        sums = [
            product(self._shape, x, self._x_zero, one, target, self._zeros)
            for one, target in zip(packed, targets, strict=True)
        ]
        return sums[0] if join is None else join(sums)

    def _arrange(self, x: Tensor) -> Tensor:
        """Images with channels last, or a matrix; the channels once for each part of the weights."""
        if not self._shape.kernel:
            lines = x.reshape(-1, x.shape[-1])
            return lines if self._parts == 1 else torch.cat([lines] * self._parts, 1)
        images = layout.images(x)
        return images if self._parts == 1 else torch.cat([images] * self._parts, 1)

    def _reshape(self, out: Tensor, x: Tensor) -> Tensor:
        """Lines back to rows of several axes, and images of height 1 back to sequences."""
        if not self._shape.kernel:
            return out if x.dim() == 2 else out.view(-1, *x.shape[1:-1], out.shape[-1])
        return out.squeeze(2) if x.dim() == 3 else out

    def _pack(self, codes: Tensor, bias: Tensor, target: Target | None = None) -> Packed:
        parts = self._split(codes)
        if self._in_bias:
            bias = bias.long() - self._in_bias * parts.flatten(1).sum(1, dtype=torch.int32).long()
        return pack(self._shape, parts, bias, target or self._rounding.targets[0], self._x_zero)

    def _split(self, codes: Tensor) -> Tensor:
        """Centred int8 weights in the shape that oneDNN takes, in as many parts as needed."""
        return centre_parts(codes, self._weight_zero, self._parts, self._limit)


def _zero_in_product(shape: Shape, grids: Grids) -> int:
    """The zero-point that oneDNN takes from the input's codes.

    Without padding it is a constant of the sum, and −Z Σ w goes into the bias.
    """
    return grids.zeros[0] if any(shape.padding) else 0


def _why_in_parts(form: Form) -> str:
    if form.parts == 1:
        return ""
    if form.limit < LARGEST_WEIGHT:
        return f"8 × 8-bit products saturate on this processor above ±{form.limit}"
    return "with their zero-point the weights need 9 bits"


def centre_parts(codes: Tensor, zero: Tensor | int, parts: int, limit: int) -> Tensor:
    """``codes − zero`` in int8, sequences as images; in two parts side by side, each up to ``limit``."""
    whole = codes
    if isinstance(zero, Tensor):
        whole = codes.to(torch.int16) - zero.to(torch.int16).view(-1, *(1,) * (codes.dim() - 1))
    if codes.dim() == 3:
        whole = whole.unsqueeze(2)
    if parts == 1:
        return whole.to(torch.int8)
    first = whole.clamp(-limit, limit)
    return torch.cat([first, whole - first], 1).to(torch.int8)


def draw_codes(op: Weighted, constants: Constants, seed: int, draw: int) -> dict[str, Tensor]:
    """``Weights.draw``, by the threads of the compiled kernels where those can do it."""
    c, weights = kernels(), op.weights
    if c is None or weights.grids == 0 or weights.bias_site is not None:
        return weights.draw(constants, seed, draw, threads_for(constants["sigma"].numel()))
    mean, sigma, table = constants["mean"], constants["sigma"], epsilon_table(weights.noise_bits)
    multiplier, shift = constants["noise_multiplier"], constants["noise_shift"]
    out = torch.empty(sigma.shape, dtype=torch.int8)
    c.sample_all(
        *(out.data_ptr(), draw, out.numel(), out[0].numel(), seed, weights.site),
        *(mean.data_ptr() if weights.grids == 1 else None, sigma.data_ptr(), table.data_ptr()),
        *(multiplier.data_ptr(), shift.data_ptr(), int(multiplier.numel() > 1), *weights.limits),
        threads_for(out.numel()),
    )
    drawn = {"weight": out} if weights.grids == 1 else {"mean": mean, "noise": out}
    return {**drawn, "bias": constants["bias"]}


def as_sampler_types(constants: Constants) -> Constants:
    """The constants as the compiled sampler reads them: dense, in the narrowest types."""
    kinds = {
        "mean": torch.int8,
        "sigma": torch.uint8,
        "noise_multiplier": torch.int32,
        "noise_shift": torch.uint8,
    }
    return {name: held.to(kinds.get(name, held.dtype)).contiguous() for name, held in constants.items()}


def _shape(op: Weighted, row: tuple[int, ...]) -> Shape:
    """A sequence is an image of height 1."""
    if isinstance(op, Linear):
        return Shape(op.features_in, op.features_out)
    assert isinstance(op, Conv)
    flat = len(op.kernel) == 1

    def both(numbers: tuple[int, ...], first: int) -> tuple[int, ...]:
        return (first, *numbers) if flat else numbers

    return Shape(
        *(op.channels_in, op.channels_out, both(op.kernel, 1), both(row[1:], 1), both(op.stride, 1)),
        *(both(op.padding, 0), both(op.dilation, 1), op.groups),
    )


def _largest_weight(op: Weighted, constants: Constants) -> int:
    """The largest magnitude of a centred weight code: of the codes themselves, or of any draw."""
    zero = op.weights.zero(constants)
    if not op.weights.is_gaussian:
        centred = constants["weight"].long()
        if isinstance(zero, Tensor):
            centred = centred - zero.view(-1, *(1,) * (centred.dim() - 1))
        return max(1, int(centred.abs().max()))
    low, high = op.weights.limits
    shift = int(zero.abs().max()) if isinstance(zero, Tensor) else 0
    return max(high, -low) + shift
