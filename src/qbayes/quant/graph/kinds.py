"""Our kinds of nodes: what quantisation must know of each, and its fake-quantised layer."""

from collections.abc import Callable, Mapping
from typing import Any

from qbayes.integer.ops import MovingOp, Permute, Reshape, Slice, Upsample
from qbayes.posterior.sites import Mask
from qbayes.quant.graph.nodes import NARROW, LayerBuilder, Node, NodeKind, register_kind
from qbayes.quant.layers.base import UNLIMITED, Limits, QuantLayer
from qbayes.quant.layers.elementwise import (
    QuantAdd,
    QuantAffine,
    QuantConcat,
    QuantInput,
    QuantLookup,
    QuantMaskProduct,
    QuantMul,
    QuantNarrow,
    QuantReach,
    QuantRescale,
)
from qbayes.quant.layers.movement import (
    QuantAverage,
    QuantDropout,
    QuantMask,
    QuantMaxPool,
    QuantMove,
    QuantPad,
)


def register_moving(
    op: type[MovingOp],
    options: Callable[[Node], Mapping[str, Any]] = lambda node: node.options,
    *,
    copied: bool = False,
) -> NodeKind:
    """The kind of nodes that an op makes which only puts codes at other places; called like the op.

    Args:
        op: the class of the op.
        options: gives the op's own fields from a node; by default the node's options.
        copied: see ``NodeKind``.

    Example:
        ``register_moving(ChannelShuffle)`` for nodes with the options ``{"groups": 2}``.
    """

    def make(builder: LayerBuilder, node: Node) -> QuantLayer:
        return QuantMove(op, options(node))

    return register_kind(NodeKind(op.kind, make, moves=True, carries_wide=op.carries_wide, copied=copied))


def limits_of(node: Node) -> Limits:
    """The limits that were folded into a node, such as those of a ReLU behind it."""
    return node.options.get("clamp", UNLIMITED)


def _clamp(builder: LayerBuilder, node: Node) -> QuantLayer:
    return QuantRescale(builder.out(node), (node.options["low"], node.options["high"]))


def _mask(builder: LayerBuilder, node: Node) -> QuantLayer:
    assert isinstance(node.module, Mask)
    return QuantMask(node.module)


def _dropout(builder: LayerBuilder, node: Node) -> QuantLayer:
    assert node.module is not None
    return QuantDropout(node.module)


def _pad(builder: LayerBuilder, node: Node) -> QuantLayer:
    return QuantPad(node.options["amounts"], node.options["mode"], node.options["value"])


for _kind in (
    NodeKind("input", lambda b, n: QuantInput(b.out(n)), becomes_op=False, copied=True),
    NodeKind("weighted", lambda b, n: b.weighted_layer(n), multiplies=True, takes_limits=True, copied=True),
    NodeKind("norm", None, copied=True),
    NodeKind(
        "add",
        lambda b, n: QuantAdd(n.options["factors"], b.out(n), limits_of(n)),
        takes_limits=True,
        copied=True,
    ),
    NodeKind("mul", lambda b, n: QuantMul(b.out(n), limits_of(n)), multiplies=True, takes_limits=True),
    NodeKind(
        "concat",
        lambda b, n: QuantConcat(n.options["axis"], b.out(n), limits_of(n)),
        takes_limits=True,
        copied=True,
    ),
    NodeKind(
        "average",
        lambda b, n: QuantAverage(n.options, b.out(n), limits_of(n)),
        takes_limits=True,
        copied=True,
    ),
    NodeKind(
        "affine",
        lambda b, n: QuantAffine(n.options["gain"], n.options["offset"], b.out(n), limits_of(n)),
        takes_limits=True,
    ),
    NodeKind("unary", lambda b, n: QuantLookup(n.options["function"], n.options["label"], b.out(n))),
    NodeKind("clamp", _clamp, copied=True),
    NodeKind("reach", lambda b, n: QuantReach(n.options["value"], b.out(n))),
    NodeKind("product", lambda b, n: QuantMaskProduct(b.out(n)), multiplies=True),
    NodeKind(NARROW, lambda b, n: QuantNarrow(b.out(n))),
    NodeKind("max_pool", lambda b, n: QuantMaxPool(n.options), moves=True, copied=True),
    NodeKind("pad", _pad, moves=True),
    NodeKind("mask", _mask, moves=True, copied=True),
    NodeKind("dropout", _dropout, moves=True, carries_wide=True, becomes_op=False),
):
    register_kind(_kind)
register_moving(Reshape, lambda node: {"shape": node.shape}, copied=True)
register_moving(Permute, copied=True)
register_moving(Slice)
register_moving(Upsample)
