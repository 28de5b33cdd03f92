"""Functions and tensor methods that quantisation knows, by what is called in ``forward``."""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from qbayes.quant.graph.convert_modules import (
    adaptive_average,
    adaptive_max,
    average_pool,
    check_spatial,
    max_pool,
    pad_last_axes,
    upsample,
)
from qbayes.quant.graph.nodes import Node

if TYPE_CHECKING:
    from qbayes.quant.graph.convert import Converter

Options = Mapping[str, Any]
CallRule = Callable[["Converter", fx.Node, Sequence[Any], Options], Node]


def _name_arguments(args: Sequence[Any], options: Options, names: Sequence[str]) -> dict[str, Any]:
    """Positional and named arguments behind the first, by name."""
    return {**dict(zip(names, args[1:], strict=False)), **options}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _arithmetic(function: Callable[..., Any]) -> CallRule:
    """``+``, ``−``, ``×`` and ``/`` between activations, numbers and constants of the network."""

    def convert(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
        left, right = args[0], args[1] if len(args) > 1 else options["other"]
        factor = float(options.get("alpha", 1))
        if options.get("rounding_mode") is not None:
            raise to.refusal("a division that rounds", "divide without rounding")
        known = [isinstance(side, fx.Node) and side in to.found for side in (left, right)]
        if all(known):
            return _of_two(to, node, function, to.tensor(left), to.tensor(right), factor)
        # an activation that is not known (changed in place) is refused by its own name.
        unknown = isinstance(left, fx.Node) and left not in to.traced.fixed
        source = to.tensor(left if known[0] or unknown else right)
        other: Any = right if known[0] else left
        if _is_number(other):
            fixed = other * factor
            bound = functools.partial(_with_number, function, fixed, known[0])
            return to.unary(source, bound, to.where, f"{function.__name__} {fixed:g}")
        constant = to.constant(other)
        if constant is None:
            raise to.refusal(f"an operand {other!r}", "combine activations, numbers and parameters")
        return _with_constant(to, node, function, source, constant * factor, known[0])

    return convert


def _with_number(function: Callable[..., Any], number: float, first: bool, x: Tensor) -> Tensor:
    return function(x, number) if first else function(number, x)


def _of_two(
    to: "Converter", node: fx.Node, function: Callable[..., Any], left: Node, right: Node, factor: float
) -> Node:
    shape = to.traced.values[node].shape
    if function is operator.truediv:
        raise to.refusal("a quotient of two activations", "multiply by a function of the divisor instead")
    if len(left.shape) != len(right.shape):
        # torch would put the rows of the one beside another axis of the other.
        raise to.refusal(
            f"activations of shapes {left.shape} and {right.shape}", "give both the same number of axes"
        )
    if function is operator.mul:
        return to.add("mul", [left, right], to.where, shape)
    second = factor if function is operator.add else -factor
    return to.add("add", [left, right], to.where, shape, {"factors": (1.0, second)})


def _with_constant(
    to: "Converter", node: fx.Node, function: Callable[..., Any], source: Node, constant: Tensor, first: bool
) -> Node:
    if tuple(to.traced.values[node].shape[1:]) != source.shape:
        raise to.refusal("a constant that widens the activation", "give it a shape that broadcasts to it")
    if function is operator.add:
        return to.affine(source, None, constant, to.where)
    if function is operator.mul:
        return to.affine(source, constant, None, to.where)
    if function is operator.sub:
        minus = torch.tensor(-1.0)
        return to.affine(source, None if first else minus, -constant if first else constant, to.where)
    if function is operator.truediv and first:
        return to.affine(source, 1.0 / constant, None, to.where)
    raise to.refusal(f"a {function.__name__} with a constant tensor", "write it with +, − and ×")


def _unary(function: Callable[..., Tensor], label: str) -> CallRule:
    """An element-wise function of one activation; further arguments are numbers."""

    def convert(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
        plain = {name: value for name, value in options.items() if name != "inplace"}
        fixed = [value for value in args[1:] if not isinstance(value, bool)]
        if any(isinstance(value, fx.Node | Tensor) for value in (*fixed, *plain.values())):
            raise to.refusal(f"{label} of two tensors", "give numbers for the further arguments")
        bound = functools.partial(_apply, function, tuple(fixed), plain)
        return to.unary(to.tensor(args[0]), bound, to.where, label)

    return convert


def _apply(function: Callable[..., Tensor], more: tuple[Any, ...], named: Options, x: Tensor) -> Tensor:
    return function(x, *more, **named)


def _clamp(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("min", "max"))
    low = given.get("min", given.get("min_val"))
    high = given.get("max", given.get("max_val"))
    if any(value is not None and not _is_number(value) for value in (low, high)):
        raise to.refusal("a clamp between tensors", "clamp between numbers")
    below, above = -math.inf if low is None else low, math.inf if high is None else high
    return to.clamp(to.tensor(args[0]), below, above, to.where)


def _hardtanh(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("min_val", "max_val", "inplace"))
    return to.clamp(to.tensor(args[0]), given.get("min_val", -1.0), given.get("max_val", 1.0), to.where)


def _relu(high: float) -> CallRule:
    return lambda to, node, args, options: to.clamp(to.tensor(args[0]), 0.0, high, to.where)


def _concat(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("dim",))
    axis = int(given.get("dim", given.get("axis", 0)))
    sources = [to.tensor(part) for part in args[0]]
    shape = to.traced.values[node].shape
    axis = axis % len(shape)
    if axis == 0:
        raise to.refusal("a concatenation along the rows", "concatenate channels or positions")
    if len(sources) == 1:
        return sources[0]
    return to.add("concat", sources, to.where, shape, {"axis": axis})


def _max_pool(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = _name_arguments(args, options, names)
    given.pop("return_indices", None)
    return max_pool(to, node, to.tensor(args[0]), given.pop("kernel_size"), **given)


def _average_pool(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    given = _name_arguments(args, options, names)
    return average_pool(to, node, to.tensor(args[0]), given.pop("kernel_size"), **given)


def _adaptive_average(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    return adaptive_average(to, to.tensor(args[0]), tuple(to.traced.values[node].shape[2:]), to.where)


def _adaptive_max(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    return adaptive_max(to, node, to.tensor(args[0]))


def _mean(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("dim", "keepdim"))
    source, dims = to.tensor(args[0]), given.get("dim", given.get("axis"))
    if dims is None:
        raise to.refusal("a mean over the rows", "name the spatial axes: x.mean((2, 3))")
    axes = {axis % (len(source.shape) + 1) for axis in ((dims,) if isinstance(dims, int) else dims)}
    shape = to.traced.values[node].shape
    if source.shape[1:] == () and axes == {1}:
        source = to.reshape(source, (0, 1, *source.shape), f"{to.where}.row")
        axes = {2}
    if not axes or min(axes) < 2:
        raise to.refusal(
            "a mean over rows or channels", "take means over spatial axes, or use a 1×1 convolution"
        )
    check_spatial(to, source, (1, 2))
    outputs = [1 if axis + 2 in axes else n for axis, n in enumerate(source.shape[1:])]
    pooled = adaptive_average(to, source, outputs, to.where)
    return to.reshape(pooled, shape, f"{to.where}.shape")


def _reshape(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    return to.reshape(to.tensor(args[0]), to.traced.values[node].shape, to.where)


def _same(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    dtype = to.traced.values[node].dtype
    if not dtype.is_floating_point:
        raise to.refusal(f"a conversion to {dtype}", "keep activations in floating point")
    return to.tensor(args[0])


def _permute(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    dims = options.get("dims", args[1:])
    order: Sequence[int] = dims[0] if len(dims) == 1 and isinstance(dims[0], Sequence) else dims
    return _order(to, node, to.tensor(args[0]), [int(axis) for axis in order])


def _transpose(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("dim0", "dim1"))
    source = to.tensor(args[0])
    axes = list(range(len(source.shape) + 1))
    first, second = (int(given[name]) % len(axes) for name in ("dim0", "dim1"))
    axes[first], axes[second] = axes[second], axes[first]
    return _order(to, node, source, axes)


def _order(to: "Converter", node: fx.Node, source: Node, order: list[int]) -> Node:
    order = [axis % len(order) for axis in order]
    if order[0] != 0:
        raise to.refusal("a permutation that moves the rows", "keep the batch on the first axis")
    return to.add("permute", [source], to.where, to.traced.values[node].shape, {"order": tuple(order)})


def _pad(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("pad", "mode", "value"))
    mode = given.get("mode", "constant")
    return pad_last_axes(to, to.tensor(args[0]), given["pad"], mode, given.get("value") or 0.0)


def _interpolate(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    given = _name_arguments(args, options, ("size", "scale_factor", "mode"))
    return upsample(to, node, to.tensor(args[0]), given.get("mode", "nearest"))


def _getitem(to: "Converter", node: fx.Node, args: Sequence[Any], options: Options) -> Node:
    held, index = node.args[0], args[1]
    if isinstance(held, fx.Node) and isinstance(to.traced.values[held], tuple | list):
        return _part(to, node, held, int(index))
    source = to.tensor(args[0])
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        named = sum(part is not None and part is not Ellipsis for part in parts)
        parts[at : at + 1] = [slice(None)] * (len(source.shape) + 1 - named)
    plain = [part for part in parts if part is not None] or [slice(None)]
    if plain[0] != slice(None):
        raise to.refusal("an index over the rows", "take whole rows: x[:, …]")
    result = source
    for axis, part in enumerate(plain[1:], start=1):
        length = source.shape[axis - 1]
        if not isinstance(part, slice | int) or isinstance(part, bool):
            raise to.refusal(f"an index {part!r}", "use slices and whole numbers")
        start = part % length if isinstance(part, int) else 0
        span = range(start, start + 1) if isinstance(part, int) else range(*part.indices(length))
        result = to.slice(result, axis, span.start, span.stop, span.step, to.where)
    return to.reshape(result, to.traced.values[node].shape, f"{to.where}.shape")


def _part(to: "Converter", node: fx.Node, held: fx.Node, index: int) -> Node:
    """One piece of a chunk or split: a slice."""
    pieces = to.traced.values[held]
    source = to.tensor(held.all_input_nodes[0])
    whole, piece = (0, *source.shape), pieces[index].shape
    differing = [axis for axis in range(1, len(whole)) if whole[axis] != piece[axis]]
    if len(pieces) == 1 or not differing:
        return source
    axis = differing[0]
    index = index % len(pieces)
    start = sum(p.shape[axis] for p in pieces[:index])
    return to.slice(source, axis, start, start + piece[axis], 1, to.where)


_UNARY_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "square": torch.square,
    "neg": torch.neg,
    "sin": torch.sin,
    "cos": torch.cos,
    "pow": torch.pow,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "sign": torch.sign,
    "round": torch.round,
}
_FUNCTIONALS: tuple[Callable[..., Tensor], ...] = (
    F.silu, F.gelu, F.hardswish, F.hardsigmoid, F.elu, F.selu, F.celu, F.leaky_relu, F.softplus, F.mish,
    F.logsigmoid, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink, F.threshold,
)  # fmt: skip

CALLS: dict[Any, CallRule] = {
    **{getattr(torch, name): _unary(function, name) for name, function in _UNARY_FUNCTIONS.items()},
    **{function: _unary(function, function.__name__) for function in _FUNCTIONALS},
    operator.neg: _unary(torch.neg, "neg"),
    operator.pow: _unary(torch.pow, "pow"),
    **dict.fromkeys((operator.add, torch.add), _arithmetic(operator.add)),
    **dict.fromkeys((operator.sub, torch.sub, torch.subtract), _arithmetic(operator.sub)),
    **dict.fromkeys((operator.mul, torch.mul, torch.multiply), _arithmetic(operator.mul)),
    **dict.fromkeys((operator.truediv, torch.div, torch.divide), _arithmetic(operator.truediv)),
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, F.relu_), _relu(math.inf)),
    F.relu6: _relu(6.0),
    F.hardtanh: _hardtanh,
    **dict.fromkeys((torch.clamp, torch.clip), _clamp),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _concat),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, torch.max_pool1d, torch.max_pool2d), _max_pool),
    **dict.fromkeys((F.avg_pool1d, F.avg_pool2d), _average_pool),
    **dict.fromkeys((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d), _adaptive_average),
    **dict.fromkeys((F.adaptive_max_pool1d, F.adaptive_max_pool2d), _adaptive_max),
    torch.mean: _mean,
    **dict.fromkeys(
        (torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze, torch.unflatten), _reshape
    ),
    torch.permute: _permute,
    **dict.fromkeys((torch.transpose, torch.swapaxes), _transpose),
    F.pad: _pad,
    F.interpolate: _interpolate,
    operator.getitem: _getitem,
}

METHODS_OF_TENSORS: dict[Any, CallRule] = {
    **{name: _unary(function, name) for name, function in _UNARY_FUNCTIONS.items()},
    **{f"{name}_": _unary(function, name) for name, function in _UNARY_FUNCTIONS.items()},
    **dict.fromkeys(("add", "add_"), _arithmetic(operator.add)),
    **dict.fromkeys(("sub", "sub_", "subtract"), _arithmetic(operator.sub)),
    **dict.fromkeys(("mul", "mul_", "multiply", "multiply_"), _arithmetic(operator.mul)),
    **dict.fromkeys(("div", "div_"), _arithmetic(operator.truediv)),
    **dict.fromkeys(("relu", "relu_"), _relu(math.inf)),
    **dict.fromkeys(("clamp", "clamp_", "clip"), _clamp),
    "mean": _mean,
    **dict.fromkeys(("view", "reshape", "flatten", "squeeze", "unsqueeze", "unflatten"), _reshape),
    **dict.fromkeys(("contiguous", "clone", "detach", "float", "to", "type_as"), _same),
    "permute": _permute,
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
}

# calls that give several tensors, of which getitem then takes one.
SEVERAL: frozenset[Any] = frozenset(
    {torch.chunk, torch.split, torch.tensor_split, "chunk", "split", "tensor_split"}
)
