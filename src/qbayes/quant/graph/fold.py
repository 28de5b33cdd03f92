"""Folding batch normalisation into the layer before it, and activations into what computes them.

In evaluation ``BN(y) = γ (y − m) / √(v + ε) + β = g y + (β − g m)`` with ``g = γ / √(v + ε)``. Behind a layer
with weights it becomes part of them: ``w ← g w``, ``b ← g b + β − g m``, for a Gaussian layer mean and
deviation alike, with the sign of g (a negative one turns the draw round). Where it cannot be folded (behind
anything but a layer, behind a layer with other readers, or one that is called twice) it stays as an
``affine`` node. It is never folded forward: across zero padding that would be wrong.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.quant.graph.nodes import Graph, Node


def fold(graph: Graph) -> Graph:
    """Fold norms and clamps in place; a folded norm leaves ``gain`` and ``shift`` in the layer's options."""
    for node in [node for node in graph.nodes if node.kind == "norm"]:
        _fold_norm(graph, node)
    for node in [node for node in graph.nodes if node.kind == "clamp"]:
        _fold_clamp(graph, node)
    return graph


def norm_constants(norm: Any) -> tuple[Tensor, Tensor]:
    """``(g, β − g m)`` of a BatchNorm in evaluation."""
    variance, mean = norm.running_var.detach().double(), norm.running_mean.detach().double()
    gain = (variance + norm.eps).rsqrt()
    if norm.weight is not None:
        gain = gain * norm.weight.detach().double()
    shift = -gain * mean
    if norm.bias is not None:
        shift = shift + norm.bias.detach().double()
    return gain.float(), shift.float()


def _fold_norm(graph: Graph, node: Node) -> None:
    assert isinstance(node.module, nn.Module)
    layer = node.inputs[0]
    gain, shift = norm_constants(node.module)
    calls = [other for other in graph.nodes if other.module is layer.module and other.kind == "weighted"]
    alone = len(graph.users(layer)) == 1 and not graph.is_head(layer)
    linear_on_rows = layer.options.get("geometry") is not None or len(layer.shape) == 1
    if (
        layer.kind == "weighted"
        and len(calls) == 1
        and alone
        and linear_on_rows
        and "gain" not in layer.options
    ):
        layer.options |= {"gain": gain, "shift": shift, "norm": node.name}
        graph.bypass(node, layer)
        return
    node.kind, node.module = "affine", None
    node.options |= {"gain": gain, "offset": shift}


def _fold_clamp(graph: Graph, node: Node) -> None:
    """ReLU and its kin are limits on the codes of the op that computes them, where nobody else reads it."""
    source = node.inputs[0]
    if source.traits.takes_limits and len(graph.users(source)) == 1 and not graph.is_head(source):
        low, high = node.options["low"], node.options["high"]
        # limits behind limits: the earlier ones, themselves held between the later.
        earlier = source.options.get("clamp", (-math.inf, math.inf))
        limits = tuple(min(max(limit, low), high) for limit in earlier)
        source.options |= {"clamp": limits, "activation": node.name}
        graph.bypass(node, source)


def fold_weight(weight: Tensor, gain: Tensor | None) -> Tensor:
    """``g w`` along the output channels."""
    if gain is None:
        return weight
    return weight * gain.to(weight).view(-1, *(1,) * (weight.ndim - 1))


def fold_bias(bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, channels: int) -> Tensor:
    """``g b + (β − g m)``; a layer without a bias gets one of zeros."""
    start = torch.zeros(channels) if bias is None else bias.detach()
    if gain is None or shift is None:
        return start.clone()
    return start * gain.to(start) + shift.to(start)
