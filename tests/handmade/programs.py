"""A maker of programs: each call adds one op with random integer constants, the same kind for every member.

Multipliers are chosen so that outputs spread over their codes; zero-points, clamps and members differ.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from qbayes.integer import ops
from qbayes.integer.arithmetic.fixed_point import fixed_point, shared_shift, shared_shifts
from qbayes.integer.ops import Op, Value, Weights
from qbayes.integer.program import Program
from qbayes.integer.structure.program_data import Member
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Signature, Standardize

Codes = dict[str, Tensor]
# one number for all axes, or one for each.
Along = int | Sequence[int]


class Maker:
    """Collects values, ops and the constants of each member."""

    def __init__(
        self,
        shape: Sequence[int],
        *,
        bits: int = 8,
        input_bits: int | None = None,
        members: int = 1,
        seed: int = 0,
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.bits = bits
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.zeros: list[dict[str, int]] = [{} for _ in range(members)]
        self.constants: list[dict[str, Codes]] = [{} for _ in range(members)]
        self.input = self._value("x", tuple(shape), input_bits or bits, zero=None)
        self.sites = 0

    def random(self, low: int, high: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high + 1, tuple(shape), generator=self.generator).to(dtype)

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Along = 3,
        *,
        stride: Along = 1,
        padding: Along = 0,
        dilation: Along = 1,
        groups: int = 1,
        **options: object,
    ) -> str:
        shape = self.values[x].shape
        repeated = _along(len(shape) - 1, kernel, stride, padding, dilation)
        weights = self._weights(options)
        name, out = self._names("conv")
        geometry = (shape[0], channels, *repeated, groups)
        op = ops.Conv(name, (x,), out, weights, *geometry)
        return self._weighted(op, **options)

    def linear(self, x: str, features: int, **options: object) -> str:
        name, out = self._names("linear")
        features_in = self.values[x].shape[-1]
        op = ops.Linear(name, (x,), out, self._weights(options), features_in, features)
        return self._weighted(op, **options)

    def mask(self, x: str, rate: float = 0.25, channelwise: bool = False) -> str:
        name, out = self._names("mask")
        op = ops.Mask(name, (x,), out, self._site(), rate, channelwise)
        return self._add(op, lambda _: {}, same_grid=True)

    def add(self, *inputs: str, relu: bool = False) -> str:
        name, out = self._names("add")
        real = torch.rand(len(inputs), generator=self.generator, dtype=torch.float64) * 0.6 + 0.1
        multipliers, shift = shared_shift(real * torch.tensor([1.0, -1.0] * len(inputs))[: len(inputs)])
        scaling = {"multipliers": multipliers, "shift": _byte(shift)}
        return self._add(ops.Add(name, inputs, out), lambda zero: scaling | self._clamp(zero, relu))

    def mul(self, a: str, b: str) -> str:
        name, out = self._names("mul")
        return self._add(ops.Mul(name, (a, b), out), lambda zero: _scaling(0.0073) | self._clamp(zero))

    def concat(self, *inputs: str, axis: int = 1) -> str:
        name, out = self._names("concat")
        m, s = fixed_point(torch.linspace(1.0, 0.37, len(inputs), dtype=torch.float64))
        scaling = {"multipliers": m, "shifts": s.to(torch.uint8)}
        return self._add(ops.Concat(name, inputs, out, axis), lambda zero: scaling | self._clamp(zero))

    def rescale(self, x: str, factor: float = 0.71) -> str:
        name, out = self._names("rescale")
        return self._add(ops.Rescale(name, (x,), out), lambda zero: _scaling(factor) | self._clamp(zero))

    def affine(self, x: str) -> str:
        name, out = self._names("affine")
        channels = self.values[x].shape[0]
        real = torch.rand(channels, generator=self.generator, dtype=torch.float64) * 1.2 - 0.4
        m, shift = shared_shift(real)
        offset = self.random(-20, 20, (channels,), torch.int64) << max(0, shift - 4)
        held = {"multiplier": m, "offset": offset.clamp(1 - 2**31, 2**31 - 1).int(), "shift": _byte(shift)}
        return self._add(ops.Affine(name, (x,), out, channels), lambda zero: held | self._clamp(zero))

    def lookup(self, x: str) -> str:
        name, out = self._names("lookup")
        entries, top = 1 << self.values[x].bits, (1 << self.bits) - 1
        return self._add(
            ops.Lookup(name, (x,), out), lambda _: {"table": self.random(0, top, (entries,), torch.uint8)}
        )

    def max_pool(
        self,
        x: str,
        kernel: Along = 2,
        stride: Along = 2,
        padding: Along = 0,
        dilation: Along = 1,
        ceil_mode: bool = False,
    ) -> str:
        name, out = self._names("max_pool")
        window = _along(len(self.values[x].shape) - 1, kernel, stride, padding, dilation)
        return self._add(ops.MaxPool(name, (x,), out, *window, ceil_mode), lambda _: {}, same_grid=True)

    def avg_pool(
        self,
        x: str,
        kernel: Along = 2,
        stride: Along = 2,
        padding: Along = 0,
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
        adaptive: Along | None = None,
    ) -> str:
        name, out = self._names("avg_pool")
        shape = self.values[x].shape
        axes = len(shape) - 1
        window = _along(axes, kernel, stride, padding)
        lengths = None if adaptive is None else _along(axes, adaptive)[0]
        op = ops.AvgPool(name, (x,), out, *window, ceil_mode, count_include_pad, divisor, lengths)
        op.out_shape([shape])  # refuses a window that does not fit
        divisors = op.divisors(shape[1:])
        alike = bool((divisors == divisors.flatten()[0]).all())
        real = 1.3 / divisors.flatten().double()
        m, shift = shared_shifts((real[:1] if alike else real)[:, None])
        held = {"multiplier": m[:, 0], "shift": shift.to(torch.uint8)}
        return self._add(op, lambda zero: held | self._clamp(zero))

    def moved(self, kind: type[Op], x: str, **fields: object) -> str:
        """Upsample, Pad, Slice, Reshape or Permute."""
        name, out = self._names(kind.kind)
        op = kind(name, (x,), out, **fields)  # pyright: ignore[reportArgumentType]
        filled = kind is ops.Pad and fields.get("mode", "constant") == "constant"
        return self._add(op, lambda zero: {"fill": _byte(zero)} if filled else {}, same_grid=True)

    def program(self, *outputs: str, heads: Sequence[str] = ("",), noise: Sequence[float] = ()) -> Program:
        """Heads from the last values; ``noise`` makes it a regression with a constant log-variance."""
        shape = self.values[self.input].shape
        first = self.values[outputs[0]].shape
        likelihood = Gaussian(first) if noise else Categorical(first[-1])
        transform = Standardize(torch.full((shape[0],), 100.0), torch.full((shape[0],), 50.0))
        target = Standardize(torch.full((first[0],), 3.0), torch.full((first[0],), 2.0)) if noise else None
        signature = Signature("handmade", shape, transform, likelihood, target)
        scales = [dict.fromkeys(self.values, 0.02 * (1 + index)) for index in range(len(self.zeros))]
        members = [
            Member(zeros, scale, held)
            for zeros, scale, held in zip(self.zeros, scales, self.constants, strict=True)
        ]
        return Program(
            *(
                self.values,
                tuple(self.ops),
                self.input,
                dict(zip(heads, outputs, strict=True)),
                members,
                signature,
            ),
            constant_heads={"log_variance": list(noise)} if noise else {},
        )

    def inputs(self, rows: int) -> Tensor:
        """Raw inputs that reach all codes."""
        return self.random(-400, 600, (rows, *self.values[self.input].shape), torch.float32)

    def _weighted(
        self,
        op: ops.Weighted,
        *,
        relu: bool = True,
        extreme: bool = False,
        out_bits: int | None = None,
        **_: object,
    ) -> str:
        def codes_for(zero: int) -> Codes:
            return self._weight_codes(op, extreme) | self._clamp(zero, relu, out_bits)

        return self._add(op, codes_for, bits=out_bits)

    def _weight_codes(self, op: ops.Weighted, extreme: bool) -> Codes:
        weights, shape = op.weights, op.weight_shape
        low, high = weights.limits
        scales = shape[0] if weights.per_channel or weights.accumulators == 2 else 1
        codes = self.random(low, high, shape, torch.int8)
        if extreme:
            # neighbours of one sign at the limit: they saturate a sum of two products in int16.
            codes[::2], codes[1::2] = high, 1 - (1 << (weights.bits - 1))
        fan_in, top = math.prod(shape[1:]), (1 << self.values[op.inputs[0]].bits) - 1
        out_top = (1 << self.values_bits(op)) - 1
        largest = fan_in * top * high
        size = 2.0 * out_top / (largest if extreme else largest / math.sqrt(fan_in))
        real = (torch.rand(scales, generator=self.generator, dtype=torch.float64) + 0.5) * size
        held: Codes = {"bias": self.random(-largest // 64, largest // 64, shape[:1], torch.int32)}
        if not weights.is_gaussian:
            m, s = fixed_point(real)
            most = min(5, high)
            zero = {"weight_zero": self.random(-most, most, (scales,), torch.int8)} if weights.affine else {}
            return held | {"weight": codes, "multiplier": m, "shift": s.to(torch.uint8)} | zero
        return held | self._gaussian_codes(weights, codes, real)

    def _gaussian_codes(self, weights: Weights, codes: Tensor, real: Tensor) -> Codes:
        sigma = self.random(0, (1 << weights.sigma_bits) - 1, codes.shape, torch.uint8)
        spread = (1 << (weights.bits - 1)) / 3.0 / ((1 << weights.sigma_bits) << (weights.noise_bits - 1))
        channels = codes.shape[:1]
        nm, ns = fixed_point(torch.full(channels, spread, dtype=torch.float64))
        held: Codes = {
            "mean": codes,
            "sigma": sigma,
            "noise_multiplier": nm,
            "noise_shift": ns.to(torch.uint8),
        }
        if weights.grids == 2:
            both, shift = shared_shifts(torch.stack([real, real * 0.3]))
            held |= {"multiplier": both[0], "second_multiplier": both[1], "shift": shift.to(torch.uint8)}
        else:
            m, s = fixed_point(real)
            held |= {"multiplier": m, "shift": s.to(torch.uint8)}
        if weights.grids == 0:
            mix, shift = shared_shift(torch.tensor([0.8, 0.4], dtype=torch.float64))
            most = min(3, weights.limits[1])
            zeros = {
                name: self.random(-most, most, (1,), torch.int8) for name in ("mean_zero", "weight_zero")
            }
            held |= zeros | {"mix": mix, "mix_shift": _byte(shift)}
        if weights.bias_site is not None:
            m, s = fixed_point(torch.full(channels, 2.0, dtype=torch.float64))
            spread_of_bias = self.random(0, 255, channels, torch.uint8)
            held |= {
                "bias_sigma": spread_of_bias,
                "bias_noise_multiplier": m,
                "bias_noise_shift": s.to(torch.uint8),
            }
        return held

    def values_bits(self, op: Op) -> int:
        return self.values[op.output].bits if op.output in self.values else self.bits

    def _weights(self, options: dict[str, object]) -> Weights:
        """``grids`` makes them Gaussian; ``w_bits``, ``affine``, ``per_channel``, ``bias_noise`` as named."""
        grids, bits = options.get("grids"), int(options.get("w_bits", self.bits))  # pyright: ignore[reportArgumentType]
        affine, per_channel = (
            bool(options.get("affine", grids == 0)),
            bool(options.get("per_channel", grids != 0)),
        )
        if grids is None:
            return Weights("point", bits, affine, per_channel)
        bias_site = self._site() if options.get("bias_noise") else None
        return Weights("gaussian", bits, affine, per_channel, 8, 8, self._site(), int(grids), bias_site)  # pyright: ignore[reportArgumentType]

    def _clamp(self, zero: int, relu: bool = False, bits: int | None = None) -> Codes:
        low, high = zero if relu else 0, (1 << (bits or self.bits)) - 1
        return {"low": torch.tensor([low]), "high": torch.tensor([high])}

    def _names(self, kind: str) -> tuple[str, str]:
        return f"{kind}{len(self.ops)}", f"v{len(self.ops)}"

    def _site(self) -> int:
        self.sites += 1
        return self.sites

    def _value(self, name: str, shape: tuple[int, ...], bits: int, zero: list[int] | None) -> str:
        self.values[name] = Value(name, shape, bits)
        top = (1 << bits) - 1
        for index, zeros in enumerate(self.zeros):
            zeros[name] = int(self.random(0, top // 2, (1,), torch.int64)) if zero is None else zero[index]
        return name

    def _add(
        self,
        op: Op,
        codes_for: Callable[[int], Codes],
        same_grid: bool = False,
        bits: int | None = None,
    ) -> str:
        shapes = [self.values[name].shape for name in op.inputs]
        held = [zeros[op.inputs[0]] for zeros in self.zeros] if same_grid else None
        width = self.values[op.inputs[0]].bits if same_grid else bits or self.bits
        self._value(op.output, op.out_shape(shapes), width, held)
        for zeros, constants in zip(self.zeros, self.constants, strict=True):
            constants[op.name] = codes_for(zeros[op.output])
        self.ops.append(op)
        return op.output


def _along(axes: int, *numbers: Along) -> list[tuple[int, ...]]:
    return [(n,) * axes if isinstance(n, int) else tuple(n) for n in numbers]


def _byte(number: int) -> Tensor:
    return torch.tensor([number], dtype=torch.uint8)


def _scaling(real: float) -> Codes:
    m, s = fixed_point(torch.tensor([real], dtype=torch.float64))
    return {"multiplier": m, "shift": s.to(torch.uint8)}


def every_op(bits: int, members: int = 1, out_bits: int | None = None) -> Maker:
    """A network of images with every op, masks and all kinds of weights; the last value is its output."""
    make = Maker((3, 12, 10), bits=bits, members=members)
    stem = make.conv(make.input, 16, padding=1)
    pooled = make.max_pool(make.mask(stem, channelwise=True), 3, 2, 1)
    drawn = make.conv(pooled, 16, padding=1, grids=1, bias_noise=True)
    two = make.conv(make.mask(drawn), 16, padding=1, grids=2, relu=False)
    gate = make.lookup(make.avg_pool(two, adaptive=1))
    joined = make.concat(make.mul(two, gate), make.affine(drawn))
    deep = make.conv(joined, 32, padding=1, groups=32, w_bits=min(bits, 8))
    mixed = make.conv(make.rescale(deep), 12, 1, grids=0, w_bits=min(bits, 7))
    up = make.moved(ops.Upsample, make.avg_pool(mixed), factors=(2, 2))
    padded = make.moved(ops.Pad, up, amounts=((0, 0), (1, 0), (0, 2)))
    cut = make.moved(ops.Slice, padded, axis=2, start=0, stop=6, step=2)
    turned = make.moved(ops.Permute, make.moved(ops.Reshape, cut, shape=(12, 18)), order=(0, 2, 1))
    lines = make.linear(turned, 8, w_bits=min(bits, 8))
    flat = make.moved(ops.Reshape, lines, shape=(8 * 18,))
    last = make.mask(make.add(flat, make.rescale(flat)))
    make.linear(last, 5, relu=False, grids=1, out_bits=out_bits)
    return make
