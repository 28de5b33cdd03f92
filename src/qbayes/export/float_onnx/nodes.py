"""One node of a float network as ONNX operators: the kinds of ``quant.nodes``, before anything is folded.

Where ONNX has an operator for a layer it is written, and not what it is made of: runtimes have kernels for
these, and fuse them (a ``BatchNormalization`` into the convolution before it).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qbayes.errors import BadInput
from qbayes.export.float_onnx.unary import write_unary
from qbayes.integer.arithmetic.pooling_windows import all_windows, divisors
from qbayes.integer.onnx.graph import Graph
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.quant.graph.nodes import Node

Write = Callable[[Graph, Node, Sequence[str]], str]
WRITERS: dict[str, Write] = {}


def writes(*kinds: str) -> Callable[[Write], Write]:
    """Register a function as what writes the nodes of these kinds."""

    def register(write: Write) -> Write:
        WRITERS.update(dict.fromkeys(kinds, write))
        return write

    return register


def write_node(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    """The result of a node that draws nothing."""
    with g.scope(node.name):
        write = WRITERS.get(node.kind)
        if write is None:
            raise BadInput(
                "every step of a float network must have a form in ONNX here",
                f"'{node.name}', a {node.kind}",
                "leave the float model out, or register one (qbayes.export.float_onnx.nodes.writes)",
            )
        return write(g, node, inputs)


def write_weighted(g: Graph, node: Node, x: str, weight: str, bias: str | None) -> str:
    """A Linear or a convolution with these weights."""
    with g.scope(node.name):
        geometry = node.options["geometry"]
        if geometry is None:
            return _linear(g, node, x, weight, bias)
        pads = [int(side) for side in geometry["padding"]]
        return g.node(
            "Conv",
            *_arguments(x, weight, bias),
            strides=list(geometry["stride"]),
            dilations=list(geometry["dilation"]),
            group=geometry["groups"],
            pads=[*pads, *pads],
        )


def _linear(g: Graph, node: Node, x: str, weight: str, bias: str | None) -> str:
    """``x Wᵀ + b`` along the last axis; ``Gemm`` takes rows of one axis only."""
    if len(node.shape) == 1:
        return g.node("Gemm", *_arguments(x, weight, bias), transB=1)
    y = g.node("MatMul", x, g.node("Transpose", weight, perm=[1, 0]))
    return y if bias is None else g.node("Add", y, bias)


def _arguments(*tensors: str | None) -> list[str]:
    return [tensor for tensor in tensors if tensor is not None]


def point_weights(g: Graph, node: Node) -> tuple[str, str | None]:
    """The weights of a layer that draws none, as constants; a Gaussian layer's are its means."""
    layer: Any = node.module
    names = ("weight_mean", "bias_mean") if isinstance(layer, GaussianLayer) else ("weight", "bias")
    weight, bias = (getattr(layer, name) for name in names)
    held = g.constant(weight.detach(), np.float32, f"{node.name}.weight")
    return held, None if bias is None else g.constant(bias.detach(), np.float32, f"{node.name}.bias")


def _along_channels(numbers: Any, node: Node) -> np.ndarray:
    """One number a channel, shaped to broadcast over the node's output."""
    return np.asarray(numbers, np.float32).reshape(-1, *(1,) * (len(node.shape) - 1))


