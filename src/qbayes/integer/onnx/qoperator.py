"""Conv and Linear in the dialect QOperator, for ONNX Runtime: integer kernels by name.

A Conv with bytes on both sides is ``QLinearConv``, whose float32 rescaling may move a code by one where a sum
lies next to a rounding edge. Everything else (Linear, noise with an accumulator of its own, codes wider than
a byte, negative multipliers) is ``MatMulInteger`` or ``ConvInteger`` with int32 sums, rescaled in float64:
exactly the reference's codes. Wide input codes are read byte by byte, ``q = 256 h + l``.

Weights and their zero-points belong to one node each: where 8-bit products saturate, ONNX Runtime can turn
both to uint8 (``session.x64quantprecision``), and fails on tensors that nodes share.
"""

from collections.abc import Sequence

import numpy as np

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.onnx.exact_rescale import Float64Lanes, Lanes, Part, Term, integers
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site, dtype_of_codes, writes
from qbayes.integer.onnx.weights import Codes, codes_of_draws, point_parts, scales_of, weighted_op
from qbayes.integer.ops.weighted import Conv, Linear

LANES = Float64Lanes()
_BYTE = 256
_INT32 = 1 << 31


@writes(Conv, Linear, dialects=("qoperator",))
def write_weighted(g: Graph, lanes: Lanes, site: Site, inputs: Sequence[str]) -> str:
    """The nodes of a Conv or Linear; gives the output's codes."""
    op = weighted_op(site)
    narrow = max(site.grids.bits[0], site.grids.out_bits) <= MOST_BITS
    first = point_parts(site) if not op.is_stochastic else [codes_of_draws(site, _first(site))]
    positive = bool((site.constants["multiplier"] > 0).all())
    if isinstance(op, Conv) and narrow and positive and op.weights.accumulators == 1 and len(first) == 1:
        return _write_conv(g, site, inputs[0], first[0])
    terms = [_term(g, lanes, site, inputs[0], first, "multiplier", with_bias=True)]
    if op.weights.accumulators == 2:
        second = [codes_of_draws(site, "noise")]
        terms.append(_term(g, lanes, site, inputs[0], second, "second_multiplier", with_bias=False))
    steps = lanes.round(g, terms, shape_constant(site, integers(site.constants["shift"])))
    dtype = dtype_of_codes(site.grids.out_bits)
    return lanes.codes(g, steps, site.grids.zero, site.low, site.high, dtype)


def shape_constant(site: Site, constant: np.ndarray) -> np.ndarray:
    """One number, or one a channel, to broadcast with the output."""
    op = site.op
    return constant.reshape(-1, *(1,) * len(op.kernel)) if isinstance(op, Conv) else constant


def conv_attributes(op: Conv) -> dict[str, object]:
    return {
        "kernel_shape": op.kernel,
        "strides": op.stride,
        "pads": (*op.padding, *op.padding),
        "dilations": op.dilation,
        "group": op.groups,
    }


def _first(site: Site) -> str:
    return "mean" if weighted_op(site).weights.grids == 2 else "weight"


def _write_conv(g: Graph, site: Site, x: str, codes: Codes) -> str:
    op = site.op
    assert isinstance(op, Conv)
    scale, of_weights, out_scale = scales_of(site)
    weight = codes.tensor if codes.array is None else g.constant(codes.array, np.int8, "weight", own=True)
    # ONNX Runtime wants as many zero-points as scales.
    zeros = np.full(op.channels_out, codes.zero, np.int8)
    bias = g.constant(site.constants["bias"], np.int32, "bias")
    if "bias_steps" in site.noise:
        bias = g.node("Add", bias, site.noise["bias_steps"])
    made = g.node(
        "QLinearConv",
        *(
            x,
            g.constant(np.float32(scale), name="scale"),
            g.constant(np.uint8(site.grids.zeros[0]), name="zero"),
        ),
        *(weight, g.constant(of_weights, name="scales"), g.constant(zeros, name="zeros", own=True)),
        *(
            g.constant(np.float32(out_scale), name="scale"),
            g.constant(np.uint8(site.grids.zero), name="zero"),
        ),
        bias,
        **conv_attributes(op),
    )
    if site.low > 0 or site.high < _BYTE - 1:
        made = g.node("Clip", made, g.constant(np.uint8(site.low)), g.constant(np.uint8(site.high)))
    return made


def _term(
    g: Graph, lanes: Lanes, site: Site, x: str, codes: Sequence[Codes], multiplier: str, *, with_bias: bool
) -> Term:
    """Sums in int32, and the bias, as a term to be rescaled."""
    parts: list[Part] = []
    for piece, zero, worth in _bytes_of(g, site, x):
        for one in codes:
            sums = _sums(g, site, piece, zero, one)
            parts.append(Part(lanes.of(g, sums), _INT32, worth))
    if with_bias:
        bias = lanes.of(g, g.constant(shape_constant(site, site.constants["bias"].numpy()), np.int32, "bias"))
        parts.append(Part(bias, _INT32))
        if "bias_steps" in site.noise:
            steps = g.node("Reshape", site.noise["bias_steps"], g.whole(*broadcast_axes(site)))
            parts.append(Part(lanes.of(g, steps), _INT32))
    return lanes.term(g, parts, shape_constant(site, integers(site.constants[multiplier])))


def broadcast_axes(site: Site) -> tuple[int, ...]:
    op = site.op
    return (-1, *(1,) * len(op.kernel)) if isinstance(op, Conv) else (-1,)


def _bytes_of(g: Graph, site: Site, x: str) -> list[tuple[str, int, int]]:
    """Input codes in uint8 with their zero-point and worth: themselves, or the two bytes of wide ones."""
    zero = site.grids.zeros[0]
    if site.grids.bits[0] <= MOST_BITS:
        return [(x, zero, 1)]
    base = g.constant(np.int32(_BYTE))
    upper, lower = (g.cast(g.node(kind, x, base), np.uint8) for kind in ("Div", "Mod"))
    return [(upper, zero // _BYTE, _BYTE), (lower, zero % _BYTE, 1)]


def _sums(g: Graph, site: Site, x: str, zero: int, codes: Codes) -> str:
    """``Σ (q_x − Z_x)(q_w − Z_w)`` in int32."""
    op = site.op
    zeros = g.constant(np.uint8(zero), name="zero"), g.constant(np.int8(codes.zero), name="zero", own=True)
    if isinstance(op, Conv):
        weight = codes.tensor if codes.array is None else g.constant(codes.array, np.int8, "weight", own=True)
        return g.node("ConvInteger", x, weight, *zeros, **conv_attributes(op))
    assert isinstance(op, Linear)
    if codes.array is not None:
        weight = g.constant(codes.array.T, np.int8, "weight", own=True)
    else:
        weight = g.node("Transpose", codes.tensor, perm=(1, 0))
    return g.node("MatMulInteger", x, weight, *zeros)
