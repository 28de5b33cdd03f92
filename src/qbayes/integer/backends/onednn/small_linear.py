"""Linear with few weights: exact integers, bit-equal to the reference, however many rows there are.

oneDNN wants weights in a layout of its own, and making it takes longer than a small matrix product itself.
So few lines, and weights drawn for one call, go through C as plain codes. Many lines of drawn weights go
through an integer product that takes the codes as they are; without one, and with fixed weights, through
packed weights, whose sums float32 holds exactly as long as they stay below 2^24. All are rounded as the
reference rounds.
"""

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import real, round_shift
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.backends.exact_kernel import rows_of_draws
from qbayes.integer.backends.onednn.conv_linear import as_sampler_types, centre_parts, draw_codes, int8_form
from qbayes.integer.backends.onednn.primitives import Packed, Target, pack, product, whole_product
from qbayes.integer.backends.onednn.trial import whole_product_is_exact
from qbayes.integer.c_library import Kernels, Matrix, addresses, threads_for
from qbayes.integer.ops.base import Constants, Grids, Noise, clamp_codes, type_of_codes
from qbayes.integer.ops.weighted import Linear, Weighted

# Weights up to which plain codes pay: fixed ones are packed once, and drawn ones for every call.
_MOST_FIXED, _MOST_DRAWN = 1 << 16, 1 << 22
_EXACT = 1 << 24  # float32 holds every integer up to here
# Multiplications up to which plain codes are faster: than a call of oneDNN, and than packing for it as well.
_FEW, _FEW_ONCE = 1 << 19, 1 << 22
_MULTIPLICATIONS_A_CODE = 16  # what counts as one elementwise step
# Shifts at which float64 rounds as the integers do (kernels_linear.c says why).
_FLOAT64_SHIFTS = (17, 43)


class LineWeights:
    """The plain codes of one draw (``noise`` has a scale of its own), packed for oneDNN when that pays."""

    def __init__(self, weight: Tensor, noise: Tensor | None, bias: Tensor) -> None:
        self.weight, self.noise, self.bias = weight, noise, bias
        self.packed: list[Packed] = []
        self.uses = 0


def is_small(op: Weighted) -> bool:
    return isinstance(op, Linear) and math.prod(op.weight_shape) <= (
        _MOST_DRAWN if op.is_stochastic else _MOST_FIXED
    )


class _Call:
    """The C structure for some draws, and the arrays that it points to: they must outlive the call."""

    def __init__(self, make: Callable[..., Matrix], weights: Sequence[LineWeights]) -> None:
        spread = [one.noise for one in weights if one.noise is not None]
        lists = {"weights": [w.weight for w in weights], "biases": [w.bias for w in weights], "noise": spread}
        self._arrays = {name: addresses(tensors) for name, tensors in lists.items() if tensors}
        self._matrix = make(**{name: ctypes.addressof(array) for name, array in self._arrays.items()})
        self.place = ctypes.addressof(self._matrix)