@writes("norm")
def _norm(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    layer: Any = node.module
    mean, variance = layer.running_mean.detach(), layer.running_var.detach()
    gain = torch.ones_like(mean) if layer.weight is None else layer.weight.detach()
    shift = torch.zeros_like(mean) if layer.bias is None else layer.bias.detach()
    parts = (g.constant(part, np.float32) for part in (gain, shift, mean, variance))
    return g.node("BatchNormalization", inputs[0], *parts, epsilon=layer.eps)


@writes("affine")
def _affine(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    gain, offset = (g.constant(_along_channels(node.options[name], node)) for name in ("gain", "offset"))
    return g.node("Add", g.node("Mul", inputs[0], gain), offset)


@writes("add")
def _add(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    parts = [
        part if factor == 1 else g.node("Mul", part, g.constant(np.float32(factor)))
        for part, factor in zip(inputs, node.options["factors"], strict=True)
    ]
    return g.node("Add", *parts)


@writes("clamp")
def _clamp(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    low, high = node.options["low"], node.options["high"]
    if (low, high) == (0.0, math.inf):
        return g.node("Relu", inputs[0])
    x = inputs[0] if low == -math.inf else g.node("Max", inputs[0], g.constant(np.float32(low)))
    return x if high == math.inf else g.node("Min", x, g.constant(np.float32(high)))


@writes("max_pool")
def _max_pool(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    options = node.options
    return g.node(
        "MaxPool",
        inputs[0],
        kernel_shape=list(options["kernel"]),
        strides=list(options["stride"]),
        dilations=list(options["dilation"]),
        pads=[*options["padding"], *options["padding"]],
        ceil_mode=int(options["ceil_mode"]),
    )


@writes("average")
def _average(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    options = node.options
    if options["adaptive"] is not None and set(options["adaptive"]) == {1}:
        return g.node("GlobalAveragePool", inputs[0])
    if options["adaptive"] is not None or options["divisor"] is not None or options["ceil_mode"]:
        return _window_sums(g, node, inputs)
    return g.node(
        "AveragePool",
        inputs[0],
        kernel_shape=list(options["kernel"]),
        strides=list(options["stride"]),
        pads=[*options["padding"], *options["padding"]],
        count_include_pad=int(options["count_include_pad"]),
    )


def _window_sums(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    """What no operator averages: a product with a matrix of ones for each axis, and a division."""
    options, lengths = node.options, node.inputs[0].shape[1:]
    shared = {name: options[name] for name in ("kernel", "stride", "padding", "ceil_mode", "adaptive")}
    windows = all_windows(lengths, **shared)
    counts = divisors(
        lengths, **shared, count_include_pad=options["count_include_pad"], divisor=options["divisor"]
    ).numpy()
    inside = [
        np.array([[a <= at < b for a, b in along] for at in range(length)], np.float32)
        for along, length in zip(windows, lengths, strict=True)
    ]
    sums = g.node("MatMul", inputs[0], g.constant(inside[-1]))
    if len(inside) == 2:
        sums = g.node("MatMul", g.constant(np.ascontiguousarray(inside[0].T)), sums)
    return g.node("Div", sums, g.constant(counts.astype(np.float32)))


@writes("pad")
def _pad(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    begins, ends = ([pair[at] for pair in node.options["amounts"]] for at in (0, 1))
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}[node.options["mode"]]
    fill = g.constant(np.float32(node.options["value"]))
    return g.node("Pad", inputs[0], g.whole(0, *begins, 0, *ends), fill, mode=mode)


@writes("slice")
def _slice(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    o = node.options
    places = (o["start"], o["stop"], o["axis"], o["step"])
    return g.node("Slice", inputs[0], *(g.whole(place) for place in places))


@writes("upsample")
def _upsample(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    scales = np.array([1, 1, *node.options["factors"]], np.float32)
    return g.node(
        "Resize",
        *(inputs[0], "", g.constant(scales)),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@writes("mul")
def _mul(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    return g.node("Mul", *inputs)


@writes("concat")
def _concat(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    return g.node("Concat", *inputs, axis=node.options["axis"])


@writes("unary")
def _unary(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    return write_unary(g, node, inputs[0])


@writes("reshape")
def _reshape(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    return g.node("Reshape", inputs[0], g.whole(-1, *node.shape))


@writes("permute")
def _permute(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    return g.node("Transpose", inputs[0], perm=list(node.options["order"]))


@writes("reach", "dropout")
def _nothing(g: Graph, node: Node, inputs: Sequence[str]) -> str:
    """Grids are no matter here, and what drops in training alone drops nothing."""
    return inputs[0]
