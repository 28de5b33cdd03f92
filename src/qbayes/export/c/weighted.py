"""Conv and Linear as C: their geometry, their packed rows of weights, and the memory that a call works in."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.export.c.data import Data
from qbayes.export.c.plan import Need, Section, scratch_key
from qbayes.integer.ops import Constants, Conv, Linear, Weighted
from qbayes.integer.pack import pack, packed_bytes
from qbayes.integer.program import Program
from qbayes.quant.affine import MOST_BITS
from qbayes.quant.epsilon import epsilon_table

MOST_ROWS = 16  # QB_MOST_ROWS of qb_weighted.h
ROWS_A_DOT = 4  # QB_ROWS_A_DOT: as many dot products share the loads of their input
_KINDS = {0: "QB_MIXED", 1: "QB_ONE_GRID", 2: "QB_TWO_GRIDS"}
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
    narrow = narrow and all(_fits(_corrected(program, op, index)) for index in range(len(program.members)))
    positions = geometry["out_height"] * geometry["out_width"]
    # rows are unpacked once for all positions; a single position needs no more than one at a time.
    return Layer(op, geometry, row, not narrow, most_rows if positions > 1 else 1)


def _fits(bias: Tensor) -> bool:
    return bool((bias.abs() < _INT32).all())


def _corrected(program: Program, op: Weighted, member: int) -> Tensor:
    """``b − Z_x Σ q_w`` of each channel, int64; b itself where the weights are drawn anew each time."""
    held = program.members[member].constants[op.name]
    bias = held["bias"].long()
    if not _is_corrected(op):
        return bias
    codes = held["mean" if op.weights.is_gaussian else "weight"]
    return bias - program.members[member].zeros[op.inputs[0]] * codes.flatten(1).long().sum(1)


def _is_corrected(op: Weighted) -> bool:
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


def emit_layer(data: Data, program: Program, layer: Layer, name: str) -> None:
    """The structs of one layer: ``<name>_geometry``, ``<name>_weights``, and ``<name>_numbers`` by member."""
    op, owner = layer.op, layer.op.name
    corrected = int(_is_corrected(op) or layer.wide)
    more = {"rows_at_once": layer.rows_at_once, "direct": int(layer.direct), "corrected": corrected}
    data.structs(owner, "qb_geometry", f"{name}_geometry", [{**layer.geometry, **more}])
    data.structs(owner, "qb_weights", f"{name}_weights", [_shape(data, layer)])
    members = range(len(program.members))
    data.structs(owner, "qb_numbers", f"{name}_numbers", [_numbers(data, program, layer, m) for m in members])


def _shape(data: Data, layer: Layer) -> dict[str, object]:
    weights, row = layer.op.weights, layer.row
    low, high = weights.limits
    found: dict[str, object] = {
        "row": row,
        "row_bytes": packed_bytes(row, weights.bits),
        "bits": weights.bits,
        "low": low,
        "high": high,
        "kind": _KINDS[weights.grids] if weights.is_gaussian else "QB_POINT",
    }
    if not weights.is_gaussian:
        return found
    upper = epsilon_table(weights.noise_bits)[2048:]
    found |= {
        "sigma_bytes": packed_bytes(row, weights.sigma_bits),
        "sigma_bits": weights.sigma_bits,
        "site": f"{weights.site & 0xFFFFFFFF}u",
        "epsilon": data.array("the table of the Gaussian", "int8_t", upper),
    }
    if weights.bias_site is not None:
        found |= {"noisy_bias": 1, "bias_site": f"{weights.bias_site & 0xFFFFFFFF}u"}
    return found


def _packed(codes: Tensor, bits: int, signed: bool) -> bytes:
    """Every row from a byte of its own."""
    return b"".join(pack(row, bits, signed) for row in codes.flatten(1))


def _numbers(data: Data, program: Program, layer: Layer, member: int) -> dict[str, object]:
    op, weights = layer.op, layer.op.weights
    held, grids = program.members[member].constants[op.name], program.grids(op, program.members[member])
    owner = op.name
    bias = held["bias"] if layer.wide else _corrected(program, op, member)
    codes = held["mean" if weights.is_gaussian else "weight"]
    found: dict[str, object] = {
        "codes": data.array(owner, "uint8_t", _packed(codes, weights.bits, True)),
        "bias": data.array(owner, "int32_t", bias),
        "multiplier": data.array(owner, "int32_t", held["multiplier"]),
        "shift": data.array(owner, "uint8_t", held["shift"]),
        "scale_step": int(held["multiplier"].numel() > 1),
        "zero_in": grids.zeros[0],
        "zero_out": grids.zero,
        "low": int(held["low"]),
        "high": int(held["high"]),
    }
    if weights.affine:
        zero = held["weight_zero"]
        found |= {"weight_zero": data.array(owner, "int8_t", zero), "zero_step": int(zero.numel() > 1)}
    return found | (_gaussian(data, layer, held) if weights.is_gaussian else {})


def _gaussian(data: Data, layer: Layer, held: Constants) -> dict[str, object]:
    weights, owner = layer.op.weights, layer.op.name
    found: dict[str, object] = {
        "sigma": data.array(owner, "uint8_t", _packed(held["sigma"], weights.sigma_bits, False)),
        "noise_multiplier": data.array(owner, "int32_t", held["noise_multiplier"]),
        "noise_shift": data.array(owner, "uint8_t", held["noise_shift"]),
    }
    if weights.grids == 2:
        found["second_multiplier"] = data.array(owner, "int32_t", held["second_multiplier"])
    if weights.grids == 0:
        mean, noise = held["mix"].to(torch.int64).tolist()
        found |= {"mix_mean": mean, "mix_noise": noise, "mix_shift": int(held["mix_shift"])}
        found["mean_zero"] = int(held["mean_zero"])
    if weights.bias_site is not None:
        found |= {
            "bias_sigma": data.array(owner, "uint8_t", held["bias_sigma"]),
            "bias_multiplier": data.array(owner, "int32_t", held["bias_noise_multiplier"]),
            "bias_shift": data.array(owner, "uint8_t", held["bias_noise_shift"]),
        }
    return found
