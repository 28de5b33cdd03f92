"""From the traced network to nodes: every spelling of an operation becomes one kind, or is refused by name."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from qbayes.errors import BadInput
from qbayes.posterior.gaussian import WEIGHTED_TYPES, GaussianLayer
from qbayes.posterior.mask import Mask
from qbayes.posterior.sites import Masked
from qbayes.quant.convert_calls import CALLS, METHODS_OF_TENSORS, SEVERAL
from qbayes.quant.convert_modules import MODULES, WAYS_OUT
from qbayes.quant.nodes import Graph, Node
from qbayes.quant.trace import Traced, trace

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def graph_of(network: nn.Module, example: Tensor) -> Graph:
    """The nodes of ``network``, with shapes from a batch of network inputs."""
    return Converter(network, trace(network, example)).run()


class Converter:
    """Walks the traced nodes in order and keeps, for each that is a tensor, our node."""

    def __init__(self, network: nn.Module, traced: Traced) -> None:
        self.network, self.traced = network, traced
        self.nodes: list[Node] = []
        self.found: dict[fx.Node, Node] = {}
        self.names: set[str] = set()
        self.where = ""

    def run(self) -> Graph:
        heads: dict[str, Node] = {}
        for node in self.traced.nodes:
            if node.op == "output":
                heads = self._heads(node.args[0])
            elif self.traced.is_tensor(node) and node.op != "get_attr":
                self.found[node] = self._converted(node)
            else:
                self._check_skipped(node)
        graph = Graph(self.nodes, heads)
        graph.prune()
        return graph

    def _check_skipped(self, node: fx.Node) -> None:
        """What is no tensor is a size, or the pieces of a chunk or split; a layer that gives several is none."""
        value = self.traced.values[node]
        several = isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value)
        known = node.target in SEVERAL
        if node.op == "call_module" or (several and not known):
            self.where = self.plain_name(str(node.target)) if node.op == "call_module" else node.name
            kind = node.name
            if node.op == "call_module":
                kind = type(self.traced.module.get_submodule(str(node.target))).__name__
            raise self.refusal(f"a layer {kind}", WAYS_OUT.get(kind, _OTHER_WAY))

    def _heads(self, answer: Any) -> dict[str, Node]:
        named = answer if isinstance(answer, dict) else {"": answer}
        for name, node in named.items():
            if not isinstance(node, fx.Node) or node not in self.found:
                raise self.refusal(f"the output '{name}'", "outputs must be activations of the network")
        return {str(name): self.found[node] for name, node in named.items()}

    def _converted(self, node: fx.Node) -> Node:
        shape = tuple(self.traced.values[node].shape)
        self.where = node.name if node.op != "call_module" else self.plain_name(str(node.target))
        if node.op == "placeholder":
            if any(known.kind == "input" for known in self.nodes):
                raise self.refusal("a second input", "give the network one input tensor")
            return self.add("input", [], "input", shape)
        if not shape or shape[0] != self.traced.rows:
            raise self.refusal(
                f"a result of shape {shape} for {self.traced.rows} rows",
                "keep the batch on the first axis: x.flatten(1), never a reshape over the rows",
            )
        args = self.traced.resolved(node.args)
        options = self.traced.resolved(node.kwargs)
        if node.op == "call_module":
            return self._module(node, self.traced.module.get_submodule(str(node.target)), args)
        table = CALLS if node.op == "call_function" else METHODS_OF_TENSORS
        convert = table.get(node.target)  # pyright: ignore[reportArgumentType]
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
        if convert is None:
            raise self.refusal(f"a call of {called}", WAYS_OUT.get(str(called), _OTHER_WAY))
        return convert(self, node, args, options)

    def _module(self, node: fx.Node, module: nn.Module, args: Sequence[Any]) -> Node:
        name = self.plain_name(str(node.target))
        shape = tuple(self.traced.values[node].shape)
        source = self.tensor(args[0])
        if isinstance(module, Mask):
            return source if module.rate == 0 else self.add("mask", [source], name, shape, module=module)
        if isinstance(module, GaussianLayer) or type(module) in WEIGHTED_TYPES:
            return self._weighted(name, module, source, shape)
        if isinstance(module, _NORMS):
            if module.running_mean is None:
                raise self.refusal("a BatchNorm without running statistics", "use track_running_stats=True")
            return self.add("norm", [source], name, shape, module=module)
        if isinstance(module, _DROPOUTS):
            return self.add("dropout", [source], name, shape, module=module)
        convert = MODULES.get(type(module))
        if convert is None:
            kind = type(module).__name__
            raise self.refusal(f"a layer {kind}", WAYS_OUT.get(kind, _OTHER_WAY))
        return convert(self, node, module, source)

    def _weighted(self, name: str, module: nn.Module, source: Node, shape: tuple[int, ...]) -> Node:
        """A layer with weights; padding that is not zeros on both sides alike becomes a node of its own."""
        layer = module.map if isinstance(module, GaussianLayer) else module
        if not hasattr(layer, "stride"):
            return self.add("weighted", [source], name, shape, {"geometry": None}, module)
        kernel = _weight_of(module).shape[2:]
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
        unique = name
        for number in itertools.count(2):
            if unique not in self.names:
                break
            unique = f"{name}@{number}"
        self.names.add(unique)
        node = Node(kind, unique, inputs, tuple(shape[1:]), options or {}, module)
        self.nodes.append(node)
        return node

    def reshape(self, source: Node, shape: Sequence[int], name: str) -> Node:
        if tuple(shape[1:]) == source.shape:
            return source
        return self.add("reshape", [source], name, shape)

    def pad(self, source: Node, amounts: list[tuple[int, int]], mode: str, value: float, name: str) -> Node:
        """``amounts`` for each axis behind the rows."""
        grown = [n + before + after for n, (before, after) in zip(source.shape, amounts, strict=True)]
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
        if not low <= high or low > 0 > high:
            raise self.refusal(f"a clamp to [{low}, {high}]", "give low ≤ high")
        return self.add("clamp", [source], name, (0, *source.shape), {"low": float(low), "high": float(high)})

    def tensor(self, argument: Any) -> Node:
        """Our node of an argument that must be an activation."""
        if isinstance(argument, fx.Node) and argument in self.found:
            return self.found[argument]
        raise self.refusal("an argument that is not an activation", "pass activations through layers only")

    def constant(self, argument: Any) -> Tensor | None:
        """The tensor of an argument that is a parameter, buffer or traced constant of the network."""
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
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
        here, kept = self.network, []
        for part in path.split("."):
            if not (isinstance(here, Masked) and part == "layer"):
                kept.append(part)
            here = here.get_submodule(part)
        return ".".join(kept)

    def refusal(self, got: str, do: str) -> BadInput:
        where = self.where or "(the network)"
        return BadInput("every step of a network must be expressible in integers", f"{got} at '{where}'", do)


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
    return sides, {"zeros": "constant", "circular": "circular"}.get(mode, mode)
