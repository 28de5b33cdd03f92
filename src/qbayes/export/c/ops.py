"""Ops that are not weighted as C: each emits its constants and gives the call that runs it.

``Context.place`` gives the C expression of a value's memory; numbers that differ between members are arrays
of structs, indexed by the variable ``member`` of the calling function.
"""

import math
from collections.abc import Sequence

from qbayes.errors import BadInput
from qbayes.export.c.emitters import emits
from qbayes.export.c.walk import Axis, Context, broadcast, emit_walk, strides
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import (
    Add,
    Affine,
    AvgPool,
    Concat,
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
)
from qbayes.noise import keep_threshold

MOST_INPUTS = 16  # QB_MOST_INPUTS of qb_elementwise.h


def emit_scaling(context: Context, op: Op, name: str, part: int | None = None) -> str:
    """``qb_scaling`` of every member; ``part`` picks one input of a Concat."""
    rows = []
    for member in context.program.members:
        held, grids = member.constants[op.name], context.program.grids(op, member)
        multipliers = held["multipliers" if "multipliers" in held else "multiplier"].flatten()
        shift = held["shifts" if "shifts" in held else "shift"].flatten()
        zeros = list(grids.zeros)
        if part is not None:
            multipliers, shift, zeros = multipliers[part : part + 1], shift[part : part + 1], zeros[part:][:1]
        rows.append(
            {
                "multipliers": context.data.array(op.name, "int32_t", multipliers),
                "zeros": context.data.array(op.name, "uint32_t", zeros),
                "shift": int(shift[0]),
                "zero_out": grids.zero,
                "low": int(held["low"]),
                "high": int(held["high"]),
            }
        )
    context.data.structs(op.name, "qb_scaling", f"{name}_scaling", rows)
    return f"&{name}_scaling[member]"


def _sum(op: Op, context: Context, axes: Sequence[Axis], inputs: Sequence[str]) -> list[str]:
    if len(inputs) > MOST_INPUTS:
        raise BadInput(
            f"'{op.name}' must add at most {MOST_INPUTS} values in C",
            f"{len(inputs)}",
            "add them in several steps",
        )
    walk = emit_walk(context, op.name, context.name, axes)
    scaling = emit_scaling(context, op, context.name)
    return [
        f"const uint8_t *in[{len(inputs)}];",
        *(f"in[{i}] = {context.place(name)};" for i, name in enumerate(inputs)),
        f"qb_sum({walk}, {scaling}, in, {context.place(op.output)});",
    ]


@emits(Add)
def _(op: Add, context: Context) -> list[str]:
    axes = broadcast(context.shape(op.output), [context.shape(name) for name in op.inputs])
    return _sum(op, context, axes, op.inputs)


@emits(Rescale)
def _(op: Rescale, context: Context) -> list[str]:
    axes = broadcast(context.shape(op.output), [context.shape(op.inputs[0])])
    return _sum(op, context, axes, op.inputs)


@emits(Mul)
def _(op: Mul, context: Context) -> list[str]:
    axes = broadcast(context.shape(op.output), [context.shape(name) for name in op.inputs])
    walk = emit_walk(context, op.name, context.name, axes)
    scaling = emit_scaling(context, op, context.name)
    a, b, out = (context.place(name) for name in (*op.inputs, op.output))
    return [f"qb_product({walk}, {scaling}, {a}, {b}, {out});"]


@emits(Concat)
def _(op: Concat, context: Context) -> list[str]:
    along = strides(context.shape(op.output))
    lines, offset = ["const uint8_t *in[1];"], 0
    for part, source in enumerate(op.inputs):
        shape, name = context.shape(source), f"{context.name}_{part}"
        axes = [Axis(n, o, (s,)) for n, o, s in zip(shape, along, strides(shape), strict=True)]
        walk = emit_walk(context, op.name, name, axes)
        scaling = emit_scaling(context, op, name, part)
        target = f"{context.place(op.output)} + {offset}"
        lines += [f"in[0] = {context.place(source)};", f"qb_sum({walk}, {scaling}, in, {target});"]
        offset += shape[op.axis - 1] * along[op.axis - 1]
    return lines


