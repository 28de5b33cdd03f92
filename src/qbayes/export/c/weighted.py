"""Conv and Linear as C: their packed rows of weights, and the call that runs them."""

import torch
from torch import Tensor

from qbayes.export.c.data import Data
from qbayes.export.c.emitters import emits
from qbayes.export.c.layer import Layer, correct_bias, is_corrected
from qbayes.export.c.plan import section
from qbayes.export.c.walk import Context
from qbayes.integer.arithmetic.epsilon_table import epsilon_table
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import Constants, Conv, Linear, Weighted
from qbayes.integer.program import Program
from qbayes.integer.structure.op_record import bytes_packed, pack

_KINDS = {0: "QB_MIXED", 1: "QB_ONE_GRID", 2: "QB_TWO_GRIDS"}


@emits(Conv, Linear)
def _(op: Weighted, context: Context) -> list[str]:
    layer, values, name = context.layer, context.program.values, context.name
    assert layer is not None
    emit_layer(context.data, context.program, layer, name)
    lines = ["qb_scratch scratch = {NULL, NULL, NULL, NULL};"]
    for field in ("patch", "rows", "noise_rows"):
        lines += _scratch(context, layer, field)
    narrow = section(values[op.output].bits) == "codes"
    out = f"{context.place(op.output)}, NULL" if narrow else f"NULL, {context.place(op.output)}"
    source = context.place(op.inputs[0])
    if layer.wide:
        is_byte = values[op.inputs[0]].bits <= MOST_BITS
        source = f"{source}, NULL" if is_byte else f"NULL, {source}"
    call = "qb_weighted_wide" if layer.wide else "qb_weighted"
    numbers = f"{name}_geometry, {name}_weights, &{name}_numbers[member]"
    return [*lines, f"{call}({numbers}, {source}, {out}, &scratch, noise);"]


def _scratch(context: Context, layer: Layer, field: str) -> list[str]:
    at = context.scratch(layer.op.name, field)
    if at is None:
        return []
    if field == "patch" and layer.wide:
        return [f"scratch.wide_patch = arena.patch + {at};"]
    cast = "" if field == "patch" else "(int8_t *)"
    return [f"scratch.{field} = {cast}(arena.codes + {at});"]


def emit_layer(data: Data, program: Program, layer: Layer, name: str) -> None:
    """The structs of one layer: ``<name>_geometry``, ``<name>_weights``, and ``<name>_numbers`` by member."""
    op, owner = layer.op, layer.op.name
    more = {
        "rows_at_once": layer.rows_at_once,
        "direct": int(layer.direct),
        "corrected": int(is_corrected(op) or layer.wide),
    }
    data.structs(owner, "qb_geometry", f"{name}_geometry", [{**layer.geometry, **more}])
    data.structs(owner, "qb_weights", f"{name}_weights", [_shape(data, layer)])
    members = range(len(program.members))
    data.structs(owner, "qb_numbers", f"{name}_numbers", [_numbers(data, program, layer, m) for m in members])


def _shape(data: Data, layer: Layer) -> dict[str, object]:
    weights, row = layer.op.weights, layer.row
    low, high = weights.limits
    found: dict[str, object] = {
        "row": row,
        "row_bytes": bytes_packed(row, weights.bits),
        "bits": weights.bits,
        "low": low,
        "high": high,
        "kind": _KINDS[weights.grids] if weights.is_gaussian else "QB_POINT",
    }
    if not weights.is_gaussian:
        return found
    upper = epsilon_table(weights.noise_bits)[2048:]
    found |= {
        "sigma_bytes": bytes_packed(row, weights.sigma_bits),
        "sigma_bits": weights.sigma_bits,
        "site": f"{weights.site & 0xFFFFFFFF}u",
        "epsilon": data.array("the table of the Gaussian", "int8_t", upper),
    }
    if weights.bias_site is not None:
        found |= {"noisy_bias": 1, "bias_site": f"{weights.bias_site & 0xFFFFFFFF}u"}
    return found


def _pack_rows(codes: Tensor, bits: int, signed: bool) -> bytes:
    """Every row from a byte of its own."""
    return b"".join(pack(row, bits, signed) for row in codes.flatten(1))


def _numbers(data: Data, program: Program, layer: Layer, member: int) -> dict[str, object]:
    op, weights = layer.op, layer.op.weights
    held, grids = program.members[member].constants[op.name], program.grids(op, program.members[member])
    owner = op.name
    bias = held["bias"] if layer.wide else correct_bias(program, op, member)
    codes = held["mean" if weights.is_gaussian else "weight"]
    found: dict[str, object] = {
        "codes": data.array(owner, "uint8_t", _pack_rows(codes, weights.bits, True)),
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
        "sigma": data.array(owner, "uint8_t", _pack_rows(held["sigma"], weights.sigma_bits, False)),
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
