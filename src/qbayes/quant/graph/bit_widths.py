"""Bit widths that differ from the precision's activations: values that no layer multiplies, inputs, answers.

Values that no layer multiplies (sums, averages, tables, concatenations) have ``Precision.elementwise_bits``:
every backend stores them in a byte anyway, and few bits would round a branch before its sum is rounded again.
A value that is added and multiplied, such as the stream of a residual network, keeps those bits for its sums.
A node of the layer ``NAME.narrow`` rounds it to the bits of activations on its way to the layers. That costs
one operation and pays where the bits are at least halved; else the whole value has the bits of activations.

An override of the precision may give ``NAME.narrow`` bits by its name: the node is then there at any number
of bits below those of the value. What an override says of the bits of ``NAME`` itself stands.

Inputs and answers may have codes wider than a byte. Nothing multiplies the answers, and the features of a
table are few, so that products of 16 and 8 bits can be summed in 32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.posterior.gaussian import GaussianLayer
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


# in place of a learned range, for codes of more than 8 bits: so many leave nothing to trade by clipping,
# and a gradient of the size that suits steps of 1/255 would throw steps of 1/65535 about.
WIDE_RULE = "minmax"
# … and they reach further than what was seen, by this share of it at each end. That costs a third of a bit;
# rounding inside of the network, and rows not yet seen, take some numbers beyond those of calibration, and
# one that is clipped is off by many steps.
WIDE_HEADROOM = 1 / 8
# what int32 leaves to a sum of products beside a bias, which is held below 2^30 (with what rounding adds).
_LARGEST_SUM = (1 << 31) - 1 - (1 << 30) - (1 << 12)


def input_bits(graph: Graph, node: Node, precision: Precision) -> int:
    """The bits of the input ``node``: more than 8 only where every reader can sum its products in 32 bits.

    That must hold whatever becomes of the weights in training, and for the layer with the most inputs:
    otherwise the input has 8 bits, and not some number between them, so that a width is easy to foretell.
    """
    bits = precision.input_bits
    return bits if bits <= MOST_BITS or _is_summed(graph, node, precision, bits) else MOST_BITS


def output_bits(graph: Graph, node: Node, precision: Precision) -> int:
    """Those of an answer: more than 8 only where a weighted layer makes the head and nothing reads it."""
    bits = precision.output_bits
    return bits if id(node) in graph.ends() else min(bits, MOST_BITS)


def _is_summed(graph: Graph, node: Node, precision: Precision, bits: int) -> bool:
    carriers = graph.carriers(node)
    if any(graph.is_head(carrier) for carrier in carriers):
        return False
    readers = [user for carrier in carriers for user in graph.users(carrier) if user not in carriers]
    return all(reader.kind == "weighted" and _sums_fit(reader, precision, bits) for reader in readers)


def _sums_fit(reader: Node, precision: Precision, bits: int) -> bool:
    """``Σ|x w| ≤ n (2^bits − 1) max|w|`` over the n inputs of an output, for any weights and zero-points."""
    at = precision.for_layer(reader.layer)
    symmetric = at.weight_scheme == "symmetric"
    largest = (1 << (at.weight - 1)) - 1 if symmetric else (1 << at.weight) - 1
    inputs = math.prod(_weight(reader).shape[1:])
    return inputs * ((1 << bits) - 1) * largest <= _LARGEST_SUM


def _weight(reader: Node) -> Tensor:
    module = reader.module
    assert module is not None
    weight = module.weight_mean if isinstance(module, GaussianLayer) else module.weight
    assert isinstance(weight, Tensor)
    return weight
