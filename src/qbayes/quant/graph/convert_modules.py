"""Layers without weights that quantisation knows, and what to use in place of those it does not."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx, nn

from qbayes.quant.graph.nodes import Node

if TYPE_CHECKING:
    from qbayes.quant.graph.convert import Converter

ModuleRule = Callable[["Converter", fx.Node, Any, Node], Node]

_STATE = "recurrent layers keep a state along the sequence and cannot be one fixed list of integer operations"
_RECURRENT = f"{_STATE}: use 1-D convolutions over the sequence"
_NORMALISE = "it divides by a statistic of each row: use BatchNorm, which is folded"
_ATTENTION = (
    "attention is a product of two activations along features, which is not in the set: use convolutions"
)

# what to do instead, by the name of a layer or function.
WAYS_OUT: dict[str, str] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"), _RECURRENT),
    **dict.fromkeys(("MultiheadAttention", "scaled_dot_product_attention", "matmul", "bmm"), _ATTENTION),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerEncoder"), _ATTENTION),
    "einsum": "use nn.Linear on the last axis; a product of two activations along features is not in the set",
    **dict.fromkeys(("LayerNorm", "GroupNorm", "InstanceNorm2d", "layer_norm", "group_norm"), _NORMALISE),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "softmax", "log_softmax"), "return logits: the likelihood does it"
    ),
    **dict.fromkeys(
        ("ConvTranspose1d", "ConvTranspose2d"), "use nn.Upsample(mode='nearest') and a convolution"
    ),
    **dict.fromkeys(("dropout", "dropout2d"), "use an nn.Dropout module instead"),
    "Embedding": "feed the network numbers: one-hot inputs and a Linear layer do the same",
    "PReLU": "use LeakyReLU, or nn.PReLU() with a single slope",
    **dict.fromkeys(
        ("expand", "expand_as"), "products repeat by themselves; a constant head is left out: return the mean"
    ),
}


def _per_axis(value: Any, axes: int) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (int(value),) * axes


def check_spatial(to: "Converter", source: Node, wanted: Sequence[int]) -> int:
    """The number of spatial axes, one of ``wanted``: torch also takes inputs that have no rows."""
    axes = len(source.shape) - 1
    if axes not in wanted:
        raise to.refusal(
            f"a pooling of rows of shape {source.shape}", "pool rows of channels × 1 or 2 spatial axes"
        )
    return axes


def max_pool(
    to: "Converter",
    node: fx.Node,
    source: Node,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Node:
    """``q_o = max q`` over each window."""
    axes = check_spatial(to, source, (to.dimensions,))
    sizes = _per_axis(kernel, axes)
    options = {
        "kernel": sizes,
        # an empty list is torch's own spelling of "the kernel".
        "stride": _per_axis(stride, axes) if stride not in (None, [], ()) else sizes,
        "padding": _per_axis(padding, axes),
        "dilation": _per_axis(dilation, axes),
        "ceil_mode": bool(ceil_mode),
    }
    return to.add("max_pool", [source], to.where, to.traced.values[node].shape, options)


def average_pool(
    to: "Converter",
    node: fx.Node,
    source: Node,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The mean over each window."""
    axes = check_spatial(to, source, (to.dimensions,))
    sizes = _per_axis(kernel, axes)
    options = {
        "kernel": sizes,
        "stride": _per_axis(stride, axes) if stride not in (None, [], ()) else sizes,
        "padding": _per_axis(padding, axes),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(count_include_pad),
        "divisor": divisor_override,
        "adaptive": None,
    }
    return to.add("average", [source], to.where, to.traced.values[node].shape, options)


def adaptive_average(to: "Converter", source: Node, outputs: Sequence[int], name: str) -> Node:
    """The mean over windows that divide each axis into ``outputs`` parts, of uneven size where they must."""
    axes = check_spatial(to, source, (to.dimensions,) if to.dimensions else (1, 2))
    options = {
        "kernel": (1,) * axes,
        "stride": (1,) * axes,
        "padding": (0,) * axes,
        "ceil_mode": False,
        "count_include_pad": True,
        "divisor": None,
        "adaptive": tuple(outputs),
    }
    return to.add("average", [source], name, (0, source.shape[0], *outputs), options)


