"""The graph that quantisation works on: a dozen kinds of nodes, whatever the network spelled them as.

What quantisation must know of a kind is one ``NodeKind``; ``qbayes.quant.graph.kinds`` has ours.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from qbayes.errors import BadInput, nearest
from qbayes.quant.layers.base import QuantLayer
from qbayes.quant.quantizer import Quantizer

# a value rounded to fewer bits on its way to the layers that multiply it (``quant.graph.bit_widths``).
NARROW = "narrow"


class LayerBuilder(Protocol):
    """What makes the layers of a network: it knows the bits of every node."""

    def out(self, node: "Node") -> Quantizer:
        """The quantiser of a node's output."""
        ...

    def weighted_layer(self, node: "Node") -> QuantLayer:
        """The layer of a linear map, with its weights and their quantisers."""
        ...


@dataclass(frozen=True)
class NodeKind:
    """What quantisation must know of one kind of nodes.

    Args:
        name: the kind.
        make: gives the fake-quantised layer of a node; None where folding leaves no such node.
        moves: it only moves or chooses codes, so the grid of its input goes through. All other kinds compute
            new numbers, and get a quantiser of their own behind them.
        carries_wide: it hands on codes wider than a byte.
        multiplies: it multiplies what it reads, which therefore has the bits of activations.
        takes_limits: it can hold its output between limits: a ReLU behind it is folded into it.
        becomes_op: it is an op of the program; the input, and a dropout that is no site, are none.
        copied: its layer copies what it needs of a module, so that the next network can have the graph.
    """

    name: str
    make: Callable[[LayerBuilder, "Node"], QuantLayer] | None
    moves: bool = False
    carries_wide: bool = False
    multiplies: bool = False
    takes_limits: bool = False
    becomes_op: bool = True
    copied: bool = False

    @property
    def computes(self) -> bool:
        """Whether its numbers are new, and need a quantiser."""
        return not self.moves


KINDS: dict[str, NodeKind] = {}


def register_kind(kind: NodeKind) -> NodeKind:
    """Make a kind of nodes known, under a name that no other has."""
    if KINDS.setdefault(kind.name, kind) is not kind:
        raise BadInput("kinds of nodes must have different names", f"'{kind.name}' again", "choose another")
    return kind


@dataclass(eq=False)
class Node:
    """One operation on activations; ``shape`` is that of one output row."""

    kind: str
    name: str
    inputs: list["Node"]
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    module: nn.Module | None = None

    @property
    def layer(self) -> str:
        """The layer that it belongs to: a second call of ``conv`` is the node ``conv@2``."""
        return self.name.partition("@")[0]

    @property
    def traits(self) -> NodeKind:
        """What quantisation knows of its kind."""
        if self.kind not in KINDS:
            raise BadInput(
                "every kind of nodes must be registered",
                f"'{self.kind}' at '{self.name}'",
                f"call qbayes.quant.graph.nodes.register_kind; {nearest(self.kind, KINDS)}",
            )
        return KINDS[self.kind]

    def __repr__(self) -> str:
        return f"{self.kind} {self.name}({', '.join(node.name for node in self.inputs)})"


@dataclass(eq=False)
class Graph:
    """Nodes in the order they run, and the nodes that are the network's answers by head.

    A network that returns one tensor has the single head ``""``.
    """

    nodes: list[Node]
    heads: dict[str, Node]
    # what the nodes' modules belong to, unless the graph holds numbers of it besides.
    source: nn.Module | None = None

    def copy(self) -> "Graph":
        """The same nodes of the same modules, to be folded by themselves."""
        new: dict[int, Node] = {}
        for node in self.nodes:
            inputs = [new[id(source)] for source in node.inputs]
            new[id(node)] = Node(node.kind, node.name, inputs, node.shape, dict(node.options), node.module)
        heads = {name: new[id(node)] for name, node in self.heads.items()}
        return Graph(list(new.values()), heads, self.source)

    def users(self, node: Node) -> list[Node]:
        return [other for other in self.nodes if node in other.inputs]

    def is_head(self, node: Node) -> bool:
        return any(head is node for head in self.heads.values())

    def bypass(self, node: Node, by: Node) -> None:
        """Let everything that reads ``node`` read ``by`` instead, and drop ``node``."""
        for other in self.nodes:
            other.inputs = [by if source is node else source for source in other.inputs]
        self.heads = {name: by if head is node else head for name, head in self.heads.items()}
        self.nodes.remove(node)

    def prune(self) -> None:
        """Drop what no head depends on; the input always stays."""
        needed: set[int] = set()
        waiting: list[Node] = list(self.heads.values())
        while waiting:
            node = waiting.pop()
            if id(node) not in needed:
                needed.add(id(node))
                waiting += node.inputs
        self.nodes = [node for node in self.nodes if id(node) in needed or node.kind == "input"]

    def ends(self) -> set[int]:
        """The ids of the weighted nodes whose own output is a head, and which no other node reads.

        Only their codes may be wider than a byte: an accumulator of 32 bits can be rounded to any width, and
        nothing multiplies the result.
        """
        heads = [node for node in self.heads.values() if node.kind == "weighted"]
        return {id(node) for node in heads if not self.users(node)}

    def carriers(self, node: Node) -> list[Node]:
        """``node`` and the nodes that hand on its codes, whatever the width of these."""
        found = [node]
        for other in self.nodes:
            if other.traits.carries_wide and other.inputs[0] in found:
                found.append(other)
        return found

    def producers(self, nodes: Iterable[Node]) -> set[int]:
        """The ids of the computed nodes whose codes reach ``nodes`` unchanged but for moving."""
        found: set[int] = set()
        for node in nodes:
            source = node
            while source.traits.moves:
                source = source.inputs[0]
            found.add(id(source))
        return found