@emits(Mask)
def _(op: Mask, context: Context) -> list[str]:
    shape, owner = context.shape(op.output), op.name
    count = shape[0] if op.channelwise else math.prod(shape)
    inner = math.prod(shape) // count
    zeros = [member.zeros[op.inputs[0]] for member in context.program.members]
    context.data.add_array(owner, "uint32_t", f"{context.name}_zero", zeros)
    places = f"{context.place(op.inputs[0])}, {context.place(op.output)}"
    numbers = f"{count}u, {inner}u, {op.site & 0xFFFFFFFF}u, {keep_threshold(op.rate)}u"
    return [f"qb_mask({places}, {numbers}, {context.name}_zero[member], noise);"]


@emits(Affine)
def _(op: Affine, context: Context) -> list[str]:
    scaling = emit_scaling(context, op, context.name)
    held = [member.constants[op.name]["offset"] for member in context.program.members]
    offsets = [context.data.array(op.name, "int32_t", offset) for offset in held]
    context.data.pointers(op.name, "int32_t", f"{context.name}_offset", offsets)
    inner = math.prod(context.shape(op.output)[1:])
    places = f"{context.place(op.inputs[0])}, {context.place(op.output)}"
    return [f"qb_affine({op.channels}u, {inner}u, {scaling}, {context.name}_offset[member], {places});"]


@emits(Lookup)
def _(op: Lookup, context: Context) -> list[str]:
    held = [member.constants[op.name]["table"] for member in context.program.members]
    tables = [context.data.array(op.name, "uint8_t", table) for table in held]
    context.data.pointers(op.name, "uint8_t", f"{context.name}_table", tables)
    places = f"{context.place(op.inputs[0])}, {context.place(op.output)}"
    return [f"qb_lookup({context.name}_table[member], {math.prod(context.shape(op.output))}u, {places});"]


def _image(shape: Sequence[int]) -> tuple[int, int, int]:
    return (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, shape[1])


def _outline(context: Context, op: Op) -> dict[str, object]:
    channels, in_height, in_width = _image(context.shape(op.inputs[0]))
    _, out_height, out_width = _image(context.shape(op.output))
    return {
        "channels": channels,
        "in_height": in_height,
        "in_width": in_width,
        "out_height": out_height,
        "out_width": out_width,
    }


@emits(MaxPool)
def _(op: MaxPool, context: Context) -> list[str]:
    row = _outline(context, op)
    window = {"kernel": op.kernel, "stride": op.stride, "padding": op.padding, "dilation": op.dilation}
    for name, lengths in window.items():
        height, width = lengths if len(lengths) == 2 else (int(name != "padding"), lengths[0])
        row |= {f"{name}_height": height, f"{name}_width": width}
    context.data.structs(op.name, "qb_window", f"{context.name}_window", [row])
    return [f"qb_max_pool({context.name}_window, {context.place(op.inputs[0])}, {context.place(op.output)});"]


@emits(AvgPool)
def _(op: AvgPool, context: Context) -> list[str]:
    windows = op.windows(context.shape(op.inputs[0])[1:])
    rows, columns = windows if len(windows) == 2 else ([(0, 1)], windows[0])
    data, owner = context.data, op.name
    ends = {"top": rows, "bottom": rows, "left": columns, "right": columns}
    places = {
        end: data.array(owner, "uint32_t", [span[end in ("bottom", "right")] for span in spans])
        for end, spans in ends.items()
    }
    step = int(context.program.members[0].constants[op.name]["multiplier"].numel() > 1)
    outline = {**_outline(context, op), **places, "step": step}
    data.structs(owner, "qb_average", f"{context.name}_windows", [outline])
    scaling = emit_scaling(context, op, context.name)
    return [
        f"qb_avg_pool({context.name}_windows, {scaling}, "
        f"{context.place(op.inputs[0])}, {context.place(op.output)});"
    ]