def adaptive_max(to: "Converter", node: fx.Node, source: Node) -> Node:
    check_spatial(to, source, (to.dimensions,))
    wanted = tuple(to.traced.values[node].shape[2:])
    if any(n % out for n, out in zip(source.shape[1:], wanted, strict=True)):
        raise to.refusal("an adaptive maximum over uneven windows", "choose sizes that divide the input's")
    kernel = tuple(n // out for n, out in zip(source.shape[1:], wanted, strict=True))
    return max_pool(to, node, source, kernel)


def upsample(to: "Converter", node: fx.Node, source: Node, mode: str) -> Node:
    """Each code repeated along the spatial axes."""
    shape = to.traced.values[node].shape
    check_spatial(to, source, (1, 2))
    factors = [out / n for out, n in zip(shape[2:], source.shape[1:], strict=True)]
    if mode not in ("nearest", "nearest-exact") or any(f != int(f) for f in factors):
        raise to.refusal(
            f"upsampling by '{mode}' from {source.shape} to {tuple(shape[1:])}",
            "use mode='nearest' with whole factors, and a convolution behind it",
        )
    return to.add("upsample", [source], to.where, shape, {"factors": tuple(int(f) for f in factors)})


def pad_last_axes(to: "Converter", source: Node, around: Sequence[int], mode: str, value: float) -> Node:
    """``around`` as F.pad has it: the last axis first, each side by itself."""
    pairs = [(int(a), int(b)) for a, b in zip(around[::2], around[1::2], strict=True)]
    missing = len(source.shape) - len(pairs)
    if missing < 0:
        raise to.refusal(f"a padding of the rows by {list(around)}", "pad the axes behind the rows")
    return to.pad(source, [(0, 0)] * missing + pairs[::-1], mode, value, to.where)


def _unary(to: "Converter", node: fx.Node, module: nn.Module, source: Node) -> Node:
    if isinstance(module, nn.PReLU) and module.num_parameters > 1:
        raise to.refusal("a PReLU with a slope for each channel", WAYS_OUT["PReLU"])
    module.requires_grad_(True)  # that of a posterior is frozen; a slope learns on.
    return to.unary(source, module, to.where, type(module).__name__)


def _reshape(to: "Converter", node: fx.Node, module: nn.Module, source: Node) -> Node:
    return to.reshape(source, to.traced.values[node].shape, to.where)


def _pool(module: Any) -> dict[str, Any]:
    names = ("stride", "padding", "dilation", "ceil_mode", "count_include_pad", "divisor_override")
    return {name: getattr(module, name) for name in names if hasattr(module, name)}


def _around(module: Any) -> Sequence[int]:
    return module.padding


_UNARY = (
    nn.Sigmoid, nn.Tanh, nn.SiLU, nn.GELU, nn.Hardswish, nn.Hardsigmoid, nn.ELU, nn.SELU, nn.CELU,
    nn.LeakyReLU, nn.Softplus, nn.Mish, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Softshrink,
    nn.Hardshrink, nn.Threshold, nn.PReLU,
)  # fmt: skip

MODULES: dict[type[nn.Module], ModuleRule] = {
    nn.Identity: lambda to, node, module, source: source,
    nn.ReLU: lambda to, node, module, source: to.clamp(source, 0.0, math.inf, to.where),
    nn.ReLU6: lambda to, node, module, source: to.clamp(source, 0.0, 6.0, to.where),
    nn.Hardtanh: lambda to, node, module, source: to.clamp(source, module.min_val, module.max_val, to.where),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys((nn.Flatten, nn.Unflatten), _reshape),
    **dict.fromkeys(
        (nn.MaxPool1d, nn.MaxPool2d),
        lambda to, node, module, source: max_pool(to, node, source, module.kernel_size, **_pool(module)),
    ),
    **dict.fromkeys(
        (nn.AvgPool1d, nn.AvgPool2d),
        lambda to, node, module, source: average_pool(to, node, source, module.kernel_size, **_pool(module)),
    ),
    **dict.fromkeys(
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        lambda to, node, module, source: adaptive_average(
            to, source, tuple(to.traced.values[node].shape[2:]), to.where
        ),
    ),
    **dict.fromkeys(
        (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
        lambda to, node, module, source: adaptive_max(to, node, source),
    ),
    **dict.fromkeys(
        (nn.ConstantPad1d, nn.ConstantPad2d, nn.ZeroPad1d, nn.ZeroPad2d),
        lambda to, node, module, source: pad_last_axes(to, source, _around(module), "constant", module.value),
    ),
    **dict.fromkeys(
        (nn.ReflectionPad1d, nn.ReflectionPad2d),
        lambda to, node, module, source: pad_last_axes(to, source, _around(module), "reflect", 0.0),
    ),
    **dict.fromkeys(
        (nn.ReplicationPad1d, nn.ReplicationPad2d),
        lambda to, node, module, source: pad_last_axes(to, source, _around(module), "replicate", 0.0),
    ),
    **dict.fromkeys(
        (nn.Upsample, nn.UpsamplingNearest2d),
        lambda to, node, module, source: upsample(to, node, source, module.mode),
    ),
}
