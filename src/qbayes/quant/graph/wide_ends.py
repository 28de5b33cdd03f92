"""Where a network's input and answers may have codes wider than a byte.

Between the layers codes are bytes, for int8 kernels multiply bytes. The ends are different: nothing
multiplies the answers, and the features of a table are few, so that products of 16 and 8 bits can be summed
in 32.
"""

import math

from torch import Tensor

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.quant.graph.nodes import Graph, Node
from qbayes.quant.precision import Precision

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
