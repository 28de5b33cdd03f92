"""The graph that quantisation works on: a dozen kinds of nodes, whatever the network spelled them as."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

# a value rounded to fewer bits on its way to the layers that multiply it (``qbayes.quant.between``).
NARROW = "narrow"
# kinds that compute new numbers, and so get a quantiser of their own behind them.
COMPUTED = frozenset(
    {"input", "weighted", "add", "mul", "concat", "average", "affine", "unary", "clamp", "reach", "product"}
    | {NARROW}
)
# kinds that only move or choose codes: the grid of their input goes through.
MOVED = frozenset({"max_pool", "reshape", "permute", "slice", "pad", "upsample", "mask", "dropout"})
# of those the kinds that carry codes wider than a byte too.
CARRIERS = frozenset({"reshape", "permute", "slice", "dropout"})


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

    def copied(self) -> "Graph":
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
            if other.kind in CARRIERS and other.inputs[0] in found:
                found.append(other)
        return found

    def producers(self, nodes: Iterable[Node]) -> set[int]:
        """The ids of the computed nodes whose codes reach ``nodes`` unchanged but for moving."""
        found: set[int] = set()
        for node in nodes:
            source = node
            while source.kind in MOVED:
                source = source.inputs[0]
            found.add(id(source))
        return found
