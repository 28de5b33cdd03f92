"""Bits of values that no layer multiplies: additions, averages, tables and concatenations read them.

Few bits are worth having where numbers are multiplied. A branch's answer before it is added to its shortcut
is no factor of anything: all backends hold it in a byte, and on three bits it would be rounded for nothing,
before the sum is rounded again. So it has ``Precision.between`` bits. A value that is added *and* multiplied,
such as the stream of a residual network, keeps those bits for its sums, and is rounded to the bits of
activations on its way to the layers by a node of its own, ``NAME.narrow``. That is one operation more, and it
pays where the bits are at least halved; else the whole value has the bits of activations.

``NAME.narrow`` is a layer like others: an override of the precision may give it bits by its name.
"""

import math
from collections.abc import Sequence

from qbayes.quant.nodes import COMPUTED, MOVED, Graph, Node
from qbayes.quant.precision import Precision

NARROW = "narrow"
# kinds that multiply what they read; what they read has the bits of activations.
MULTIPLIES = frozenset({"weighted", "mul", "product"})
_HALVED = 2


def is_narrow(layer: str) -> bool:
    """Whether a layer is one that rounds a value on its way to those that multiply it."""
    return layer.rpartition(".")[2] == NARROW


def widened(graph: Graph, precision: Precision) -> dict[int, int]:
    """The bits of the nodes that get more than activations have, by id; inserts what narrows them."""
    wide = precision.between
    answers = graph.producers(graph.heads.values())
    found: dict[int, int] = {}
    if wide is None:
        return found
    for node in [node for node in graph.nodes if node.kind in COMPUTED - {"input"}]:
        # what is said of a layer by name comes first, and answers have bits of their own.
        if id(node) in answers or precision.overrides_bits(node.layer, "activation"):
            continue
        if _is_widened(graph, node, precision, wide):
            found[id(node)] = wide
            _narrow(graph, node)
    return found


def _is_widened(graph: Graph, node: Node, precision: Precision, wide: int) -> bool:
    readers = _readers(graph, node)
    if all(reader.kind in MULTIPLIES for reader in readers):
        return False
    name = f"{node.layer}.{NARROW}"
    bits = precision.for_layer(name).activation
    if any(reader.kind in MULTIPLIES for reader in readers):
        return wide >= _HALVED * bits or precision.overrides_bits(name, "activation")
    return wide > bits


def _readers(graph: Graph, node: Node) -> list[Node]:
    """The nodes that compute with the codes of ``node``, behind all that only moves them."""
    found: list[Node] = []
    for user in graph.users(node):
        found += _readers(graph, user) if user.kind in MOVED else [user]
    return found


def _narrow(graph: Graph, node: Node) -> None:
    """Put a rounding to fewer bits before all that multiplies, and nothing else does, behind ``node``."""
    factors: list[Node] = []
    for user in graph.users(node):
        multiplies = [
            reader.kind in MULTIPLIES for reader in (_readers(graph, user) if user.kind in MOVED else [user])
        ]
        if all(multiplies):
            factors.append(user)
        elif any(multiplies):
            _narrow(graph, user)
    if factors:
        _insert(graph, node, factors)


def _insert(graph: Graph, node: Node, readers: Sequence[Node]) -> None:
    taken = {other.name for other in graph.nodes}
    # behind the second call of a layer: NAME.narrow@2.
    _, at, call = node.name.partition("@")
    stem = node.layer
    while (name := f"{stem}.{NARROW}{at}{call}") in taken:
        stem += "_"
    limits = {"low": -math.inf, "high": math.inf}
    narrow = Node("clamp", name, [node], node.shape, limits)
    for reader in readers:
        reader.inputs = [narrow if source is node else source for source in reader.inputs]
    graph.nodes.insert(graph.nodes.index(node) + 1, narrow)
