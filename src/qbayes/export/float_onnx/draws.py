"""The draws of one float network in a graph, node by node."""

import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qbayes.export.float_onnx.nodes import point_weights, write_node, write_weighted
from qbayes.export.onnx.draws import Draws, Flow
from qbayes.export.onnx.noise import NoiseInputs, NoiseInside, NoiseSite, NoiseSource
from qbayes.integer.onnx.graph import Graph
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.sites import Mask
from qbayes.quant.graph import nodes
from qbayes.quant.graph.nodes import Node


class FloatNoiseSite(NoiseSite):
    """A site whose ε is a float32, drawn from the Gaussian itself."""

    @property
    def dtype(self) -> type[Any]:
        return np.uint8 if self.kind == "mask" else np.float32


class FloatNoise(NoiseSource):
    """Masks as in an integer model; of Gaussian weights the whole deviation from the mean."""

    @abstractmethod
    def deviation(self, g: Graph, site: NoiseSite, like: str, sigma: torch.Tensor) -> str:
        """``σ ε`` in the shape of the site."""


class _FloatInside(NoiseInside, FloatNoise):
    """ε from the runtime's own Gaussian."""

    def deviation(self, g: Graph, site: NoiseSite, like: str, sigma: torch.Tensor) -> str:
        # the shape comes from the input: a generator of a constant shape may be folded into a constant.
        nothing = g.node("Mul", g.node("Shape", like, start=0, end=1), g.whole(0))
        blank = g.node("ConstantOfShape", g.node("Add", nothing, g.whole(*site.shape)), value=g.zeros())
        scale = float(g.serial())
        drawn = g.node("RandomNormalLike", blank, dtype=g.type_of(np.float32), mean=0.0, scale=scale)
        scaled = g.node("Mul", drawn, g.constant(sigma.detach() / scale, np.float32, "sigma"))
        # a convolution wants to know the shape of its weights before it runs.
        return g.node("Reshape", scaled, g.whole(*site.shape))


class _FloatInputs(NoiseInputs, FloatNoise):
    """ε as tensors of the graph."""

    def deviation(self, g: Graph, site: NoiseSite, like: str, sigma: torch.Tensor) -> str:
        return g.node("Mul", g.constant(sigma.detach(), np.float32, "sigma"), self.epsilon(g, site, like))


@dataclass(frozen=True, eq=False)
class FloatDraws(Draws[int, Node]):
    """One float network, by the nodes of its graph; values in network units."""

    graph: nodes.Graph
    draws: int
    sites: Mapping[int, FloatNoiseSite]
    given: Mapping[int, str] | None

    def flow(self) -> Flow[int, Node]:
        noisy = self._noisy()
        once = [node for node in self.graph.nodes if id(node) not in noisy]
        rest = [node for node in self.graph.nodes if id(node) in noisy]
        shared = dict.fromkeys(id(n) for node in rest for n in node.inputs if id(n) not in noisy)
        heads = {name: id(node) for name, node in self.graph.heads.items()}
        samples = any(isinstance(node.module, GaussianLayer) for node in rest)
        return Flow(once, rest, tuple(shared), heads, frozenset(noisy), samples)

    def begin(self, g: Graph, x: str) -> dict[int, str]:
        return {id(node): x for node in self.graph.nodes if node.kind == "input"}

    def noise(self, given: Mapping[int, str] | None) -> FloatNoise:
        return _FloatInside() if given is None else _FloatInputs(given)

    def shape(self, key: int) -> tuple[int, ...]:
        return self._nodes[key].shape

    def dtype(self, key: int) -> Any:
        return np.float32

    def once(self, g: Graph, z: str) -> dict[str, str]:
        """Every head of the first draw, ``(rows, …)``."""
        values = self.values_of_draw(g, z)
        return {name: values[id(node)] for name, node in self.graph.heads.items()}

    @functools.cached_property
    def _nodes(self) -> Mapping[int, Node]:
        return {id(node): node for node in self.graph.nodes}

    def _noisy(self) -> set[int]:
        found: set[int] = set()
        for node in self.graph.nodes:
            draws = node.kind == "mask" or isinstance(node.module, GaussianLayer)
            if draws or any(id(source) in found for source in node.inputs):
                found.add(id(node))
        return found

    def run(self, g: Graph, steps: Sequence[Node], values: dict[int, str], noise: NoiseSource) -> None:
        assert isinstance(noise, FloatNoise)
        known: dict[int, str] = {}
        for node in steps:
            inputs = [values[id(source)] for source in node.inputs]
            if node.kind == "mask":
                values[id(node)] = self._mask(g, node, inputs[0], noise, known)
            elif node.kind == "weighted":
                weights = self._weights(g, node, inputs[0], noise, known)
                values[id(node)] = write_weighted(g, node, inputs[0], *weights)
            elif node.kind != "input":
                values[id(node)] = write_node(g, node, inputs)

    def _mask(self, g: Graph, node: Node, x: str, noise: FloatNoise, known: dict[int, str]) -> str:
        """``k ⊙ x / (1 − p)``."""
        layer = node.module
        assert isinstance(layer, Mask)
        row = node.shape
        bits = (row[0], *(1,) * (len(row) - 1)) if layer.channelwise else row
        with g.scope(node.name):
            if layer.site not in known:
                known[layer.site] = noise.keep(g, self.sites[layer.site], x)
            flat, elements = known[layer.site], int(np.prod(bits))
            if elements < self.sites[layer.site].shape[0]:
                flat = g.node("Slice", flat, g.whole(0), g.whole(elements), g.whole(1))
            factor = g.node("Mul", g.cast(flat, np.float32), g.constant(np.float32(1 / (1 - layer.rate))))
            if len(bits) > 1:
                factor = g.node("Reshape", factor, g.whole(-1, *bits))
            return g.node("Mul", x, factor)

    def _weights(
        self, g: Graph, node: Node, x: str, noise: FloatNoise, known: dict[int, str]
    ) -> tuple[str, str | None]:
        """``w = μ + σ ε`` of a Gaussian layer, else the weights as they are."""
        layer = node.module
        weight, bias = point_weights(g, node)
        if not isinstance(layer, GaussianLayer):
            return weight, bias

        def write_sample(mean: str, site: int, sigma: torch.Tensor) -> str:
            if site not in known:
                known[site] = g.node("Add", mean, noise.deviation(g, self.sites[site], x, sigma))
            return known[site]

        with g.scope(node.name):
            weight = write_sample(weight, layer.site, layer.weight_sigma)
            if layer.bias_site is not None and bias is not None and layer.bias_rho is not None:
                bias = write_sample(bias, layer.bias_site, F.softplus(layer.bias_rho))
        return weight, bias
