"""Conv and Linear in the dialect QDQ, for OpenVINO: float operators between quantisers, run in int8.

OpenVINO turns ``DequantizeLinear → Conv → QuantizeLinear`` into one int8 kernel. Two things help it: inputs
have no zero-point (``Σ (q − Z) w = Σ q w − Z Σ w``; the second part goes to the bias, and borders are padded
with the code Z before), and drawn weights pass a quantiser of their own, without which they would run in
float32. A Linear with drawn weights is a 1×1 Conv: OpenVINO's int8 product of two matrices, neither of them
constant, gives wrong sums. Rescaling is in float32 and may move a code by one next to a rounding edge.

What int8 cannot hold (codes wider than a byte) runs exactly in float32 lanes: sums are cut so that each stays
below 2^24, and rescaled by limbs.
"""

from collections.abc import Sequence

import numpy as np

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.onnx.exact_rescale import FLOAT32_EXACT, Lanes, LimbLanes, Part, Term, add_up, integers
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site, dtype_of_codes, writes
from qbayes.integer.onnx.qoperator import broadcast_axes, conv_attributes, shape_constant
from qbayes.integer.onnx.weights import (
    Codes,
    codes_of_draws,
    multipliers,
    point_parts,
    scales_of,
    weighted_op,
)
from qbayes.integer.ops.weighted import Conv, Linear

LANES = LimbLanes()
_BYTE = 256
_LARGEST_WEIGHT = 127