class LinesKernel(Kernel):
    """A small Linear, exactly as ``Weighted`` defines it."""

    takes_shared = True
    is_exact = True

    def __init__(self, op: Weighted, grids: Grids, constants: Constants, c: Kernels) -> None:
        super().__init__(op, grids, as_sampler_types(constants), "int8")
        assert isinstance(op, Linear)
        self.weighted, self._c = op, c
        self._form = int8_form(op, grids, constants, (op.features_in,))
        sums = op.features_in * ((1 << grids.bits[0]) - 1) * self._form.largest
        self._packs = self._form.why is None and sums < _EXACT
        # drawn weights are centred; with a zero-point they might need a ninth bit.
        drawn = op.is_stochastic and not isinstance(op.weights.zero(constants), Tensor)
        self._whole = drawn and whole_product_is_exact(op.features_in, op.features_out)
        self._ones = torch.ones(op.features_out)
        self._zeros = torch.zeros(op.features_out, dtype=torch.int32)
        self._held = _tensors(op, constants, grids.out_bits)  # what the structure points to
        self._numbers = {
            "inputs": op.features_in,
            "outputs": op.features_out,
            "zero_step": int(self._held["weight_zeros"].numel() > 1),
            "scale_step": int(self._held["multiplier"].numel() > 1),
            "x_zero": grids.zeros[0],
            "zero": grids.zero,
            "low": int(constants["low"]),
            "high": int(constants["high"]),
            "wide": int(grids.out_bits > MOST_BITS),
        }
        self._points = None if op.is_stochastic else [self._weights(constants)]
        self._point_matrix = None if self._points is None else _Call(self._matrix, self._points)

    @property
    def draws_weights(self) -> bool:
        return self._points is None

    def draw(self, seed: int, draw: int) -> Drawn:
        return self._weights(draw_codes(self.weighted, self.constants, seed, draw))

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        x, weights = inputs[0].contiguous(), self._points or drawn
        rows = x.shape[0] if self._points else noise.draws.numel() * noise.rows
        shape = (rows, *x.shape[1:-1], self._numbers["outputs"])
        out = torch.empty(shape, dtype=type_of_codes(self.grids.out_bits))
        lines = x.view(-1, x.shape[-1])
        count = out.numel() // out.shape[-1] // len(weights)
        if self._are_few(count, weights):
            self._few(out, lines, count, weights)
            return out
        each = out.view(len(weights), count, out.shape[-1])
        per_draw = rows_of_draws(lines, Noise(0, torch.empty(len(weights)), 0, count))
        many = self._many_whole if self._whole else self._many_packed
        for target, some, one in zip(each, per_draw, weights, strict=True):
            many(target, some, one)
        return out

    def _are_few(self, lines: int, weights: Sequence[LineWeights]) -> bool:
        multiplications = lines * self._numbers["inputs"] * self._numbers["outputs"]
        used = max(one.uses for one in weights)
        for one in weights:
            one.uses += 1
        fresh = self._points is None and used == 0
        return not (self._whole or self._packs) or multiplications <= (_FEW_ONCE if fresh else _FEW)

    def _few(self, out: Tensor, x: Tensor, count: int, weights: Sequence[LineWeights]) -> None:
        matrix = self._point_matrix or _Call(self._matrix, weights)
        threads = threads_for(out.numel() * self._numbers["inputs"] // _MULTIPLICATIONS_A_CODE)
        self._check(
            self._c.lines(
                *(out.data_ptr(), x.data_ptr(), len(x), len(weights), count, matrix.place, threads),
            )
        )

    def _many_whole(self, out: Tensor, x: Tensor, weights: LineWeights) -> None:
        codes = [weights.weight] if weights.noise is None else [weights.weight, weights.noise]
        sums = [whole_product(x, self._numbers["x_zero"], some) for some in codes]
        matrix, spread = _Call(self._matrix, [weights]), sums[1].data_ptr() if len(sums) > 1 else None
        threads = threads_for(out.numel())
        self._c.whole_sums(out.data_ptr(), sums[0].data_ptr(), spread, len(x), matrix.place, threads)

    def _many_packed(self, out: Tensor, x: Tensor, weights: LineWeights) -> None:
        if not weights.packed:
            codes = [weights.weight] if weights.noise is None else [weights.weight, weights.noise]
            weights.packed = [self._pack(some) for some in codes]
        parts = torch.cat([x] * self._form.parts, 1) if self._form.parts > 1 else x
        target = Target(self._ones, 0, 0, 255, real=True)
        sums = [
            product(self._form.shape, parts, self._numbers["x_zero"], packed, target, self._zeros)
            for packed in weights.packed
        ]
        matrix = self._point_matrix or _Call(self._matrix, [weights])
        spread = sums[1].data_ptr() if len(sums) > 1 else None
        threads = threads_for(out.numel())
        self._check(
            self._c.sums(
                *(out.data_ptr(), sums[0].data_ptr(), spread, len(x), matrix.place, threads),
            )
        )

    def _pack(self, codes: Tensor) -> Packed:
        form = self._form
        zero = self.weighted.weights.zero(self.constants)
        parts = centre_parts(codes, zero, form.parts, form.limit)
        target = Target(self._ones, 0, 0, 255, real=True)
        return pack(form.shape, parts, self._zeros, target, self._numbers["x_zero"])

    def _matrix(self, **places: int) -> Matrix:
        held = {name: tensor.data_ptr() for name, tensor in self._held.items()}
        return Matrix(**places, **held, **self._numbers)

    def _check(self, failed: int) -> None:
        if failed:
            raise MemoryError(f"no memory for the sums of {self.op.name}")

    def _weights(self, codes: Constants) -> LineWeights:
        weight = codes["weight"] if "weight" in codes else codes["mean"]
        plain = weight.to(torch.int8).contiguous()
        return LineWeights(plain, codes.get("noise"), codes["bias"].to(torch.int32).contiguous())


def _tensors(op: Linear, constants: Constants, out_bits: int) -> dict[str, Tensor]:
    """The constants in the types that C reads; ``factor`` only where float64 rounds right, to bytes."""
    shift, multiplier = constants["shift"].to(torch.uint8), constants["multiplier"].to(torch.int32)
    held = {
        "weight_zeros": torch.as_tensor(op.weights.zero(constants), dtype=torch.int32).reshape(-1),
        "multiplier": multiplier.contiguous(),
        "shift": shift.contiguous(),
    }
    least, most = _FLOAT64_SHIFTS
    if op.weights.accumulators == 2:
        held["second_multiplier"] = constants["second_multiplier"].to(torch.int32).contiguous()
    elif out_bits <= MOST_BITS and least <= int(shift.min()) and int(shift.max()) <= most:
        held["factor"] = real(multiplier, shift.long()).expand(op.features_out).contiguous()
    return held


# Weights up to which the float64 copies of a hundred draws stay small (50 MB).
_MOST_WEIGHTS = 1 << 16


def draws_few(op: Weighted) -> bool:
    """Whether ``op`` is a Linear that draws few enough weights to stack its draws."""
    return isinstance(op, Linear) and op.is_stochastic and math.prod(op.weight_shape) <= _MOST_WEIGHTS


class WideLines(Kernel):
    """A small Gaussian Linear, exactly as ``Weighted`` defines it; ``why`` it is not in int8."""

    takes_shared = True
    is_exact = True

    def __init__(self, op: Weighted, grids: Grids, constants: Constants, why: str) -> None:
        super().__init__(op, grids, as_sampler_types(constants), "exact", why)
        self.weighted = op

    @property
    def draws_weights(self) -> bool:
        return True

    def draw(self, seed: int, draw: int) -> Drawn:
        return draw_codes(self.weighted, self.constants, seed, draw)

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        codes, constants = inputs[0], self.constants
        own_rows = codes.shape[0] == len(drawn) * noise.rows
        lines = codes.reshape(len(drawn) if own_rows else 1, -1, codes.shape[-1])
        x = lines.double() - self.grids.zeros[0]
        zero = self.weighted.weights.zero(constants)
        first = "weight" if "weight" in drawn[0] else "mean"
        total = _sums(x, drawn, first, zero) + _stack(drawn, "bias").long()[:, None]
        total *= constants["multiplier"].long()
        if "noise" in drawn[0]:
            total += _sums(x, drawn, "noise", 0) * constants["second_multiplier"].long()
        steps = round_shift(total, constants["shift"].long())
        made = clamp_codes(self.grids.zero + steps, constants, self.grids.out_bits)
        return made.view(-1, *codes.shape[1:-1], made.shape[-1])


def _sums(x: Tensor, drawn: Sequence[Mapping[str, Tensor]], name: str, zero: Tensor | int) -> Tensor:
    """``Σ (q_x − Z_x)(q_w − Z_w)`` of each draw, line and output in int64; all weights have one Z_w."""
    weights = _stack(drawn, name).double() - zero
    return torch.matmul(x, weights.transpose(1, 2)).long()


def _stack(drawn: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    return torch.stack([one[name] for one in drawn])
