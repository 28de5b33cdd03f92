"""From the traced network to nodes: every spelling of an operation becomes one kind, or is refused.

Members of one structure share a trace.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qbayes.errors import BadInput
from qbayes.posterior.gaussian import WEIGHTED_TYPES, GaussianLayer
from qbayes.posterior.sites import Mask, Masked
from qbayes.quant.graph.capture import CAPTURES, Capture
from qbayes.quant.graph.convert_calls import CALLS, METHODS_OF_TENSORS, SEVERAL
from qbayes.quant.graph.convert_modules import MODULES, WAYS_OUT
from qbayes.quant.graph.nodes import Graph, Node
from qbayes.quant.graph.trace import Traced, is_leaf, torch_type, trace

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# how torch calls the first argument of its functions.
_FIRST = ("input", "tensors", "tensor", "self")


def graph_of(network: nn.Module, example: Tensor) -> Graph:
    """The nodes of ``network``, with shapes from a batch of network inputs."""
    if is_leaf(network) or isinstance(network, Masked):
        # tracing looks inside of what it is given: a layer that is a network needs something around it.
        network = nn.Sequential(OrderedDict(network=network))
    return Converter(network, trace(network, example)).run()


class Converter:
    """Walks the traced nodes in order and keeps, for each that is a tensor, our node."""

    def __init__(self, network: nn.Module, traced: Traced) -> None:
        self.network, self.traced = network, traced
        self.nodes: list[Node] = []
        self.found: dict[fx.Node, Node] = {}
        self.names: set[str] = set()
        # a call must not take the name of a layer: precisions are overridden by those.
        self.layers = {self.plain_name(name) for name, _ in network.named_modules() if name}
        self.where = ""
        # the spatial axes that the name of what is called has: 2 of max_pool2d, 0 where it has none.
        self.dimensions = 0

    def run(self) -> Graph:
        heads: dict[str, Node] = {}
        for node in self.traced.nodes:
            called = node.op == "call_module"
            self.where = self.plain_name(str(node.target)) if called else self._free(node.name, self.layers)
            if node.op == "output":
                heads = self._heads(node.args[0])
            elif self.traced.is_tensor(node) and node not in self.traced.fixed:
                self.found[node] = self._convert(node)
            elif node not in self.traced.fixed:
                self._check_skipped(node)
            self._note_changes(node)
        # what the trace froze of the network's own numbers would be another network's there.
        graph = Graph(self.nodes, heads, None if self.traced.fixed else self.traced.module)
        graph.prune()
        return graph

    def _check_skipped(self, node: fx.Node) -> None:
        """What is no tensor is a size, or the pieces of a chunk or split; a layer gives one tensor."""
        value = self.traced.values[node]
        several = isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value)
        if node.op == "call_module":
            kind = type(self.traced.module.get_submodule(str(node.target))).__name__
            raise self.refusal(f"a layer {kind}", WAYS_OUT.get(kind, _OTHER_WAY))
        if several and node.target not in SEVERAL:
            raise self.refusal(f"a call of {node.name}", WAYS_OUT.get(node.name, _OTHER_WAY))

    def _note_changes(self, node: fx.Node) -> None:
        """Who reads a tensor that was changed in place reads the change; of a part of one, nobody may."""
        value = self.traced.values.get(node)
        for earlier in self.traced.changed.get(node, []):
            if earlier in self.traced.fixed:
                raise self.refusal("a constant that forward changes", "keep no state between calls")
            if node in self.found and _is_alias(self.traced.values[earlier], value):
                self.found[earlier] = self.found[node]
            else:
                self.found.pop(earlier, None)

    def _heads(self, answer: Any) -> dict[str, Node]:
        named = answer if isinstance(answer, dict) else {"": answer}
        for name, node in named.items():
            if not isinstance(node, fx.Node) or node not in self.found:
                raise self.refusal(f"the output '{name}', {node}", "return activations, one tensor or a dict")
        return {str(name): self.found[node] for name, node in named.items()}

    def _convert(self, node: fx.Node) -> Node:
        shape = tuple(self.traced.values[node].shape)
        if node.op == "placeholder":
            if any(known.kind == "input" for known in self.nodes):
                raise self.refusal("a second input", "give the network one input tensor")
            return self.add("input", [], self._free("input", self.layers), shape)
        if not shape or shape[0] != self.traced.rows or 0 in shape:
            raise self.refusal(
                f"a result of shape {shape} for {self.traced.rows} rows",
                "keep the batch on the first axis: x.flatten(1), never a reshape over the rows",
            )
        args, options = self._arguments(node)
        if node.target in CAPTURES:
            return self._convert_captured_call(CAPTURES[node.target], node, args, options)
        if node.op == "call_module":
            return self._module(node, self.traced.module.get_submodule(str(node.target)), args)
        table = CALLS if node.op == "call_function" else METHODS_OF_TENSORS
        convert = table.get(node.target)
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
        self.dimensions = _dimensions(str(called))
        if convert is None:
            raise self.refusal(f"a call of {called}", WAYS_OUT.get(str(called), _OTHER_WAY))
        return convert(self, node, args, options)

    def _arguments(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The first argument by position, however it was given, and the others as they came."""
        args, options = self.traced.resolve(node.args), dict(self.traced.resolve(node.kwargs))
        named = [name for name in _FIRST if name in options]
        if not args and named:
            args = (options.pop(named[0]),)
        return tuple(args), options

    def _module(self, node: fx.Node, module: nn.Module, args: Sequence[Any]) -> Node:
        name, kind = self.where, torch_type(module)
        self.dimensions = _dimensions(kind.__name__)
        shape = tuple(self.traced.values[node].shape)
        source = self.tensor(args[0] if args else None)
        if any(getattr(module, hooks) for hooks in ("_forward_hooks", "_forward_pre_hooks")):
            raise self.refusal("a layer with hooks, which may change what it computes", "remove its hooks")
        if isinstance(module, Mask):
            return source if module.rate == 0 else self.add("mask", [source], name, shape, module=module)
        if isinstance(module, GaussianLayer) or kind in WEIGHTED_TYPES:
            return self._convert_weighted(name, module, source, shape)
        if kind in _NORMS:
            if getattr(module, "running_mean", None) is None:
                raise self.refusal("a BatchNorm without running statistics", "use track_running_stats=True")
            return self.add("norm", [source], name, shape, module=module)
        if hasattr(module, "inplace"):
            module.inplace = False  # pyright: ignore[reportArgumentType]  (our copy: its input may be read again)
        if kind in _DROPOUTS:
            return self.add("dropout", [source], name, shape, module=module)
        if kind in CAPTURES:
            capture, sources = CAPTURES[kind], [self.tensor(one) for one in args]
            return self.add(capture.kind, sources, name, shape, dict(capture.options(module)), module)
        convert = MODULES.get(kind)
        if convert is None:
            said = type(module).__name__
            raise self.refusal(f"a layer {said}", WAYS_OUT.get(said, _OTHER_WAY))
        return convert(self, node, module, source)

    def _convert_captured_call(
        self, capture: Capture, node: fx.Node, args: Sequence[Any], options: dict[str, Any]
    ) -> Node:
        """A call that the hook knows: activations come first, what is no activation gives the options."""
        sources = [self.tensor(one) for one in args if isinstance(one, fx.Node)]
        fixed = [one for one in args if not isinstance(one, fx.Node)]
        given = dict(capture.options(*fixed, **options))
        return self.add(capture.kind, sources, self.where, self.traced.values[node].shape, given)

    def _convert_weighted(self, name: str, module: nn.Module, source: Node, shape: tuple[int, ...]) -> Node:
        """A layer with weights; padding that is not zeros on both sides alike becomes a node of its own."""
        layer: Any = module.map if isinstance(module, GaussianLayer) else module
        if not hasattr(layer, "stride"):
            return self.add("weighted", [source], name, shape, {"geometry": None}, module)
        kernel = _weight_of(module).shape[2:]
        if len(source.shape) != 1 + len(kernel):
            raise self.refusal(f"a convolution of rows of shape {source.shape}", "keep the batch first")
        sides, mode = _sides(layer, kernel)
        uneven = any(before != after for before, after in sides)
        geometry = {
            "stride": tuple(layer.stride),
            "dilation": tuple(layer.dilation),
            "groups": int(layer.groups),
            "padding": tuple(before for before, _ in sides),
        }
        if mode != "constant" or uneven:
            source = self.pad(source, [(0, 0), *sides], mode, 0.0, f"{name}.pad")
            geometry["padding"] = (0,) * len(sides)
        return self.add("weighted", [source], name, shape, {"geometry": geometry}, module)

    # what the tables of modules and calls use

    def add(
        self,
        kind: str,
        inputs: list[Node],
        name: str,
        shape: Sequence[int],
        options: dict[str, Any] | None = None,
        module: nn.Module | None = None,
    ) -> Node:
        """A new node; ``shape`` includes the rows, a name that is taken gets a number."""
        unique = self._free(name, self.names)
        self.names.add(unique)
        node = Node(kind, unique, inputs, tuple(shape[1:]), options or {}, module)
        self.nodes.append(node)
        return node

    def _free(self, name: str, taken: set[str]) -> str:
        candidates = (f"{name}@{number}" for number in itertools.count(2))
        return name if name not in taken else next(other for other in candidates if other not in taken)

    def reshape(self, source: Node, shape: Sequence[int], name: str) -> Node:
        if tuple(shape[1:]) == source.shape:
            return source
        return self.add("reshape", [source], name, shape)

    def pad(self, source: Node, amounts: list[tuple[int, int]], mode: str, value: float, name: str) -> Node:
        """``amounts`` for each axis behind the rows."""
        grown = [n + before + after for n, (before, after) in zip(source.shape, amounts, strict=True)]
        if mode not in ("constant", "reflect", "replicate") or min(n for pair in amounts for n in pair) < 0:
            raise self.refusal(f"a padding by {amounts} in mode '{mode}'", _OTHER_PADDING)
        if mode != "constant" and (len(source.shape) < 2 or amounts[0] != (0, 0)):
            raise self.refusal(f"a padding of rows of shape {source.shape} by '{mode}'", _OTHER_PADDING)
        if not math.isfinite(value):
            raise self.refusal(f"a padding by {value}", _OTHER_PADDING)
        if value != 0:
            # the fill needs a code: on a grid that reaches to it.
            source = self.add("reach", [source], f"{name}.reach", (0, *source.shape), {"value": float(value)})
        options = {"amounts": tuple(amounts), "mode": mode, "value": float(value)}
        return self.add("pad", [source], name, (0, *grown), options)

    def slice(self, source: Node, axis: int, start: int, stop: int, step: int, name: str) -> Node:
        """Codes ``start, start + step, … < stop`` along ``axis`` (counted with the rows as 0)."""
        if (start, step) == (0, 1) and stop == source.shape[axis - 1]:
            return source
        shape = [0, *source.shape]
        shape[axis] = len(range(start, stop, step))
        options = {"axis": axis, "start": start, "stop": stop, "step": step}
        return self.add("slice", [source], name, shape, options)

    def unary(self, source: Node, function: Callable[[Tensor], Tensor], name: str, label: str) -> Node:
        return self.add("unary", [source], name, (0, *source.shape), {"function": function, "label": label})

    def clamp(self, source: Node, low: float, high: float, name: str) -> Node:
        if not low <= high:
            raise self.refusal(f"a clamp to [{low}, {high}]", "give low ≤ high")
        return self.add("clamp", [source], name, (0, *source.shape), {"low": float(low), "high": float(high)})

    def tensor(self, argument: Any) -> Node:
        """Our node of an argument that must be an activation."""
        if isinstance(argument, fx.Node) and argument in self.found:
            return self.found[argument]
        if isinstance(argument, fx.Node) and argument not in self.traced.fixed:
            raise self.refusal(
                f"'{argument.name}', of which a part was changed in place,",
                "write it without in-place changes",
            )
        raise self.refusal("an argument that is not an activation", "pass activations through layers only")

    def constant(self, argument: Any) -> Tensor | None:
        """The tensor of an argument that is a parameter, buffer or constant, or computed from those."""
        if isinstance(argument, fx.Node) and argument in self.traced.fixed:
            value = self.traced.values[argument]
            return value.detach() if isinstance(value, Tensor) else None
        return argument.detach() if isinstance(argument, Tensor) else None

    def affine(self, source: Node, gain: Tensor | None, offset: Tensor | None, name: str) -> Node:
        """``gain · x + offset`` with constants that vary along the channels only."""
        channels = source.shape[0]
        gains = torch.ones(channels) if gain is None else self._by_channel(gain, source)
        offsets = torch.zeros(channels) if offset is None else self._by_channel(offset, source)
        options = {"gain": gains, "offset": offsets}
        return self.add("affine", [source], name, (0, *source.shape), options)

    def _by_channel(self, constant: Tensor, source: Node) -> Tensor:
        full = constant.float().cpu().expand(self.traced.rows, *source.shape)
        by_channel = full[0].flatten(1)[:, 0] if len(source.shape) > 1 else full[0]
        shaped = by_channel.view(-1, *(1,) * (len(source.shape) - 1))
        if not torch.equal(full, shaped.expand_as(full)):
            raise self.refusal(
                "a constant tensor that differs between positions", "let constants vary by channel only"
            )
        return by_channel.clone()

    def plain_name(self, path: str) -> str:
        """The name a module had before our wrappers: ``conv.layer`` is ``conv`` again."""
        here, kept = self.network, list[str]()
        for part in path.split("."):
            if not (isinstance(here, Masked) and part == "layer"):
                kept.append(part)
            here = here.get_submodule(part)
        return ".".join(kept)

    def refusal(self, got: str, do: str) -> BadInput:
        where = self.where or "(the network)"
        return BadInput("every step of a network must be expressible in integers", f"{got} at '{where}'", do)


