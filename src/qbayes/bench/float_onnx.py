"""A float network as an ONNX model of one draw, as one would deploy it: raw rows in, the heads out.

Masks and Gaussian weights are drawn inside the graph by the runtime's own generator, anew in every run; the
network is otherwise written layer by layer, and what can be fused is left to the runtime. Shapes of what is
drawn come from the input, and no two ranges are alike: OpenVINO would fold such nodes into one constant.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from qbayes.errors import BadInput
from qbayes.integer.onnx.graph import Graph
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.mask import Mask
from qbayes.posterior.signature import Signature
from qbayes.quant.trace import Traced, trace

INPUT = "x"
ROWS = "rows"
OUTPUT = "output"
# every name that an output may have.
HEADS = frozenset({OUTPUT, "mean", "log_variance"})


def float_model(network: nn.Module, signature: Signature) -> Any:
    """The model of one member; a head is an output of its own name, a single one is ``output``."""
    example = torch.zeros(2, *signature.input_shape)
    return _Writer(trace(network, example), signature).write()


class _Writer:
    """Writes the nodes of a traced network one after the other."""

    def __init__(self, traced: Traced, signature: Signature) -> None:
        self.traced, self.signature = traced, signature
        self.g = Graph()
        self.names: dict[fx.Node, str] = {}

    def write(self) -> Any:
        for node in self.traced.nodes:
            if node.op == "placeholder":
                self.names[node] = self._standardised()
            elif node.op == "output":
                self._outputs(node.args[0])
            elif self.traced.is_tensor(node):
                self.names[node] = self._node(node)
        return self.g.model("network", "a float network, one draw")

    def _standardised(self) -> str:
        g, shape = self.g, self.signature.input_shape
        x = g.input(INPUT, np.float32, (ROWS, *shape))
        transform = self.signature.transform
        along = (-1, *(1,) * (len(shape) - 1))
        mean, std = (g.constant(part.view(along), np.float32) for part in (transform.mean, transform.std))
        return g.node("Div", g.node("Sub", x, mean), std)

    def _outputs(self, given: Any) -> None:
        heads: dict[str, fx.Node] = given if isinstance(given, dict) else {OUTPUT: given}
        for name, node in heads.items():
            row = self.traced.values[node].shape[1:]
            self.g.output(self.names[node], name, np.float32, (ROWS, *row))

    def _node(self, node: fx.Node) -> str:
        if node.op == "call_module":
            layer = self.traced.module.get_submodule(str(node.target))
            with self.g.scope(str(node.target)):
                return self._layer(layer, self.names[node.all_input_nodes[0]])
        if node.op == "call_function" and node.target in (operator.add, torch.add):
            return self.g.node("Add", *(self.names[part] for part in node.all_input_nodes))
        raise _unknown(f"{node.target}")

    def _layer(self, layer: nn.Module, x: str) -> str:
        for kind, write in _LAYERS.items():
            if isinstance(layer, kind):
                return write(self.g, layer, x)
        raise _unknown(type(layer).__name__)


def _weighted(g: Graph, layer: Any, x: str) -> str:
    """Conv2d or Linear with constant weights."""
    bias = [] if layer.bias is None else [g.constant(layer.bias.detach(), name="bias")]
    if isinstance(layer, nn.Linear):
        return g.node("Gemm", x, g.constant(layer.weight.detach(), name="weight"), *bias, transB=1)
    weight = g.constant(layer.weight.detach(), name="weight")
    return g.node("Conv", x, weight, *bias, **_placing(layer))


def _gaussian(g: Graph, layer: Any, x: str) -> str:
    """``w = μ + σ ε`` for the rows of one run."""
    weight = _drawn(g, x, layer.weight_mean, layer.weight_sigma)
    bias = [] if layer.bias_mean is None else [g.constant(layer.bias_mean.detach(), name="bias")]
    if layer.bias_mean is not None and layer.bias_rho is not None:
        bias = [_drawn(g, x, layer.bias_mean, nn.functional.softplus(layer.bias_rho))]
    if layer.weight_mean.ndim == 2:
        return g.node("Gemm", x, weight, *bias, transB=1)
    return g.node("Conv", x, weight, *bias, **_placing(layer.map))


def _drawn(g: Graph, x: str, mean: Tensor, sigma: Tensor) -> str:
    spread = float(g.serial())
    nothing = g.node("Mul", g.node("Shape", x, start=0, end=1), g.whole(0))
    blank = g.node("ConstantOfShape", g.node("Add", nothing, g.whole(*mean.shape)), value=g.zeros())
    normal = g.node("RandomNormalLike", blank, dtype=g.type_of(np.float32), mean=0.0, scale=spread)
    scaled = g.node("Mul", normal, g.constant((sigma / spread).detach(), name="sigma"))
    # the sum has the shape of the mean, which a runtime wants to know before a convolution.
    drawn = g.node("Add", scaled, g.constant(mean.detach(), name="mean"))
    return g.node("Reshape", drawn, g.whole(*mean.shape))


def _placing(layer: Any) -> dict[str, Any]:
    if isinstance(layer.padding, str) or getattr(layer, "mode", "zeros") != "zeros":
        raise _unknown(f"a convolution with padding {layer.padding}")
    return {
        "strides": list(layer.stride),
        "pads": [*layer.padding, *layer.padding],
        "dilations": list(layer.dilation),
        "group": layer.groups,
    }


def _norm(g: Graph, layer: Any, x: str) -> str:
    parts = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    return g.node("BatchNormalization", x, *(g.constant(part.detach()) for part in parts), epsilon=layer.eps)


def _mask(g: Graph, layer: Any, x: str) -> str:
    """``k x / (1 − p)``: kept where a uniform number is at least p."""
    if layer.rate == 0.0:
        return x
    shape = g.node("Shape", x)
    if layer.channelwise:
        first = g.node("Slice", shape, g.whole(0), g.whole(2), g.whole(0))
        shape = g.node("Concat", first, g.whole(1, 1), axis=0)
    top = float(g.serial())
    blank = g.node("ConstantOfShape", shape, value=g.zeros())
    uniform = g.node("RandomUniformLike", blank, dtype=g.type_of(np.float32), low=0.0, high=top)
    keep = g.cast(g.node("GreaterOrEqual", uniform, g.constant(np.float32(layer.rate * top))), np.float32)
    return g.node("Mul", x, g.node("Mul", keep, g.constant(np.float32(1 / (1 - layer.rate)))))


def _max_pool(g: Graph, layer: Any, x: str) -> str:
    size, stride, pad = (_pair(n) for n in (layer.kernel_size, layer.stride, layer.padding))
    return g.node("MaxPool", x, kernel_shape=size, strides=stride, pads=[*pad, *pad])


def _mean_pool(g: Graph, layer: Any, x: str) -> str:
    if _pair(layer.output_size) != [1, 1]:
        raise _unknown(f"AdaptiveAvgPool2d({layer.output_size})")
    return g.node("GlobalAveragePool", x)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _unknown(what: str) -> BadInput:
    return BadInput(
        "every step of the network must have a form in ONNX here", what, "add it to float_onnx.py"
    )


_LAYERS: dict[type[nn.Module], Callable[[Graph, Any, str], str]] = {
    GaussianLayer: _gaussian,
    Mask: _mask,
    nn.Conv2d: _weighted,
    nn.Linear: _weighted,
    nn.BatchNorm2d: _norm,
    nn.MaxPool2d: _max_pool,
    nn.AdaptiveAvgPool2d: _mean_pool,
    nn.Flatten: lambda g, layer, x: g.node("Flatten", x),
    nn.ReLU: lambda g, layer, x: g.node("Relu", x),
    nn.Tanh: lambda g, layer, x: g.node("Tanh", x),
    nn.Identity: lambda g, layer, x: x,
}
