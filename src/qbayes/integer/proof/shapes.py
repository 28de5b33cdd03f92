"""The values that ops make, from the shape of the input: what a file leaves out, and what is proven first."""

import math
from collections.abc import Sequence

from qbayes.integer.arithmetic.grid import FEWEST_BITS, MOST_BITS, MOST_WIDE_BITS
from qbayes.integer.ops import Op, Value
from qbayes.integer.ops.bound import LARGEST_VALUE, require
from qbayes.integer.program.op_record import decode, encode

MOST_OPS = 10_000
MOST_AXES = 16
LONGEST_NAME = 200


def propagate(ops: Sequence[Op], first: Value, bits: Sequence[int]) -> dict[str, Value]:
    """The values that the ops make from the input ``first``; raises where an op does not fit what it reads.

    Each value is written once and before it is read; ``bits`` are the widths of the ops' outputs.
    """
    values = {first.name: _checked_value(first, MOST_WIDE_BITS)}
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
        values[op.output] = _checked_value(Value(op.output, op.out_shape(shapes), width), most)
    return values


def check_name(name: object, what: str) -> None:
    """Names are shown to people: short, and nothing that moves a terminal's cursor."""
    right = isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME and name.isprintable()
    require(right, f"the name of {what} must be 1 to {LONGEST_NAME} printable characters", f"{name!r:.80}")


def _checked_value(value: Value, most: int = MOST_BITS) -> Value:
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