_OTHER_PADDING = "pad spatial axes with a number, by reflection or by replication, by 0 or more"
_OTHER_WAY = (
    "build it from Linear, Conv1d/2d, BatchNorm, ReLU and other element-wise functions, +, *, cat, pooling, "
    "reshape, permute, slice, pad and nearest upsampling"
)


def _weight_of(module: nn.Module) -> Tensor:
    weight = module.weight_mean if isinstance(module, GaussianLayer) else module.weight
    assert isinstance(weight, Tensor)
    return weight


def _sides(layer: Any, kernel: Sequence[int]) -> tuple[list[tuple[int, int]], str]:
    """Padding before and after on each spatial axis, and how it is filled."""
    mode = getattr(layer, "padding_mode", None) or getattr(layer, "mode", "zeros")
    spans = [(k - 1) * d for k, d in zip(kernel, layer.dilation, strict=True)]
    if layer.padding == "valid":
        sides = [(0, 0) for _ in spans]
    elif isinstance(layer.padding, str):
        # 'same' pads (k − 1) d in all, the odd one behind.
        sides = [(span // 2, span - span // 2) for span in spans]
    else:
        sides = [(int(pad), int(pad)) for pad in layer.padding]
    return sides, "constant" if mode == "zeros" else mode


def _dimensions(name: str) -> int:
    return int(name[-2]) if name[-2:] in ("1d", "2d") else 0


def _is_alias(one: Any, other: Any) -> bool:
    """Whether two tensors are the same numbers in the same order."""
    both = isinstance(one, Tensor) and isinstance(other, Tensor) and one.data_ptr() == other.data_ptr()
    return both and one.shape == other.shape and one.stride() == other.stride()


class Traces:
    """``graph`` gives the nodes of a network, to be folded; tracing costs more than all the rest of it.

    The graph holds a copy of the first network. Another one of the same class, with the same names and shapes
    of its parameters, has its numbers put there; whoever builds on the graph checks that the result computes
    what the network does.
    """

    def __init__(self) -> None:
        self._kind: type[nn.Module] | None = None
        self._first: Graph | None = None

    def graph(self, network: nn.Module, example: Tensor) -> Graph:
        if self._first is not None and self._kind is type(network) and _give_numbers(self._first, network):
            return self._first.copy()
        found = graph_of(network, example)
        again = found.source is not None and all(node.traits.copied for node in found.nodes)
        self._kind, self._first = type(network), found.copy() if again else None
        return found


@torch.no_grad()
def _give_numbers(graph: Graph, network: nn.Module) -> bool:
    """Put the network's numbers into the graph's copy; not if their names, shapes or places differ."""
    assert graph.source is not None
    held, new = graph.source.state_dict(), network.state_dict()
    alike = held.keys() == new.keys() and all(
        value.shape == new[name].shape and value.device == new[name].device for name, value in held.items()
    )
    if alike:
        for name, value in held.items():
            value.copy_(new[name])
    return alike
