"""Graphs of many networks of one structure, of which only the first is traced: the members of an ensemble."""

import torch
from torch import Tensor, nn

from qbayes.quant.graph.convert import graph_of
from qbayes.quant.graph.nodes import Graph


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
        if self._first is not None and self._kind is type(network) and _given(self._first, network):
            return self._first.copied()
        found = graph_of(network, example)
        again = found.source is not None and all(node.traits.copied for node in found.nodes)
        self._kind, self._first = type(network), found.copied() if again else None
        return found


@torch.no_grad()
def _given(graph: Graph, network: nn.Module) -> bool:
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
