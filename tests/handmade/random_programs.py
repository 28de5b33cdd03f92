"""Random valid programs: every op, odd shapes, paddings, dilations, groups, zero-points, bits and members.

``random_program(seed)`` is a program that ``verify`` proves; the same seed gives the same one. Sizes are
small, so that thousands run in minutes; kernels go wrong at edges, which small shapes have most of.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from handmade.programs import Along, Codes, Maker
from qbayes.errors import BadInput
from qbayes.integer import ops
from qbayes.integer.program import Program
from qbayes.integer.proof.verify import verify

_LARGEST_ROW = 1 << 12  # elements
_TRIES = 40


@dataclass(frozen=True)
class Case:
    """A program with inputs that reach all of its codes."""

    seed: int
    program: Program
    x: Tensor
    draws: int


def random_case(seed: int) -> Case:
    """The program of this seed, rows for it (now and then in bytes), and how many draws to take."""
    rng = random.Random(seed)
    make, program = _random_program(rng, seed)
    x = make.inputs(rng.choice([1, 2, 3, 5, 9]))
    bytes_fit = rng.random() < 0.3
    x = x.clamp(0, 255).to(torch.uint8) if bytes_fit else x
    return Case(seed, program, x, rng.randint(1, 4))


def random_program(seed: int) -> Program:
    return random_case(seed).program


def _random_program(rng: random.Random, seed: int) -> tuple[Maker, Program]:
    for attempt in range(_TRIES):
        try:
            make = RandomMaker(rng, seed * _TRIES + attempt)
            program = _grown(rng, make)
            verify(program)
        except BadInput:
            continue
        return make, program
    raise AssertionError(f"no valid program in {_TRIES} tries of seed {seed}")


def _grown(rng: random.Random, make: "RandomMaker") -> Program:
    """One to seven ops behind the input, then the heads."""
    names = [make.input]
    if make.values[make.input].bits > 8:
        names = [_narrowed(rng, make)]
    wanted = rng.randint(1, 7)
    if len(make.values[names[0]].shape) > 1 and rng.random() < 0.5:
        names.append(_conv(rng, make, names[0]))
    for _ in range(_TRIES):
        if len(names) > wanted:
            break
        x = rng.choice(names[-3:])
        make.bits = rng.choice([2, 3, 4, 5, 6, 7, 8, 8, 8])
        try:
            names.append(rng.choice(_STEPS)(rng, make, x))
        except BadInput:
            continue  # the op does not fit that value
    return _headed(rng, make, names[-1])


def _narrowed(rng: random.Random, make: "RandomMaker") -> str:
    """Codes of more than 8 bits are read by weighted ops alone, if need be through ops that move them."""
    x = make.input
    if rng.random() < 0.5:
        x = _moved_only(rng, make, x)
    return (
        _conv(rng, make, x) if len(make.values[x].shape) > 1 and rng.random() < 0.6 else _linear(rng, make, x)
    )


def _headed(rng: random.Random, make: "RandomMaker", x: str) -> Program:
    """A classifier, or a regression with one head or two."""
    flat = make.moved(ops.Reshape, x, shape=(math.prod(make.values[x].shape),))
    size, wide = rng.randint(1, 9), rng.choice([None, None, rng.randint(9, 16)])
    make.bits = rng.choice([4, 8, 8])
    options = _weights(rng)

    def head() -> str:
        return make.linear(flat, size, relu=False, out_bits=wide, **options)

    kind = rng.choice(["classes", "classes", "constant", "two"])
    if kind == "classes":
        return make.program(make.linear(flat, size + 1, relu=False, out_bits=wide, **options))
    if kind == "constant":
        return make.program(head(), heads=("mean",), noise=[rng.uniform(-2, 2) for _ in range(size)])
    program = make.program(head(), head(), heads=("mean", "log_variance"), noise=[0.0] * size)
    program.constant_heads.clear()
    return program


class RandomMaker(Maker):
    """A maker whose zero-points and clamps lie anywhere; its multipliers are of many sizes and both signs."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self._rng = rng
        bits = rng.choice([2, 3, 4, 5, 6, 7, 8, 8, 8])
        wide = rng.randint(9, 16) if rng.random() < 0.1 else None
        super().__init__(_shape(rng), bits=bits, input_bits=wide, members=rng.choice([1, 1, 2, 3]), seed=seed)

    def _value(self, name: str, shape: tuple[int, ...], bits: int, zero: list[int] | None) -> str:
        if math.prod(shape) > _LARGEST_ROW:
            raise BadInput("a row of a random program must be small", f"{shape}", "take another")
        if zero is None:
            top = (1 << bits) - 1
            zero = [self._rng.choice([0, top // 2, top, self._rng.randint(0, top)]) for _ in self.zeros]
        return super()._value(name, shape, bits, zero)

    def _clamp(self, zero: int, relu: bool = False, bits: int | None = None) -> Codes:
        top = (1 << (bits or self.bits)) - 1
        if self._rng.random() < 0.7:
            return super()._clamp(zero, relu, bits)
        low, high = sorted((self._rng.randint(0, top), self._rng.randint(0, top)))
        return {"low": torch.tensor([low]), "high": torch.tensor([high])}

    def _weight_codes(self, op: ops.Weighted, extreme: bool) -> Codes:
        held = super()._weight_codes(op, extreme)
        sign = torch.where(self.random(0, 9, held["multiplier"].shape, torch.int32) == 0, -1, 1)
        nearer = self._rng.choice([0, 0, 0, 1, 3, 6])
        shift = (held["shift"].int() - nearer).clamp(min=0).to(torch.uint8)
        return held | {"multiplier": held["multiplier"] * sign, "shift": shift}


Step = Callable[[random.Random, RandomMaker, str], str]


def _shape(rng: random.Random) -> tuple[int, ...]:
    channels = rng.choice([1, 1, 2, 3, 4, 5, 8, 16, 17, 32, 33])
    axes = rng.choice([0, 1, 2, 2, 2])
    return (channels, *(rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 9, 12, 17]) for _ in range(axes)))


def _each(rng: random.Random, count: int, numbers: Sequence[int]) -> Along:
    return tuple(rng.choice(numbers) for _ in range(count))


def _weights(rng: random.Random) -> dict[str, object]:
    grids = rng.choice([None, None, None, 0, 1, 2])
    options: dict[str, object] = {"w_bits": rng.choice([2, 3, 4, 6, 7, 8, 8])}
    if grids is None:
        return options | {"affine": rng.random() < 0.3, "per_channel": rng.random() < 0.7}
    return options | {"grids": grids, "bias_noise": rng.random() < 0.4}


def _conv(rng: random.Random, make: RandomMaker, x: str) -> str:
    channels, *lengths = make.values[x].shape
    if not lengths:
        return _linear(rng, make, x)
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    groups = rng.choice([1, channels, rng.choice(divisors)])
    axes = len(lengths)
    return make.conv(
        x,
        groups * rng.choice([1, 1, 2, 3, 8]),
        _each(rng, axes, [1, 1, 2, 3, 3, 4, 5]),
        stride=_each(rng, axes, [1, 1, 2, 3]),
        padding=_each(rng, axes, [0, 0, 1, 2, 3, 5]),
        dilation=_each(rng, axes, [1, 1, 1, 2, 3]),
        groups=groups,
        relu=rng.random() < 0.5,
        extreme=rng.random() < 0.2,
        **_weights(rng),
    )


def _linear(rng: random.Random, make: RandomMaker, x: str) -> str:
    features = rng.choice([1, 2, 3, 8, 16, 17, 40])
    return make.linear(x, features, relu=rng.random() < 0.5, extreme=rng.random() < 0.2, **_weights(rng))


def _mask(rng: random.Random, make: RandomMaker, x: str) -> str:
    return make.mask(x, rng.choice([0.05, 0.25, 0.5, 0.9]), channelwise=rng.random() < 0.4)


def _partner(rng: random.Random, make: RandomMaker, x: str) -> str:
    """A value of the same shape or one to be repeated, noisy or not."""
    shape = make.values[x].shape
    alike = [name for name, value in make.values.items() if value.shape == shape and value.bits <= 8]
    kind = rng.randrange(4)
    if kind == 0 and len(shape) > 1:
        return make.avg_pool(x, adaptive=1)
    if kind == 1:
        return _mask(rng, make, x)
    return rng.choice(alike)


def _add(rng: random.Random, make: RandomMaker, x: str) -> str:
    return make.add(*_shuffled(rng, [x, *(_partner(rng, make, x) for _ in range(rng.choice([1, 1, 2])))]))


def _mul(rng: random.Random, make: RandomMaker, x: str) -> str:
    first, second = _shuffled(rng, [x, _partner(rng, make, x)])
    return make.mul(first, second)


def _concat(rng: random.Random, make: RandomMaker, x: str) -> str:
    alike = [name for name, value in make.values.items() if value.shape == make.values[x].shape]
    parts = [x, *(rng.choice(alike) for _ in range(rng.choice([0, 1, 2])))]
    return make.concat(*parts, axis=rng.randint(1, len(make.values[x].shape)))


def _shuffled(rng: random.Random, names: list[str]) -> list[str]:
    return rng.sample(names, len(names))


def _rescale(rng: random.Random, make: RandomMaker, x: str) -> str:
    return make.rescale(x, rng.choice([0.3, 0.71, 1.0, -0.9, 2.3]))


def _max_pool(rng: random.Random, make: RandomMaker, x: str) -> str:
    axes = len(make.values[x].shape) - 1
    kernel, dilation = _each(rng, axes, [1, 2, 3, 4]), _each(rng, axes, [1, 1, 2])
    window = (kernel, _each(rng, axes, [1, 2, 3]), _each(rng, axes, [0, 0, 1, 2]), dilation)
    return make.max_pool(x, *window, ceil_mode=rng.random() < 0.3)


def _avg_pool(rng: random.Random, make: RandomMaker, x: str) -> str:
    axes = len(make.values[x].shape) - 1
    if rng.random() < 0.3:
        return make.avg_pool(x, adaptive=_each(rng, axes, [1, 2, 3, 5]))
    window = [_each(rng, axes, [1, 2, 3, 4]), _each(rng, axes, [1, 2, 3]), _each(rng, axes, [0, 0, 1, 2])]
    counts, divisor = rng.random() < 0.5, rng.choice([None, None, None, 3])
    return make.avg_pool(x, *window, ceil_mode=rng.random() < 0.3, count_include_pad=counts, divisor=divisor)


def _moved_only(rng: random.Random, make: RandomMaker, x: str) -> str:
    """Reshape, Permute or Slice."""
    shape = make.values[x].shape
    kind = rng.randrange(3)
    if kind == 0:
        at = rng.randint(1, len(shape))
        return make.moved(ops.Reshape, x, shape=(*shape[: at - 1], math.prod(shape[at - 1 :])))
    if kind == 1:
        order = (0, *rng.sample(range(1, len(shape) + 1), len(shape)))
        return make.moved(ops.Permute, x, order=order)
    axis = rng.randint(1, len(shape))
    start = rng.randrange(shape[axis - 1])
    stop = rng.randint(start + 1, shape[axis - 1])
    return make.moved(ops.Slice, x, axis=axis, start=start, stop=stop, step=rng.randint(1, 3))


def _pad(rng: random.Random, make: RandomMaker, x: str) -> str:
    amounts = tuple((rng.randint(-1, 2), rng.randint(-1, 2)) for _ in make.values[x].shape)
    mode = rng.choice(["constant", "reflect", "replicate"])
    return make.moved(ops.Pad, x, amounts=amounts, mode=mode)


def _upsample(rng: random.Random, make: RandomMaker, x: str) -> str:
    axes = len(make.values[x].shape) - 1
    return make.moved(ops.Upsample, x, factors=_each(rng, axes, [1, 2, 3]))


_STEPS: tuple[Step, ...] = (
    *(_conv,) * 8,
    *(_linear,) * 2,
    *(_mask,) * 2,
    *(_add,) * 2,
    *(_mul, _concat, _rescale, _max_pool, _avg_pool, _moved_only, _pad, _upsample),
    lambda rng, make, x: make.affine(x),
    lambda rng, make, x: make.lookup(x),
)