def emit_move(
    op: Op, context: Context, axes: Sequence[Axis], source_offset: int = 0, offset: int = 0
) -> list[str]:
    """The call that puts codes at other places: ``axes`` walk through the output and the input."""
    walk = emit_walk(context, op.name, context.name, axes)
    size = 1 if context.program.values[op.output].bits <= MOST_BITS else 2
    source = f"{context.place(op.inputs[0])} + {source_offset}"
    return [f"qb_move({walk}, {source}, {context.place(op.output)} + {offset}, {size}u);"]


@emits(Reshape)
def _(op: Reshape, context: Context) -> list[str]:
    return []  # the same memory


@emits(Permute)
def _(op: Permute, context: Context) -> list[str]:
    shape, steps = context.shape(op.output), strides(context.shape(op.inputs[0]))
    along = zip(shape, strides(shape), op.order[1:], strict=True)
    return emit_move(op, context, [Axis(n, o, (steps[axis - 1],)) for n, o, axis in along])


@emits(Slice)
def _(op: Slice, context: Context) -> list[str]:
    shape, steps = context.shape(op.output), strides(context.shape(op.inputs[0]))
    along = enumerate(zip(shape, strides(shape), steps, strict=True))
    axes = [Axis(n, o, (s * (op.step if at == op.axis - 1 else 1),)) for at, (n, o, s) in along]
    return emit_move(op, context, axes, op.start * steps[op.axis - 1])


@emits(Upsample)
def _(op: Upsample, context: Context) -> list[str]:
    shape, out = context.shape(op.inputs[0]), context.shape(op.output)
    steps, along = strides(shape), strides(out)
    axes = [Axis(shape[0], along[0], (steps[0],))]
    for n, o, s, factor in zip(shape[1:], along[1:], steps[1:], op.factors, strict=True):
        axes += [Axis(n, o * factor, (s,)), Axis(factor, o, (0,))]
    return emit_move(op, context, axes)


@emits(Pad)
def _(op: Pad, context: Context) -> list[str]:
    shape, out = context.shape(op.inputs[0]), context.shape(op.output)
    if op.mode != "constant":
        return _take(op, context, shape, out)
    fills = [int(member.constants[op.name]["fill"]) for member in context.program.members]
    context.data.add_array(op.name, "uint8_t", f"{context.name}_fill", fills)
    axes, source, offset = [], 0, 0
    pairs = zip(shape, op.amounts, strides(shape), strides(out), strict=True)
    for n, (before, after), s, o in pairs:
        axes.append(Axis(n + min(before, 0) + min(after, 0), o, (s,)))
        source += max(-before, 0) * s
        offset += max(before, 0) * o
    filled = f"memset({context.place(op.output)}, {context.name}_fill[member], {math.prod(out)}u);"
    return [filled, *emit_move(op, context, axes, source, offset)]


def _take(op: Pad, context: Context, shape: Sequence[int], out: Sequence[int]) -> list[str]:
    if not out:
        return emit_move(op, context, [])
    data, places = context.data, []
    for n, (before, after), step in zip(shape, op.amounts, strides(shape), strict=True):
        index = range(-before, n + after)
        last = n - 1
        mirrored = [last - abs(last - abs(i)) for i in index]
        found = [min(max(i, 0), last) for i in index] if op.mode == "replicate" else mirrored
        places.append(data.array(op.name, "uint32_t", [i * step for i in found]))
    data.pointers(op.name, "uint32_t", f"{context.name}_places", places)
    lengths = data.array(op.name, "uint32_t", list(out))
    return [
        f"qb_take({len(out)}u, {lengths}, {context.name}_places, "
        f"{context.place(op.inputs[0])}, {context.place(op.output)});"
    ]
