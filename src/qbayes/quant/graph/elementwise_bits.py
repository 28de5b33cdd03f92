"""Bits of values that no layer multiplies: additions, averages, tables and concatenations read them.

Few bits are worth having where numbers are multiplied. A branch's answer before it is added to its shortcut
is no factor of anything: all backends hold it in a byte, and on three bits it would be rounded for nothing,
before the sum is rounded again. So it has ``Precision.elementwise_bits``. A value that is added *and*
multiplied, such as the stream of a residual network, keeps those bits for its sums, and is rounded to the
bits of activations on its way to the layers by a node of its own, of the layer ``NAME.narrow``. That is one
operation more, and it pays where the bits are at least halved; else the whole value has the bits of
activations.

An override of the precision may give ``NAME.narrow`` bits by its name: it is then there at any number of bits
below those of the value. What an override says of the bits of ``NAME`` itself stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qbayes.quant.graph.nodes import NARROW, Graph, Node
from qbayes.quant.precision import Precision

_HALVED = 2


@dataclass
class Widened:
    """The bits of nodes, by id, that have not those of activations; layers that may be narrowed, by name."""

    bits: dict[int, int] = field(default_factory=dict[int, int])
    layers: list[str] = field(default_factory=list[str])


def widen(graph: Graph, precision: Precision) -> Widened:
    """Which nodes get more bits than activations have; inserts the nodes that narrow them."""
    found = Widened()
    if precision.elementwise_bits is None:
        return found
    # answers and the input have bits of their own.
    settled = graph.producers(graph.heads.values())
    for node in [node for node in graph.nodes if node.traits.computes and node.kind != "input"]:
        if id(node) not in settled:
            _widen(graph, node, precision, precision.elementwise_bits, found)
    return found


def _widen(graph: Graph, node: Node, precision: Precision, between: int, found: Widened) -> None:
    multiplied = [_multiplies(reader) for reader in _readers(graph, node)]
    if all(multiplied):
        return
    said = precision.overrides_bits(node.layer, "activation")
    own = precision.for_layer(node.layer).activation
    wide = own if said else max(between, own)
    if not any(multiplied):
        found.bits[id(node)] = wide
        return
    name = narrow_layer(graph, node)
    found.layers.append(name)
    factors = precision.for_narrow(node.layer, name)
    pays = not said and wide >= _HALVED * factors.activation
    if factors.activation < wide and (pays or precision.overrides_bits(name, "activation")):
        found.bits[id(node)] = wide
        _narrow(graph, node, name, node.layer)


def _multiplies(reader: Node) -> bool:
    return reader.traits.multiplies


def _readers(graph: Graph, node: Node) -> list[Node]:
    """The nodes that compute with the codes of ``node``, behind all that only moves them."""
    found: list[Node] = []
    for user in graph.users(node):
        found += _readers(graph, user) if user.traits.moves else [user]
    return found


def narrow_layer(graph: Graph, node: Node) -> str:
    """The layer of what narrows ``node``: NAME.narrow, where no layer of the network is called so."""
    own = {other.layer for other in graph.nodes if other.kind != NARROW}
    name = f"{node.layer}.{NARROW}"
    while name in own:
        name += "_"
    return name


def _narrow(graph: Graph, node: Node, name: str, of: str) -> None:
    """Round what ``node`` hands to multiplying nodes alone; behind a node that moves it, where it parts."""
    factors: list[Node] = []
    for user in graph.users(node):
        below = [_multiplies(reader) for reader in _readers(graph, user)] if user.traits.moves else []
        if _multiplies(user) or (below and all(below)):
            factors.append(user)
        elif any(below):
            _narrow(graph, user, name, of)
    if factors:
        _insert(graph, node, factors, name, of)


def _insert(graph: Graph, node: Node, readers: Sequence[Node], name: str, of: str) -> None:
    # where a value parts in several places, or its layer is called twice, the layer has several nodes.
    taken = {other.name for other in graph.nodes}
    numbered = (f"{name}@{count}" for count in range(2, len(taken) + 3))
    free = next(one for one in (name, *numbered) if one not in taken)
    narrow = Node(NARROW, free, [node], node.shape, {"of": of})
    for reader in readers:
        reader.inputs = [narrow if source is node else source for source in reader.inputs]
    graph.nodes.insert(graph.nodes.index(node) + 1, narrow)
