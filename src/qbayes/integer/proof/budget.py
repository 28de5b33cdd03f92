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
those of the reference, which computes in lanes of 4 and 8 bytes: ``Op.lanes`` were measured, and rounded up.
Other backends take a tenth. So one row of any program fits a machine with 8 GB, and a file below 1 MB is read
in 2 s and 500 MB.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import FEWEST_BITS, MOST_BITS, MOST_WIDE_BITS
from qbayes.integer.ops import Op
from qbayes.integer.ops.base import ELEMENT, LARGEST_VALUE, MOST_WINDOWS, Value, require
from qbayes.integer.structure.op_record import decode, encode
from qbayes.integer.structure.program_data import ProgramData, plan

MOST_OPS = 10_000
MOST_AXES = 16
LONGEST_NAME = 200


def propagate(ops: Sequence[Op], first: Value, bits: Sequence[int]) -> dict[str, Value]:
    """The values that the ops make from the input ``first``; raises where an op does not fit what it reads.

    Each value is written once and before it is read; ``bits`` are the widths of the ops' outputs.
    """
    values = {first.name: _check_value(first, MOST_WIDE_BITS)}
    names: set[str] = set()
    carried = {first.name}
    for op, width in zip(ops, bits, strict=True):
        check_name(op.name, "an op")
        require(op.name not in names, "every op must have a name of its own", f"'{op.name}' twice")
        require(op.output not in values, "every value must be written once", f"'{op.output}' again")
        missing = [name for name in op.inputs if name not in values]
        require(not missing, f"'{op.name}' must read values that are written before it", missing[:1])
        carries = op.carries_wide and op.inputs[0] in carried
        readable = carried if carries or op.computes_wide else set[str]()
        wide = [name for name in op.inputs if values[name].bits > MOST_BITS and name not in readable]
        require(not wide, f"'{op.name}' must read codes of at most {MOST_BITS} bits", wide[:1])
        shapes = [values[name].shape for name in op.inputs]
        op.check_size(shapes)
        names.add(op.name)
        carried |= {op.output} if carries else set()
        most = MOST_WIDE_BITS if carries or op.computes_wide else MOST_BITS
        values[op.output] = _check_value(Value(op.output, op.out_shape(shapes), width), most)
    return values


def check_name(name: object, what: str) -> None:
    """Names are shown to people: short, and nothing that moves a terminal's cursor."""
    right = isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME and name.isprintable()
    require(right, f"the name of {what} must be 1 to {LONGEST_NAME} printable characters", f"{name!r:.80}")


def _check_value(value: Value, most: int = MOST_BITS) -> Value:
    """``value`` with at most that many bits: only the input and a weighted op's answers may have over 8."""
    check_name(value.name, "a value")
    again = decode(Value, encode(value), f"the value '{value.name}'")
    require(again == value, f"the shape of '{value.name}' must be a tuple", value.shape)
    right = FEWEST_BITS <= value.bits <= most
    require(right, f"'{value.name}' must have codes of {FEWEST_BITS} to {most} bits", value.bits)
    right = len(value.shape) <= MOST_AXES and all(length >= 1 for length in value.shape)
    require(right, f"'{value.name}' must have at most {MOST_AXES} axes, none empty", value.shape)
    count = math.prod(value.shape)
    require(count <= LARGEST_VALUE, f"a row of '{value.name}' must have at most 2^28 elements", count)
    return value


MOST_WINDOWS_OF_MEMBERS = 1 << 24
MOST_CONSTANTS = 1 << 17
MOST_NUMBERS = 1 << 20
MOST_BYTES = 1 << 32
MOST_OPERATIONS = 1 << 42
DO = "use smaller inputs, fewer channels or fewer members; a program that asks for more was made by hand"

# of a raw input: its numbers, standardised, and rounded to codes.
_INPUT_LANES = 32


@dataclass(frozen=True)
class RowCost:
    """What one row takes at most, in bytes: codes held, lanes of an op, all at one time; and its work."""

    held: int
    working: int
    peak: int
    at: str  # the op at which
    operations: int


def check_row(program: ProgramData) -> RowCost:
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
    must = f"one row must take at most {MOST_OPERATIONS} multiplications (an element counts {ELEMENT})"
    _require(cost.operations <= MOST_OPERATIONS, must, cost.operations)
    return cost


def check_members(program: ProgramData, members: int) -> None:
    """Raise where so many members have too many constants or windows; the members need not be there yet."""
    windows = members * _windows(program)
    must = f"there must be at most {MOST_WINDOWS_OF_MEMBERS} windows over all members"
    _require(windows <= MOST_WINDOWS_OF_MEMBERS, must, windows)
    constants = members * sum(len(op.constants(program.values)) for op in program.ops)
    must = f"there must be at most {MOST_CONSTANTS} constants over all members"
    _require(constants <= MOST_CONSTANTS, must, constants)


def row_cost(program: ProgramData) -> RowCost:
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
        lanes = op.lane_bytes(shapes, out)
        held += _bytes(out)
        most_held, working = max(most_held, held), max(working, lanes)
        peak, at = max((peak, at), (held + lanes + op.bytes_for_all_rows(out.shape), op.name))
        operations += op.operations(shapes, out.shape, op.macs(values))
        held -= sum(_bytes(values[name]) for name in step.done)
    return RowCost(most_held, working, peak, at, operations)


def _require(holds: bool, must: str, got: object) -> None:
    if not holds:
        raise BadInput(must, f"{got}", DO)


def _windows(program: ProgramData) -> int:
    return sum(op.window_count(program.values[op.output].shape) for op in program.ops)


def _bytes(value: Value) -> int:
    return math.prod(value.shape) * (1 if value.bits <= MOST_BITS else 4)
