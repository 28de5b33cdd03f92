"""Budgets of a whole program: what it may ask for, checked from its shapes alone, before anything is built.

A file pays for its weights by its size. It pays nothing for shapes: in a kilobyte it can name values of
gigabytes, or millions of windows. Hence budgets over all ops together:

| of a program | at most | why so many |
|---|---|---|
| windows of its poolings | 2^22 | worked out at once: 100 bytes each while it is read. A U-Net has 2^16.4 |
| these, over its members | 2^24 | each member has tables of them: 16 bytes a window while it is loaded |
| constants, over its members | 2^17 | a tensor each: 1 KB and about 10 µs. 100 of ResNet-50 have 2^15.5 |
| numbers of a head | 2^20 | answers are float32, for every draw |
| bytes for one row | 2^32 | codes held, and the lanes of the op that runs. A U-Net takes 2^31.1 |
| multiplications for one row | 2^42 | an element that is written counts 64. A U-Net takes 2^38.1 |

The U-Net is the usual one (64 to 1024 channels, a mask behind every convolution) on images of 512 × 512: the
largest of those that a test compares, beside ResNet-50, VGG16 and MobileNetV2 on 224 × 224. The bytes are
those of the reference, which computes in lanes of 4 and 8 bytes; the constants below were measured, and
rounded up. Other backends take a tenth. So one row of any program fits a machine with 8 GB, and a file
below 1 MB is read in 2 s and 500 MB.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qbayes.errors import BadInput
from qbayes.integer.bounds import MOST_WINDOWS
from qbayes.integer.ops import (
    Add,
    Affine,
    AvgPool,
    Concat,
    Conv,
    Linear,
    Lookup,
    Mask,
    MaxPool,
    Mul,
    Op,
    Pad,
    Permute,
    Rescale,
    Reshape,
    Slice,
    Upsample,
    Value,
    Weighted,
)
from qbayes.integer.plan import plan
from qbayes.integer.program import Program
from qbayes.quant.affine import MOST_BITS
from qbayes.quant.exact import LARGEST_COLUMNS

MOST_WINDOWS_OF_MEMBERS = 1 << 24
MOST_CONSTANTS = 1 << 17
MOST_NUMBERS = 1 << 20
MOST_BYTES = 1 << 32
MOST_OPERATIONS = 1 << 42
DO = "use smaller inputs, fewer channels or fewer members; a program that asks for more was made by hand"

# Bytes of an op's lanes for each element that it reads (padding and what lies between two axes included) and
# for each that it writes: the most that the reference held, for any options.
_LANES: dict[type[Op], tuple[int, int]] = {
    **dict.fromkeys((Conv, Linear), (32, 32)),
    **dict.fromkeys((Add, Concat, Rescale, Affine), (0, 64)),
    Mul: (0, 80),
    Mask: (0, 48),
    Lookup: (0, 16),
    MaxPool: (8, 20),
    AvgPool: (64, 64),
    Upsample: (0, 4),
    Pad: (4, 2),
    **dict.fromkeys((Slice, Reshape, Permute), (0, 2)),
}
# of a weighted op, when its inputs are gone and its sums become codes.
_SUMS = 80
# of a raw input: its numbers, standardised, and rounded to codes.
_INPUT_LANES = 32
# multiplications that one element takes as long as.
_ELEMENT = 64

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RowCost:
    """What one row takes at most, in bytes: codes held, lanes of an op, all at one time; and its work."""

    held: int
    working: int
    peak: int
    at: str  # the op at which
    operations: int


def check_row(program: Program) -> RowCost:
    """The cost of one row; raises BadInput where a budget does not hold. Members are not looked at."""
    windows = _windows(program)
    _require(windows <= MOST_WINDOWS, f"there must be at most {MOST_WINDOWS} windows in all", windows)
    for head, name in program.outputs.items():
        count = math.prod(program.values[name].shape) if name in program.values else 0
        _require(
            count <= MOST_NUMBERS, f"a head must have at most {MOST_NUMBERS} numbers", f"{head}: {count}"
        )
    cost = row_cost(program)
    must = f"one row must take at most {MOST_BYTES} bytes of memory"
    _require(cost.peak <= MOST_BYTES, must, f"{cost.peak} at '{cost.at}'")
    must = f"one row must take at most {MOST_OPERATIONS} multiplications (an element counts {_ELEMENT})"
    _require(cost.operations <= MOST_OPERATIONS, must, cost.operations)
    return cost


def check_members(program: Program, members: int) -> None:
    """Raise where so many members have too many constants or windows; the members need not be there yet."""
    windows = members * _windows(program)
    must = f"there must be at most {MOST_WINDOWS_OF_MEMBERS} windows over all members"
    _require(windows <= MOST_WINDOWS_OF_MEMBERS, must, windows)
    constants = members * sum(len(op.constants(program.values)) for op in program.ops)
    must = f"there must be at most {MOST_CONSTANTS} constants over all members"
    _require(constants <= MOST_CONSTANTS, must, constants)


def row_cost(program: Program) -> RowCost:
    """What one row and one draw take, from the shapes."""
    values = program.values
    first = values[program.input]
    held = _bytes(first)
    most_held, working = held, _INPUT_LANES * math.prod(first.shape)
    peak, at, operations = held + working, program.input, 0
    order = plan(program)
    for step in (*order.prefix, *order.suffix):
        op, out = step.op, values[step.op.output]
        shapes = [values[name].shape for name in op.inputs]
        lanes = _lanes(op, shapes, out)
        held += _bytes(out)
        most_held, working = max(most_held, held), max(working, lanes)
        peak, at = max((peak, at), (held + lanes + _columns(op, out), op.name))
        operations += _operations(op, shapes, out, op.macs(values))
        held -= sum(_bytes(values[name]) for name in step.done)
    return RowCost(most_held, working, peak, at, operations)


def _require(holds: bool, must: str, got: object) -> None:
    if not holds:
        raise BadInput(must, f"{got}", DO)


def _windows(program: Program) -> int:
    pools = (op for op in program.ops if isinstance(op, MaxPool | AvgPool))
    return sum(math.prod(program.values[op.output].shape[1:]) for op in pools)


def _bytes(value: Value) -> int:
    return math.prod(value.shape) * (1 if value.bits <= MOST_BITS else 4)


def _lanes(op: Op, shapes: Sequence[Shape], out: Value) -> int:
    """Bytes that the op takes while it runs, beside the codes of its inputs and its output."""
    read, written = _LANES[type(op)]
    count = math.prod(out.shape)
    taken = read * _elements_read(op, shapes, out.shape) + written * count
    if isinstance(op, Weighted):
        return max(taken, _SUMS * count)
    return taken if out.bits <= MOST_BITS else 4 * taken


def _columns(op: Op, out: Value) -> int:
    """Bytes that torch writes down for a convolution, for all rows together."""
    if not isinstance(op, Conv):
        return 0
    return min(8 * math.prod((*op.weight_shape[1:], *out.shape[1:])), LARGEST_COLUMNS)


def _elements_read(op: Op, shapes: Sequence[Shape], out: Shape) -> int:
    """Elements of the largest input as the op sees it."""
    shape = max(shapes, key=math.prod)
    if isinstance(op, Conv | MaxPool):
        return math.prod((shape[0], *(n + 2 * p for n, p in zip(shape[1:], op.padding, strict=True))))
    if isinstance(op, AvgPool):
        # one axis after the other; a running sum has one element more than its axis.
        between = [(*out[:axis], *shape[axis:]) for axis in range(1, len(shape))]
        return max(math.prod(part) // part[axis] * (part[axis] + 1) for axis, part in enumerate(between, 1))
    if isinstance(op, Pad):
        return math.prod(max(pair) for pair in zip(shape, out, strict=True))
    return math.prod(shape)


def _operations(op: Op, shapes: Sequence[Shape], out: Value, macs: int) -> int:
    """Multiplications, elements of windows, and ``_ELEMENT`` for each element that is read or written."""
    written = math.prod(out.shape)
    count = macs
    if isinstance(op, MaxPool):
        count += written * math.prod(op.kernel)
    if isinstance(op, AvgPool):
        widths = [min(k, n) for k, n in zip(op.kernel, shapes[0][1:], strict=True)]
        if op.adaptive is not None:
            widths = [-(-n // count) + 1 for n, count in zip(shapes[0][1:], op.adaptive, strict=True)]
        count += written * math.prod(widths)
    elements = max(_elements_read(op, shapes, out.shape), written)
    return count + _ELEMENT * elements * max(1, len(op.inputs))
