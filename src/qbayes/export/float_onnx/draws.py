"""The draws of one float network in the graph: what they share runs once, masks fold, weights loop."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from qbayes.export.float_onnx.nodes import point_weights, write_node, write_weighted
from qbayes.export.onnx.noise import ROWS, NoiseInputs, NoiseInside, NoiseSite, NoiseSource
from qbayes.integer.onnx.graph import Graph
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.mask import Mask
from qbayes.quant import nodes
from qbayes.quant.nodes import Node


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
class FloatDraws:
    """One member with the number of its draws; ``given`` names the tensors ``(draws, …)`` of its noise."""

    graph: nodes.Graph
    draws: int
    sites: Mapping[int, FloatNoiseSite]
    given: Mapping[int, str] | None

    def write(self, g: Graph, z: str) -> dict[str, str]:
        """Every head, ``(draws, rows, …)`` in network units."""
        if self.draws == 1:
            return {name: g.node("Unsqueeze", head, g.whole(0)) for name, head in self.once(g, z).items()}
        noisy = self._noisy()
        values: dict[int, str] = {}
        self._run(g, [n for n in self.graph.nodes if id(n) not in noisy], values, z, _FloatInside())
        rest = [node for node in self.graph.nodes if id(node) in noisy]
        heads = {id(node): node for node in self.graph.heads.values() if id(node) in noisy}
        made: dict[int, str] = {}
        if heads:
            loops = any(isinstance(node.module, GaussianLayer) for node in rest)
            write = self._looped if loops else self._folded
            made = write(g, rest, values, list(heads.values()))
        for node in self.graph.heads.values():
            if id(node) not in made:
                made[id(node)] = self._repeated(g, values[id(node)], node, stacked=True)
        return {name: made[id(node)] for name, node in self.graph.heads.items()}

    def once(self, g: Graph, z: str) -> dict[str, str]:
        """Every head of the first draw, ``(rows, …)``: one pass through all nodes."""
        values: dict[int, str] = {}
        self._run(g, self.graph.nodes, values, z, self._of_draw(g, None))
        return {name: values[id(node)] for name, node in self.graph.heads.items()}

    def _noisy(self) -> set[int]:
        found: set[int] = set()
        for node in self.graph.nodes:
            draws = node.kind == "mask" or isinstance(node.module, GaussianLayer)
            if draws or any(id(source) in found for source in node.inputs):
                found.add(id(node))
        return found

    def _folded(
        self, g: Graph, rest: list[Node], values: dict[int, str], heads: list[Node]
    ) -> dict[int, str]:
        """All draws as rows of one batch, the draw being the outer part."""
        noise = _FloatInside() if self.given is None else _FloatInputs(self.given)
        own = {id(node) for node in rest}
        shared = {id(n): n for node in rest for n in node.inputs if id(n) not in own}
        found = {at: self._repeated(g, values[at], node, stacked=False) for at, node in shared.items()}
        self._run(g, rest, found, "", noise)
        return {
            id(node): g.node("Reshape", found[id(node)], g.whole(self.draws, -1, *node.shape))
            for node in heads
        }

    def _looped(
        self, g: Graph, rest: list[Node], values: dict[int, str], heads: list[Node]
    ) -> dict[int, str]:
        """One pass of the body for each draw, whose weights serve all rows."""
        body = g.body("draw", [("draw", np.int64, ()), ("go", np.bool_, ())])
        found = dict(values)
        self._run(body, rest, found, "", self._of_draw(body, "draw"))
        body.output("go", "go_on", np.bool_, ())
        for at, node in enumerate(heads):
            body.output(found[id(node)], f"head{at}", np.float32, (ROWS, *node.shape))
        count, go = g.constant(np.int64(self.draws)), g.constant(np.bool_(True))
        results = g.nodes("Loop", count, go, results=len(heads), body=body.proto("draw"))
        return {id(node): result for node, result in zip(heads, results, strict=True)}

    def _of_draw(self, g: Graph, draw: str | None) -> FloatNoise:
        """The noise of the draw whose number that tensor holds; of the first, where there is but one."""
        if self.given is None:
            return _FloatInside()
        at = g.constant(np.int64(0)) if draw is None else draw
        return _FloatInputs({s: g.node("Gather", tensor, at, axis=0) for s, tensor in self.given.items()})

    def _run(
        self, g: Graph, steps: Sequence[Node], values: dict[int, str], z: str, noise: FloatNoise
    ) -> None:
        """Write the nodes in order; a site that several share is drawn once."""
        known: dict[int, str] = {}
        for node in steps:
            inputs = [values[id(source)] for source in node.inputs]
            if node.kind == "input":
                values[id(node)] = z
            elif node.kind == "mask":
                values[id(node)] = self._masked(g, node, inputs[0], noise, known)
            elif node.kind == "weighted":
                weights = self._weights(g, node, inputs[0], noise, known)
                values[id(node)] = write_weighted(g, node, inputs[0], *weights)
            else:
                values[id(node)] = write_node(g, node, inputs)

    def _masked(self, g: Graph, node: Node, x: str, noise: FloatNoise, known: dict[int, str]) -> str:
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

        def sampled(mean: str, site: int, sigma: torch.Tensor) -> str:
            if site not in known:
                known[site] = g.node("Add", mean, noise.deviation(g, self.sites[site], x, sigma))
            return known[site]

        with g.scope(node.name):
            weight = sampled(weight, layer.site, layer.weight_sigma)
            if layer.bias_site is not None and bias is not None and layer.bias_rho is not None:
                bias = sampled(bias, layer.bias_site, F.softplus(layer.bias_rho))
        return weight, bias

    def _repeated(self, g: Graph, tensor: str, node: Node, *, stacked: bool) -> str:
        """Rows that all draws share, once for each: along an axis of their own, or folded into the batch."""
        wide = g.node("Expand", g.node("Unsqueeze", tensor, g.whole(0)), g.whole(self.draws, 1, *node.shape))
        return wide if stacked else g.node("Reshape", wide, g.whole(-1, *node.shape))
