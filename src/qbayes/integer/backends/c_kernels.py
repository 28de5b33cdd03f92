"""Kernels of the ops that have no weights, in C: bit-equal to ``Op.run``, and one pass over the codes.

Numbers go to C as float64 factors ``m / 2^s``, which are exact. An op whose products could leave float64's 53
bits, or whose shapes repeat in a way the kernels do not know, is left to ``Op.run``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import real
from qbayes.integer.arithmetic.pooling_windows import ends_of, largest_window
from qbayes.integer.backends import layout
from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.c_library import Kernels, addresses, threads_for
from qbayes.integer.ops.base import ACCUMULATOR_LIMIT, Constants, Grids, Noise, Op, Shape
from qbayes.integer.ops.combine import Add, Concat, Mul
from qbayes.integer.ops.mask import Mask
from qbayes.integer.ops.pool import AvgPool, MaxPool
from qbayes.integer.ops.unary import Affine, Lookup, Rescale
from qbayes.noise import keep_threshold

_EXACT = 1 << 51  # up to here adding 1.5 · 2^52 rounds to whole numbers
_MOST_INPUTS = 16

Run = Callable[[Sequence[Tensor], Noise], Tensor]


class Compiled(Kernel):
    """An op as a call into the shared library."""

    is_exact = True

    def __init__(self, op: Op, grids: Grids, constants: Constants, run: Run, takes_shared: bool) -> None:
        super().__init__(op, grids, constants, "compiled")
        self._run = run
        self.takes_shared = takes_shared

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        return self._run(inputs, noise)


# What runs an op on rows of these shapes in C; None where its numbers or shapes do not suit the kernel.
Maker = Callable[[Any, Grids, Constants, Sequence[Shape], Kernels], Run | None]


@dataclass(frozen=True)
class _Entry:
    """A maker, and whether its kernel takes rows that all draws share as they are."""

    make: Maker
    takes_shared: bool


MAKERS: dict[type[Op], _Entry] = {}
Registered = TypeVar("Registered", bound=Maker)


def makes(*ops: type[Op], takes_shared: bool = False) -> Callable[[Registered], Registered]:
    """Register a function as what makes the kernel of these ops; an op without one runs by ``Op.run``."""

    def register(make: Registered) -> Registered:
        MAKERS.update(dict.fromkeys(ops, _Entry(make, takes_shared)))
        return make

    return register


def kernel_in_c(
    op: Op, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels
) -> Kernel | None:
    """The op in C for inputs with rows of these shapes; None if it is not one of those written in C."""
    entry = MAKERS.get(type(op))
    run = None if entry is None else entry.make(op, grids, constants, shapes, c)
    if entry is None or run is None:
        return None
    return Compiled(op, grids, constants, run, takes_shared=entry.takes_shared)


@makes(Mask, takes_shared=True)
def _mask(op: Mask, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run:
    channels, positions = shapes[0][0], math.prod(shapes[0][1:])
    site, threshold, zero, channelwise = op.site, keep_threshold(op.rate), grids.zeros[0], op.channelwise

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        x = layout.dense(inputs[0])
        count, last = noise.draws.numel(), layout.is_last(x)
        out = layout.empty((count * noise.rows, *x.shape[1:]), last)
        failed = c.mask(
            *(out.data_ptr(), x.data_ptr(), x.shape[0], noise.draws.data_ptr(), count),
            *(noise.first_row, noise.rows, channels, positions, last, channelwise, zero),
            *(noise.seed, site, threshold, threads_for(out.numel())),
        )
        if failed:
            raise MemoryError(f"no memory for the masks of {op.name}")
        return out

    return run


@makes(Add, takes_shared=True)
def _sum(op: Add, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run | None:
    multipliers = constants["multipliers"]
    if len(shapes) == 2 and shapes[0] == shapes[1] and _fits_pair(constants):
        return _pair(grids, constants, shapes, c)
    largest = int(multipliers.long().abs().sum()) << max(grids.bits)
    if len(set(shapes)) > 1 or len(shapes) > _MOST_INPUTS or largest >= _EXACT:
        return None
    factors = real(multipliers, constants["shift"].long()).contiguous()
    zeros = torch.tensor(grids.zeros, dtype=torch.float64)
    ends, size, count = _ends(grids, constants), math.prod(shapes[0]), len(shapes)

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        parts = layout.alike(inputs)
        rows = torch.tensor([part.shape[0] for part in parts])
        total = max(part.shape[0] for part in parts)
        out = layout.empty((total, *parts[0].shape[1:]), layout.is_last(parts[0]))
        c.sum(
            *(out.data_ptr(), addresses(parts), rows.data_ptr(), count, total, size),
            *(zeros.data_ptr(), factors.data_ptr(), *ends, threads_for(out.numel())),
        )
        return out

    return run


def _fits_pair(constants: Constants) -> bool:
    """Whether 32-bit lanes hold the sum of two codes: multipliers below 2^30, a shift of 16 … 46."""
    return int(constants["multipliers"].long().abs().max()) < 1 << 30 and 16 <= int(constants["shift"]) <= 46


def _pair(grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run:
    zeros = torch.tensor(grids.zeros, dtype=torch.int32)
    multipliers = constants["multipliers"].to(torch.int32).contiguous()
    ends = (int(constants["shift"]) - 15, grids.zero, int(constants["low"]), int(constants["high"]))
    size = math.prod(shapes[0])

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        a, b = layout.alike(inputs)
        rows = max(a.shape[0], b.shape[0])
        out = layout.empty((rows, *a.shape[1:]), layout.is_last(a))
        c.pair(
            *(out.data_ptr(), a.data_ptr(), a.shape[0], b.data_ptr(), b.shape[0], rows, size),
            *(zeros.data_ptr(), multipliers.data_ptr(), *ends, threads_for(out.numel())),
        )
        return out

    return run


@makes(Mul, takes_shared=True)
def _product(op: Mul, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run | None:
    factor = float(real(constants["multiplier"], constants["shift"].long()))
    # a factor for each channel comes second; 8 + 8 + 31 bits are below 51.
    order = (0, 1) if math.prod(shapes[0]) >= math.prod(shapes[1]) else (1, 0)
    wide, narrow = (shapes[i] for i in order)
    gate = (wide[0], *(1,) * (len(wide) - 1))
    if narrow not in (wide, gate):
        return None
    channels, positions = wide[0], math.prod(wide[1:])
    narrow_positions, ends = math.prod(narrow[1:]), _ends(grids, constants)
    zeros = [float(grids.zeros[i]) for i in order]

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        a, b = (inputs[i] for i in order)
        a, b = layout.alike([a, b]) if narrow == wide else (layout.dense(a), b.contiguous())
        rows, last = max(a.shape[0], b.shape[0]), layout.is_last(a)
        out = layout.empty((rows, *a.shape[1:]), last)
        c.product(
            *(out.data_ptr(), a.data_ptr(), a.shape[0], b.data_ptr(), b.shape[0], narrow_positions),
            *(rows, channels, positions, last, *zeros, factor, *ends, threads_for(out.numel())),
        )
        return out

    return run


@makes(Concat, takes_shared=True)
def _concat(op: Concat, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run:
    tables = [_part_table(op, grids, constants, index) for index in range(len(shapes))]
    axis = op.axis

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        parts = layout.alike(inputs)
        last = axis == 1 and layout.is_last(parts[0])
        parts = parts if last else [part.contiguous() for part in parts]
        rows, row = max(part.shape[0] for part in parts), list(parts[0].shape[1:])
        row[axis - 1] = sum(part.shape[axis] for part in parts)
        out = layout.empty((rows, *row), last)
        # blocks that lie together in memory: a pixel's channels, or all from the axis on.
        block = [1] if last else row[axis:]
        before = math.prod(row[1:]) if last else math.prod(row[: axis - 1])
        width, offset = row[axis - 1] * math.prod(block), 0
        for part, table in zip(parts, tables, strict=True):
            run_length = part.shape[axis] * math.prod(block)
            c.place(
                *(out.data_ptr(), part.data_ptr(), part.shape[0] * before, rows * before, run_length, width),
                *(offset, table.data_ptr() if table is not None else None, threads_for(part.numel())),
            )
            offset += run_length
        return out

    return run


def _part_table(op: Concat, grids: Grids, constants: Constants, index: int) -> Tensor | None:
    """What ``op`` makes of each code of one input; None if that is the code itself."""
    every = torch.arange(1 << grids.bits[index], dtype=torch.uint8)
    own = Concat(op.name, (op.inputs[index],), op.output, axis=1)
    chosen = {name: constants[name][index : index + 1] for name in ("multipliers", "shifts")}
    around = Grids((grids.zeros[index],), grids.zero, (grids.bits[index],), grids.out_bits)
    noise = Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)
    table = own.run([every[None]], around, {**constants, **chosen}, noise)[0]
    return None if torch.equal(table, every) else _pad_table(table)


@makes(Rescale, Lookup)
def make_table(op: Op, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run:
    """An op on single codes is the table of what it makes of each."""
    every = torch.arange(1 << grids.bits[0], dtype=torch.uint8)
    table = _pad_table(op.run([every], grids, constants, Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)))

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        x = layout.dense(inputs[0])
        out = torch.empty_like(x)
        c.lookup(out.data_ptr(), x.data_ptr(), x.numel(), table.data_ptr(), threads_for(x.numel()))
        return out

    return run


@makes(Affine)
def _affine(op: Affine, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run:
    # 8 + 31 bits and an int32 offset are below 2^51.
    multiplier, shift = constants["multiplier"], constants["shift"]
    factor = real(multiplier, shift.long()).contiguous()
    offset = real(constants["offset"], shift.long()).contiguous()
    channels, positions, ends = shapes[0][0], math.prod(shapes[0][1:]), _ends(grids, constants)
    zero = float(grids.zeros[0])

    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        x = layout.dense(inputs[0])
        out = torch.empty_like(x)
        c.affine(
            *(out.data_ptr(), x.data_ptr(), x.shape[0], channels, positions, layout.is_last(x)),
            *(factor.data_ptr(), offset.data_ptr(), zero, *ends, threads_for(x.numel())),
        )
        return out

    return run


@makes(MaxPool)
def _max_pool(op: MaxPool, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels) -> Run:
    lengths, out_row = shapes[0][1:], op.out_shape(shapes)
    axes = zip(lengths, out_row[1:], op.kernel, op.stride, op.padding, op.dilation, strict=True)
    windows = _window_table([_max_windows(*axis) for axis in axes])
    dilation = torch.tensor([1] * (2 - len(op.dilation)) + list(op.dilation), dtype=torch.int32)
    return _pool(
        out_row,
        lambda out, x, sizes, threads: c.max_pool(
            *(out, x, *sizes, windows.data_ptr(), len(windows), dilation.data_ptr(), threads)
        ),
    )


def _max_windows(
    length: int, count: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """First and end of each window inside the row, the first on the window's own grid of dilated steps."""
    starts = torch.arange(count) * stride - padding
    first = starts + (-starts).clamp(min=0).add(dilation - 1) // dilation * dilation
    return first, (starts + dilation * (kernel - 1) + 1).clamp(max=length)


