"""The ops between the weighted ones, as ONNX nodes; every one gives exactly the reference's codes.

A function of one code is a table. Sums, products and means are rescaled in lanes. The rest moves codes.
"""

from collections.abc import Sequence

import numpy as np
import torch

from qbayes.integer import ops
from qbayes.integer.arithmetic.fixed_point import rescale, round_shift
from qbayes.integer.onnx.exact_rescale import FLOAT32_EXACT, Lanes, Part, integers
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site, Write, dtype_of_codes, writes
from qbayes.integer.ops.base import Noise

_QUIET = Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)


@writes(ops.Rescale, ops.Lookup)
def write_table(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """An op on single codes is the table of what it makes of each."""
    return _look_up(g, lanes, inputs[0], _table(site))


@writes(ops.Affine)
def affine(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """A table for each channel, one behind the other."""
    channels, entries = site.shapes[0][0], 1 << site.grids.bits[0]
    every = torch.arange(entries, dtype=torch.uint8).view(-1, 1).expand(-1, channels)
    table = site.op.run([every], site.grids, site.constants, _QUIET).t().reshape(-1)
    first = np.arange(channels, dtype=np.int32).reshape(-1, *(1,) * (len(site.shapes[0]) - 1)) * entries
    index = g.node("Add", lanes.index(g, inputs[0]), g.constant(first))
    return g.node("Gather", g.constant(table, np.uint8, "table"), index)


@writes(ops.Concat)
def concat(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.Concat)
    multipliers, shifts = site.constants["multipliers"].tolist(), site.constants["shifts"].tolist()
    parts: list[str] = []
    for at, tensor in enumerate(inputs):
        every = torch.arange(1 << site.grids.bits[at])
        moved = rescale(every - site.grids.zeros[at], multipliers[at], shifts[at])
        table = (site.grids.zero + moved).clamp(site.low, site.high)
        parts.append(tensor if torch.equal(table, every) else _look_up(g, lanes, tensor, table))
    return g.node("Concat", *parts, axis=op.axis)


@writes(ops.Add)
def add(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    return _by_pairs(g, lanes, site, inputs, _write_sum)


@writes(ops.Mul)
def mul(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    return _by_pairs(g, lanes, site, inputs, _write_product)


def _write_sum(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """The sum of codes in lanes."""
    multipliers = integers(site.constants["multipliers"])
    # Σ (q − Z) m = Σ q m − Σ Z m.
    offset = integers(-sum(z * m for z, m in zip(site.grids.zeros, multipliers.tolist(), strict=True)))
    widths = zip(inputs, multipliers.tolist(), site.grids.bits, strict=True)
    terms = [lanes.term(g, [Part(name, (1 << bits) - 1)], integers(m)) for name, m, bits in widths]
    return _round(g, lanes, site, lanes.round(g, terms, site.shift, offset))


def _write_product(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """The product of codes in lanes."""
    pairs = zip(inputs, site.grids.zeros, strict=True)
    centred = [g.node("Sub", name, lanes.number(g, zero)) for name, zero in pairs]
    product = Part(g.node("Mul", *centred), site.reach**2)
    term = lanes.term(g, [product], integers(site.constants["multiplier"]))
    return _round(g, lanes, site, lanes.round(g, [term], site.shift))


def _by_pairs(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str], write: Write) -> str:
    """A function of several codes; of two, by a table of all pairs where lanes ask for it.

    The graph makes the table itself, from constants, when a runtime loads it: the file stays small.
    """
    if len(inputs) != 2 or 1 << sum(site.grids.bits) > lanes.most_entries:
        return write(g, lanes, site, [lanes.of(g, name) for name in inputs])
    counts = [1 << bits for bits in site.grids.bits]
    shapes = ((-1, 1), (1, -1))
    every = [
        g.constant(np.arange(count).reshape(shape), lanes.dtype)
        for count, shape in zip(counts, shapes, strict=True)
    ]
    table = g.node("Reshape", write(g, lanes, site, every), g.whole(-1))
    first, second = (lanes.index(g, name) for name in inputs)
    index = g.node("Add", g.node("Mul", first, g.constant(np.int32(counts[1]))), second)
    return g.node("Gather", table, index)


@writes(ops.AvgPool)
def avg_pool(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """Window sums as products with matrices of 0 and 1, one for each axis; float32 holds them exactly."""
    op = site.op
    assert isinstance(op, ops.AvgPool)
    windows = op.windows(site.shapes[0][1:])
    inside = [
        np.array([[a <= at < b for a, b in along] for at in range(n)], dtype=np.float32)
        for along, n in zip(windows, site.shapes[0][1:], strict=True)
    ]
    counts = np.ones((), dtype=np.int64)
    for matrix in inside:
        counts = counts[..., None] * matrix.sum(0).astype(np.int64)
    largest = int(counts.max()) * site.reach
    wide = np.float32 if largest < FLOAT32_EXACT else lanes.dtype
    codes = lanes.of(g, inputs[0]) if wide is lanes.dtype else g.cast(inputs[0], wide)
    if counts.size == 1 and all(matrix.all() for matrix in inside):
        sums = g.node("ReduceSum", codes, g.whole(*range(2, 2 + len(inside))), keepdims=1)
    else:
        sums = g.node("MatMul", codes, g.constant(inside[-1], wide))
        if len(inside) == 2:
            sums = g.node("MatMul", g.constant(inside[0].T, wide), sums)
    multiplier = integers(site.constants["multiplier"])
    positions = multiplier.reshape(counts.shape) if multiplier.size > 1 else multiplier
    offset = integers(-site.grids.zeros[0]) * integers(counts) * positions
    if bool((offset == offset.flat[0]).all()) and positions.size == 1:
        offset = offset.reshape(-1)[:1]
    if (largest + 1) * offset.size <= lanes.most_entries:
        return _of_sums(g, lanes, site, sums, largest, (positions, offset))
    steps = lanes.round(g, [lanes.term(g, [Part(lanes.of(g, sums), largest)], positions)], site.shift, offset)
    return _round(g, lanes, site, steps)


def _of_sums(
    g: Graph, lanes: Lanes, site: Site, sums: str, largest: int, scaling: tuple[np.ndarray, np.ndarray]
) -> str:
    """A mean from its sum, by a table for each position of the output."""
    multiplier, offset = (torch.from_numpy(part.astype(np.int64).reshape(-1, 1)) for part in scaling)
    total = torch.arange(largest + 1) * multiplier + offset
    steps = round_shift(total, site.constants["shift"].long())
    table = (site.grids.zero + steps).clamp(site.low, site.high)
    first = np.arange(len(table), dtype=np.int32).reshape(scaling[1].shape) * (largest + 1)
    index = g.node("Add", lanes.index(g, sums), g.constant(first))
    return g.node("Gather", g.constant(table.reshape(-1), np.uint8, "table"), index)


@writes(ops.MaxPool)
def max_pool(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.MaxPool)
    axes = zip(
        *(site.shapes[0][1:], site.out_shape[1:], op.kernel, op.stride, op.padding, op.dilation), strict=True
    )
    # as far as the last window reaches: runtimes differ in what they make of ceil mode.
    after = [max(0, (out - 1) * s + d * (k - 1) + 1 - n - p) for n, out, k, s, p, d in axes]
    pads = [*op.padding, *after]
    if any(pad >= kernel for pad, kernel in zip(pads, op.kernel * 2, strict=True)):
        return _max_of_taps(g, site, inputs[0])
    return g.node(
        "MaxPool", inputs[0], kernel_shape=op.kernel, strides=op.stride, dilations=op.dilation, pads=pads
    )


def _max_of_taps(g: Graph, site: Site, tensor: str) -> str:
    """Dilated windows that reach far beyond an axis, each axis laid out as what its windows read.

    Runtimes refuse padding as wide as the kernel, and ONNX Runtime moves a Pad before a MaxPool into it. A
    tap beyond the axis reads what another tap of its window reads; a window without any is 0.
    """
    op = site.op
    assert isinstance(op, ops.MaxPool)
    filled = np.ones((), dtype=bool)
    axes = zip(
        *(site.shapes[0][1:], site.out_shape[1:], op.kernel, op.stride, op.padding, op.dilation), strict=True
    )
    for axis, (n, out, k, s, p, d) in enumerate(axes, 2):
        taps = np.arange(out)[:, None] * s - p + np.arange(k) * d
        inside = (taps >= 0) & (taps < n)
        first = taps[np.arange(out), inside.argmax(1)][:, None]
        taps = np.where(inside, taps, np.clip(first, 0, n - 1))
        tensor = g.node("Gather", tensor, g.whole(*taps.reshape(-1).tolist()), axis=axis)
        filled = filled[..., None] & inside.any(1)
    tensor = g.node("MaxPool", tensor, kernel_shape=op.kernel, strides=op.kernel)
    if filled.all():
        return tensor
    return g.node("Where", g.constant(filled), tensor, g.constant(np.uint8(0)))


@writes(ops.Mask)
def mask(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.Mask)
    return g.node("Where", site.noise["keep"], inputs[0], g.constant(np.uint8(site.grids.zeros[0])))


@writes(ops.Upsample)
def upsample(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.Upsample)
    channels, *lengths = site.shapes[0]
    apart = [n for length in lengths for n in (length, 1)]
    repeated = [n for length, f in zip(lengths, op.factors, strict=True) for n in (length, f)]
    tensor = g.node("Reshape", inputs[0], g.whole(-1, channels, *apart))
    tensor = g.node("Expand", tensor, g.whole(1, channels, *repeated))
    return g.node("Reshape", tensor, g.whole(-1, *site.out_shape))


@writes(ops.Pad)
def pad(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.Pad)
    tensor = inputs[0]
    if op.mode == "constant":
        return _pad(g, tensor, site, op.amounts, int(site.constants["fill"]))
    for axis, (before, after) in enumerate(op.amounts, start=1):
        last = site.shapes[0][axis - 1] - 1
        index = np.arange(-before, last + 1 + after)
        index = index.clip(0, last) if op.mode == "replicate" else last - np.abs(last - np.abs(index))
        if before or after:
            tensor = g.node("Gather", tensor, g.constant(index, np.int64), axis=axis)
    return tensor


@writes(ops.Slice)
def slice_(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.Slice)
    return _slice(g, inputs[0], op.axis, op.start, op.stop, op.step)


@writes(ops.Reshape)
def reshape(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    return g.node("Reshape", inputs[0], g.whole(-1, *site.out_shape))


@writes(ops.Permute)
def permute(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    op = site.op
    assert isinstance(op, ops.Permute)
    return g.node("Transpose", inputs[0], perm=op.order)


def _table(site: Site) -> torch.Tensor:
    """What the op makes of every code."""
    every = torch.arange(1 << site.grids.bits[0], dtype=torch.uint8).view(1, -1)
    return site.op.run([every], site.grids, site.constants, _QUIET)[0]


def _look_up(g: Graph, lanes: Lanes, tensor: str, table: torch.Tensor) -> str:
    return g.node("Gather", g.constant(table, np.uint8, "table"), lanes.index(g, tensor))


def _round(g: Graph, lanes: Lanes, site: Site, steps: str) -> str:
    dtype = dtype_of_codes(site.grids.out_bits)
    return lanes.codes(g, steps, site.grids.zero, site.low, site.high, dtype)


def _pad(g: Graph, tensor: str, site: Site, amounts: Sequence[tuple[int, int]], fill: int) -> str:
    begins, ends = ([max(0, pair[at]) for pair in amounts] for at in (0, 1))
    if any(begins + ends):
        tensor = g.node("Pad", tensor, g.whole(0, *begins, 0, *ends), g.constant(np.uint8(fill)))
    for axis, (before, after) in enumerate(amounts, start=1):
        if min(before, after) < 0:
            start, length = max(0, -before), site.out_shape[axis - 1]
            tensor = _slice(g, tensor, axis, start, start + length, 1)
    return tensor


def _slice(g: Graph, tensor: str, axis: int, start: int, stop: int, step: int) -> str:
    return g.node("Slice", tensor, g.whole(start), g.whole(stop), g.whole(axis), g.whole(step))
