"""Element-wise functions of a float network in ONNX, by what was called in ``forward`` or as a layer.

A function that is not here is refused by its name: the float model is left out, the integers are not touched.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from qbayes.errors import BadInput
from qbayes.integer.onnx.graph import Graph
from qbayes.quant.graph.nodes import Node

Write = Callable[[Graph, str, Any], str]


def write_unary(g: Graph, node: Node, x: str) -> str:
    """The nodes of a ``unary`` node."""
    label, called = str(node.options["label"]), node.options["function"]
    kind, _, number = label.partition(" ")
    if number:
        return _with_number(g, node, kind, x)
    if kind.lower() in _SLOPED:
        return _write_with_slope(g, x, *_SLOPED[kind.lower()], called)
    write = _WRITERS.get(kind.lower())
    if write is None or _has_arguments(called):
        raise BadInput(
            "every function of a float network must have a form in ONNX here",
            f"{label} at '{node.name}'",
            "leave the float model out; the integer programs have it as a table",
        )
    return write(g, x, called)


def _has_arguments(function: Any) -> bool:
    """Whether a function was called with more than its input: such calls have no form here."""
    return isinstance(function, functools.partial) and any(function.args[1:])


def _write_with_slope(g: Graph, x: str, operator: str, name: str, default: float, called: Any) -> str:
    """A function of one number more: a layer's attribute, or an argument of the call."""
    if isinstance(called, functools.partial):
        more, named = called.args[1:]
        slope = more[0] if more else named.get(name, default)
    else:
        slope = getattr(called, name)
    return g.node(operator, x, alpha=float(slope))


def _with_number(g: Graph, node: Node, kind: str, x: str) -> str:
    """``x + 3``, ``3 − x`` and the like."""
    _, number, first = node.options["function"].args
    fixed = g.constant(np.float32(number))
    operator = {"add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div"}[kind]
    return g.node(operator, x, fixed) if first else g.node(operator, fixed, x)


def _plain(operator: str) -> Write:
    return lambda g, x, _: g.node(operator, x)


def _gelu(g: Graph, x: str, layer: Any) -> str:
    """``x Φ(x)``."""
    if getattr(layer, "approximate", "none") != "none":
        raise BadInput("GELU must be the exact one", "the tanh approximation", "leave the float model out")
    scaled = g.node("Erf", g.node("Mul", x, g.constant(np.float32(math.sqrt(0.5)))))
    return g.node("Mul", g.node("Mul", x, g.constant(np.float32(0.5))), g.node("Add", scaled, _one(g)))


def _softplus(g: Graph, x: str, layer: Any) -> str:
    if isinstance(layer, nn.Softplus) and (layer.beta, layer.threshold) != (1, 20):
        raise BadInput("Softplus must have β = 1 and threshold 20", f"{layer}", "leave the float model out")
    return g.node("Softplus", x)


def _prelu(g: Graph, x: str, layer: Any) -> str:
    return g.node("PRelu", x, g.constant(layer.weight.detach(), np.float32))


def _one(g: Graph) -> str:
    return g.constant(np.float32(1))


# operator, name of the number, and what it is where it was not given.
_SLOPED: dict[str, tuple[str, str, float]] = {
    **dict.fromkeys(("leakyrelu", "leaky_relu"), ("LeakyRelu", "negative_slope", 0.01)),
    "elu": ("Elu", "alpha", 1.0),
}
_WRITERS: dict[str, Write] = {
    **{
        name.lower(): _plain(name)
        for name in ("Sigmoid", "Tanh", "Exp", "Sqrt", "Abs", "Neg", "Sin", "Cos", "Erf", "Sign", "Round")
    },
    **{name: _plain(operator) for name, operator in (("softsign", "Softsign"), ("mish", "Mish"))},
    "hardswish": _plain("HardSwish"),
    "hardsigmoid": lambda g, x, _: g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "square": lambda g, x, _: g.node("Mul", x, x),
    "silu": lambda g, x, _: g.node("Mul", x, g.node("Sigmoid", x)),
    "selu": _plain("Selu"),
    "gelu": _gelu,
    "softplus": _softplus,
    "prelu": _prelu,
    "logsigmoid": lambda g, x, _: g.node("Neg", g.node("Softplus", g.node("Neg", x))),
    "tanhshrink": lambda g, x, _: g.node("Sub", x, g.node("Tanh", x)),
    "log1p": lambda g, x, _: g.node("Log", g.node("Add", x, _one(g))),
    "expm1": lambda g, x, _: g.node("Sub", g.node("Exp", x), _one(g)),
}