@makes(AvgPool)
def _mean_pool(
    op: AvgPool, grids: Grids, constants: Constants, shapes: Sequence[Shape], c: Kernels
) -> Run | None:
    multiplier = constants["multiplier"]
    along = op.windows(shapes[0][1:])
    # C sums codes that are not centred, in int32; the proof speaks of centred ones.
    most = largest_window(along) * ((1 << grids.bits[0]) - 1)
    if most > ACCUMULATOR_LIMIT or most * int(multiplier.long().abs().max()) >= _EXACT:
        return None
    factor = real(multiplier, constants["shift"].long()).contiguous()
    windows, step, ends, zero = (
        _window_table([ends_of(axis) for axis in along]),
        int(len(factor) > 1),
        _ends(grids, constants),
        grids.zeros[0],
    )
    return _pool(
        op.out_shape(shapes),
        lambda out, x, sizes, threads: c.mean_pool(
            *(
                out,
                x,
                *sizes,
                windows.data_ptr(),
                len(windows),
                factor.data_ptr(),
                step,
                float(zero),
                *ends,
                threads,
            )
        ),
    )


def _pool(out_row: tuple[int, ...], call: Callable[[int, int, tuple[int, int, int, int], int], None]) -> Run:
    def run(inputs: Sequence[Tensor], noise: Noise) -> Tensor:
        x = layout.images(inputs[0])
        rows, channels, height, width = x.shape
        out = layout.empty((rows, *out_row), True)
        call(out.data_ptr(), x.data_ptr(), (rows, channels, height, width), threads_for(x.numel()))
        return out

    return run


def _window_table(along: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """``(top, bottom, left, right)`` of each output position, int32; a sequence has height 1."""
    spans = [torch.stack(ends, 1).int() for ends in along]
    tall, wide = spans if len(spans) == 2 else (torch.tensor([[0, 1]], dtype=torch.int32), spans[0])
    return torch.cat([tall.repeat_interleave(len(wide), 0), wide.repeat(len(tall), 1)], 1)


def _ends(grids: Grids, constants: Constants) -> tuple[float, float, float]:
    return float(grids.zero), float(constants["low"]), float(constants["high"])


def _pad_table(table: Tensor) -> Tensor:
    """A table for all 256 bytes, so that no code can reach beyond it."""
    return torch.cat([table.to(torch.uint8), table.new_zeros(256 - len(table), dtype=torch.uint8)])
