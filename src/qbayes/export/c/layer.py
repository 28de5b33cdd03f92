"""How a Conv or Linear runs in C: its geometry, its path, and the memory that a call works in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from qbayes.export.c.plan import Need, Section, scratch_key
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import Conv, Linear, Weighted
from qbayes.integer.program import Program

MOST_ROWS = 16  # QB_MOST_ROWS of qb_weighted.h
ROWS_A_DOT = 4  # QB_ROWS_A_DOT: as many dot products share the loads of their input
_INT32 = 1 << 31


@dataclass(frozen=True)
class Layer:
    """How a weighted op runs: which path, and how many rows of weights are held unpacked."""

    op: Weighted
    geometry: Mapping[str, int]
    row: int
    wide: bool
    rows_at_once: int

    @property
    def direct(self) -> bool:
        """8-bit points need no unpacking."""
        return not self.wide and not self.op.weights.is_gaussian and self.op.weights.bits == MOST_BITS

    @property
    def flat(self) -> bool:
        return bool(self.geometry["flat"])

    def scratch(self, at: int) -> list[Need]:
        """The memory of one call, at step ``at``."""
        sizes: dict[str, tuple[Section, int]] = {}
        if self.wide:
            sizes["patch"] = ("patch", self.row)
        elif not self.flat:
            sizes["patch"] = ("codes", self.row)
        if not self.direct:
            sizes["rows"] = ("codes", self.rows_at_once * self.row)
        if self.op.weights.accumulators == 2:
            sizes["noise_rows"] = ("codes", self.rows_at_once * self.row)
        return [
            Need(scratch_key(self.op.name, what), kind, size, at, at) for what, (kind, size) in sizes.items()
        ]


def layer_of(program: Program, op: Weighted, most_rows: int = ROWS_A_DOT) -> Layer:
    """The way that an op runs, with at most ``most_rows`` rows of weights unpacked at once."""
    geometry = _geometry(program, op)
    row = math.prod(op.weight_shape[1:])
    bits = program.values[op.inputs[0]].bits
    # sums of uncentred products must fit 32 bits whatever the codes, and so must the corrected bias.
    narrow = bits <= MOST_BITS and ((1 << bits) - 1) * row * 128 < _INT32
    narrow = narrow and all(_fits(correct_bias(program, op, index)) for index in range(len(program.members)))
    positions = geometry["out_height"] * geometry["out_width"]
    # rows are unpacked once for all positions; a single position needs no more than one at a time.
    return Layer(op, geometry, row, not narrow, most_rows if positions > 1 else 1)


def _fits(bias: Tensor) -> bool:
    return bool((bias.abs() < _INT32).all())


def correct_bias(program: Program, op: Weighted, member: int) -> Tensor:
    """``b − Z_x Σ q_w`` of each channel, int64; b itself where the weights are drawn anew each time."""
    held = program.members[member].constants[op.name]
    bias = held["bias"].long()
    if not is_corrected(op):
        return bias
    codes = held["mean" if op.weights.is_gaussian else "weight"]
    return bias - program.members[member].zeros[op.inputs[0]] * codes.flatten(1).long().sum(1)


def is_corrected(op: Weighted) -> bool:
    return not op.weights.is_gaussian or op.weights.grids == 2


def _geometry(program: Program, op: Weighted) -> dict[str, int]:
    shape, out = program.values[op.inputs[0]].shape, program.values[op.output].shape
    if isinstance(op, Linear):
        return _flat(op.features_in, op.features_out, math.prod(shape[:-1]))
    assert isinstance(op, Conv)
    covers = tuple(shape[1:]) == op.kernel and not any(op.padding)
    if covers and op.groups == 1:
        # the only patch is the whole input.
        return _flat(math.prod(shape), op.channels_out, 1)
    pairs = {
        "in": shape[1:],
        "out": out[1:],
        "kernel": op.kernel,
        "stride": op.stride,
        "padding": op.padding,
        "dilation": op.dilation,
    }
    one = {"padding": 0}
    found = {"in_channels": op.channels_in, "out_channels": op.channels_out, "groups": op.groups, "flat": 0}
    for name, lengths in pairs.items():
        height, width = lengths if len(lengths) == 2 else (one.get(name, 1), lengths[0])
        found |= {f"{name}_height": height, f"{name}_width": width}
    return found


def _flat(features_in: int, features_out: int, positions: int) -> dict[str, int]:
    ones = ("kernel", "stride", "dilation")
    found = {f"{name}_{axis}": 1 for name in ones for axis in ("height", "width")}
    found |= {"padding_height": 0, "padding_width": 0, "in_height": 1, "out_height": 1}
    found |= {"in_width": positions, "out_width": positions, "groups": 1, "flat": 1}
    return found | {"in_channels": features_in, "out_channels": features_out}