@writes(Conv, Linear, dialects=("qdq",))
def write_weighted(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """The nodes of a Conv or Linear; gives the output's codes."""
    op = weighted_op(site)
    narrow = max(site.grids.bits[0], site.grids.out_bits) <= MOST_BITS
    two = op.weights.accumulators == 2
    name = "mean" if two else "weight"
    first = [codes_of_draws(site, name)] if op.is_stochastic else point_parts(site)
    if not narrow:
        return _exact(g, lanes, site, inputs[0], first)
    x = _dequantise(g, site, inputs[0])
    total = _real_sums(g, site, x, first, "multiplier", with_bias=True)
    if two:
        second = _real_sums(g, site, x, [codes_of_draws(site, "noise")], "second_multiplier", with_bias=False)
        total = g.node("Add", total, second)
    codes = _quantise(g, site, total)
    return g.node("Reshape", codes, g.whole(-1, *site.out_shape)) if _in_columns(site) else codes


def _in_columns(site: Site) -> bool:
    """Whether a Linear runs as a 1×1 Conv over (lines, features, 1, 1).

    Drawn weights do, and rows of several axes: behind a transposition OpenVINO does not see that codes are
    bytes, and multiplies in float32.
    """
    return isinstance(site.op, Linear) and (site.op.is_stochastic or len(site.shapes[0]) > 1)


def _along(site: Site) -> tuple[int, ...]:
    """The shape in which one number a channel broadcasts with the sums."""
    return (-1, 1, 1) if _in_columns(site) else broadcast_axes(site)


def _quantise(g: Graph, site: Site, total: str) -> str:
    """``clamp(Z + round(v / S))`` of real numbers; the quantiser itself clamps to a byte."""
    scale, zero = scales_of(site)[2], site.grids.zero
    if site.low > 0 or site.high < _BYTE - 1:
        ends = (np.float32((end - zero) * scale) for end in (site.low, site.high))
        total = g.node("Clip", total, *(g.constant(end) for end in ends))
    return g.node("QuantizeLinear", total, g.constant(np.float32(scale)), g.constant(np.uint8(zero)))


def _dequantise(g: Graph, site: Site, x: str) -> str:
    """The input in real numbers ``S q``, its borders made of the code Z where the op pads."""
    op, zero = site.op, site.grids.zeros[0]
    if isinstance(op, Conv) and any(op.padding) and (zero or _picks(op) or _reaches_out(op)):
        x = g.node("Pad", x, g.whole(0, 0, *op.padding, 0, 0, *op.padding), g.constant(np.uint8(zero)))
    if isinstance(op, Conv) and _picks(op):
        x = _pick(g, op, x)
    if isinstance(op, Linear) and _in_columns(site):
        x = g.node("Reshape", x, g.whole(-1, op.features_in, 1, 1))
    scale = g.constant(np.float32(scales_of(site)[0]))
    return g.node("DequantizeLinear", x, scale, g.constant(np.uint8(0)))


def _picks(op: Conv) -> bool:
    """Whether a Conv only reads every n-th position.

    They are picked before it: OpenVINO would do so too, but between the dequantiser and the Conv, which then
    runs in float32.
    """
    return all(n == 1 for n in op.kernel) and any(n > 1 for n in op.stride)


def _reaches_out(op: Conv) -> bool:
    """Whether windows may lie wholly in the padding: OpenVINO ends the process over some of them."""
    axes = zip(op.padding, op.dilation, op.kernel, strict=True)
    return any(p > d * (k - 1) for p, d, k in axes)


def _pick(g: Graph, op: Conv, x: str) -> str:
    """Every n-th position of each axis, the borders already there."""
    axes = range(2, 2 + len(op.kernel))
    ends = [np.iinfo(np.int64).max for _ in axes]
    starts = g.whole(*(0 for _ in axes))
    return g.node("Slice", x, starts, g.whole(*ends), g.whole(*axes), g.whole(*op.stride))


def _real_sums(
    g: Graph, site: Site, x: str, codes: Sequence[Codes], multiplier: str, *, with_bias: bool
) -> str:
    """``S_x S_w (Σ (q − Z) w + b)`` in float32."""
    _, of_weights, out_scale = scales_of(site, multiplier)
    zero = site.grids.zeros[0]
    # what a unit of the sums is worth, in float64: the rounding of S_w must not meet large biases.
    unit = multipliers(site, multiplier) * out_scale
    found = [_product(g, site, x, one, of_weights) for one in codes]
    known = integers(site.constants["bias"]) if with_bias else integers(np.zeros(len(unit), np.int64))
    drawn: list[str] = []
    for one in codes:
        if one.array is not None:
            known = known - zero * integers(one.array.astype(np.int64).reshape(len(unit), -1).sum(1))
        elif zero:
            rest = g.node("Sub", g.cast(one.tensor, np.float32), g.constant(np.float32(one.zero)))
            axes = g.whole(*range(1, len(weighted_op(site).weight_shape)))
            sums = g.node("ReduceSum", rest, axes, keepdims=0)
            drawn.append(g.node("Mul", sums, g.constant(np.float32(-zero))))
    if with_bias and "bias_steps" in site.noise:
        drawn.append(g.cast(site.noise["bias_steps"], np.float32))
    real = (known.astype(np.float64) * unit).astype(np.float32)
    offsets = [g.constant(real.reshape(_along(site)), name="bias")]
    if drawn:
        moved = g.node("Mul", add_up(g, drawn), g.constant(unit.astype(np.float32)))
        offsets.append(g.node("Reshape", moved, g.whole(*_along(site))))
    return add_up(g, [_sum_apart(g, site, found), *offsets])


def _sum_apart(g: Graph, site: Site, products: Sequence[str]) -> str:
    """The sum of products; of convolutions not by Add.

    OpenVINO makes Add a part of the second convolution, which is then wrong for a single row. Of products of
    matrices Add is right, and ReduceSum is wrong.
    """
    if isinstance(site.op, Linear) and not _in_columns(site):
        return add_up(g, products)
    if len(products) == 1:
        return products[0]
    stacked = g.node("Concat", *(g.node("Unsqueeze", one, g.whole(0)) for one in products), axis=0)
    return g.node("ReduceSum", stacked, g.whole(0), keepdims=0)


def _product(g: Graph, site: Site, x: str, codes: Codes, scales: np.ndarray) -> str:
    """``S_x S_w Σ q w`` in float32."""
    if codes.array is None:
        return _product_of_draws(g, site, x, codes, scales)
    by_lines = isinstance(site.op, Linear) and not _in_columns(site)
    array = codes.array.T if by_lines else codes.array.reshape(_kernel_shape(site))
    weight = g.constant(array, np.int8, "weight")
    zeros = g.constant(np.zeros(len(scales), np.int8), name="zeros")
    real = g.node("DequantizeLinear", weight, g.constant(scales, name="scales"), zeros, axis=int(by_lines))
    return g.node("MatMul", x, real) if by_lines else _conv(g, site, x, real)


def _product_of_draws(g: Graph, site: Site, x: str, codes: Codes, scales: np.ndarray) -> str:
    """A product with weights that come at run time, in as many parts as int8 needs."""
    one, zero = g.constant(np.float32(1)), g.constant(np.int8(0))
    rest = g.cast(g.node("Reshape", codes.tensor, g.whole(*_kernel_shape(site))), np.float32)
    if codes.zero:
        rest = g.node("Sub", rest, g.constant(np.float32(codes.zero)))
    parts = [g.node("QuantizeLinear", rest, one, zero)]
    if codes.size > _LARGEST_WEIGHT:
        beyond = g.node("Sub", rest, g.cast(parts[0], np.float32))
        parts.append(g.node("QuantizeLinear", beyond, one, zero))
    products = [_conv(g, site, x, g.node("DequantizeLinear", part, one, zero)) for part in parts]
    return g.node("Mul", _sum_apart(g, site, products), g.constant(scales.reshape(_along(site))))


def _kernel_shape(site: Site) -> tuple[int, ...]:
    shape = weighted_op(site).weight_shape
    return (*shape, 1, 1) if _in_columns(site) else shape


def _conv(g: Graph, site: Site, x: str, weight: str) -> str:
    op = site.op
    if not isinstance(op, Conv):
        return g.node("Conv", x, weight)
    attributes = conv_attributes(op)
    if site.grids.zeros[0] or _picks(op) or _reaches_out(op):
        attributes["pads"] = (0,) * (2 * len(op.kernel))
    if _picks(op):
        attributes["strides"] = (1,) * len(op.kernel)
    return g.node("Conv", x, weight, **attributes)


def _exact(g: Graph, lanes: Lanes, site: Site, x: str, first: Sequence[Codes]) -> str:
    """Whole numbers in float32 lanes, for codes wider than a byte."""
    op = weighted_op(site)
    bias = shape_constant(site, integers(site.constants["bias"]))
    multiplier = shape_constant(site, integers(site.constants["multiplier"]))
    parts = [part for codes in first for part in _exact_sums(g, lanes, site, x, codes)]
    if "bias_steps" in site.noise:
        steps = g.node("Reshape", lanes.of(g, site.noise["bias_steps"]), g.whole(*broadcast_axes(site)))
        parts.append(Part(steps, FLOAT32_EXACT - 1))
    terms: list[Term] = [lanes.term(g, parts, multiplier)]
    if op.weights.accumulators == 2:
        noise = _exact_sums(g, lanes, site, x, codes_of_draws(site, "noise"))
        second = shape_constant(site, integers(site.constants["second_multiplier"]))
        terms.append(lanes.term(g, noise, second))
    shift = shape_constant(site, integers(site.constants["shift"]))
    steps = lanes.round(g, terms, shift, bias * multiplier)
    dtype = dtype_of_codes(site.grids.out_bits)
    return lanes.codes(g, steps, site.grids.zero, site.low, site.high, dtype)


def _exact_sums(g: Graph, lanes: Lanes, site: Site, x: str, codes: Codes) -> list[Part]:
    """``Σ (q − Z)(w − Z_w)``, in parts that float32 holds whatever the order of the sum."""
    op, zero = weighted_op(site), site.grids.zeros[0]
    taps = int(np.prod(op.weight_shape[2:]))
    if codes.array is not None:
        weight = g.cast(g.constant(codes.array, np.int8, "weight"), np.float32)
    else:
        weight = g.node("Sub", g.cast(codes.tensor, np.float32), g.constant(np.float32(codes.zero)))
    x = lanes.of(g, x)
    pieces = [(x, zero, 1)]
    if site.grids.bits[0] > MOST_BITS:
        upper = g.node("Floor", g.node("Mul", x, g.constant(np.float32(1 / _BYTE))))
        lower = g.node("Sub", x, g.node("Mul", upper, g.constant(np.float32(_BYTE))))
        pieces = [(upper, zero // _BYTE, _BYTE), (lower, zero % _BYTE, 1)]
    length = _channels_at_once(site, codes)
    found: list[Part] = []
    for piece, of_piece, worth in pieces:
        centred = g.node("Sub", piece, g.constant(np.float32(of_piece))) if of_piece else piece
        for start in range(0, op.weight_shape[1], length):
            stop = min(start + length, op.weight_shape[1])
            sums = _lane_product(g, site, centred, weight, start, stop)
            largest = (_BYTE - 1) * min(codes.size * taps * (stop - start), codes.sums)
            found.append(Part(sums, max(largest, 1), worth))
    return found


def _channels_at_once(site: Site, codes: Codes) -> int:
    """How many input channels a sum below 2^24 may have."""
    op = weighted_op(site)
    channels, taps = op.weight_shape[1], int(np.prod(op.weight_shape[2:]))
    if (_BYTE - 1) * codes.sums < FLOAT32_EXACT:
        return channels
    length = (FLOAT32_EXACT - 1) // ((_BYTE - 1) * codes.size * taps)
    if length == 0 or (isinstance(op, Conv) and op.groups > 1):
        raise BadInput(
            f"sums of '{op.name}' over wide codes must stay below 2^24 in the dialect qdq",
            f"{channels} channels of {taps} taps in {op.groups if isinstance(op, Conv) else 1} groups",
            "export in the dialect qoperator",
        )
    return length


def _lane_product(g: Graph, site: Site, x: str, weight: str, start: int, stop: int) -> str:
    """The product of the input channels ``start … stop``."""
    op = site.op
    whole = stop - start == weighted_op(site).weight_shape[1]
    if not whole:
        ends = (g.whole(start), g.whole(stop))
        weight = g.node("Slice", weight, *ends, g.whole(1))
        x = g.node("Slice", x, *ends, g.whole(1 if isinstance(op, Conv) else -1))
    if isinstance(op, Conv):
        attributes = conv_attributes(op)
        if _picks(op):
            # OpenVINO would pick the positions itself, and forget the stride where there is padding.
            pads = g.whole(0, 0, *op.padding, 0, 0, *op.padding)
            x = _pick(g, op, g.node("Pad", x, pads, g.constant(np.float32(0))))
            none, ones = (0,) * (2 * len(op.kernel)), (1,) * len(op.kernel)
            attributes |= {"pads": none, "strides": ones}
        return g.node("Conv", x, weight, **attributes)
    return g.node("MatMul", x, g.node("Transpose", weight, perm=(1, 0)))
