"""Mean, variance, entropy and mutual information over the draws, as ``Predictive`` defines them.

In float64 where the dialect has it, else in float32. A classifier's entropy is ``−Σ p̄ ln p̄``; that of a
regression is of the mixture of its draws' Gaussians, by the quadrature of ``posterior.mixture``.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qbayes.errors import BadInput
from qbayes.integer.onnx.graph import Graph
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.mixture import ENTROPY_KNOTS, LEGENDRE_NODES, LEGENDRE_WEIGHTS
from qbayes.posterior.signature import Signature

# What rounding alone leaves between equal entropies, of their size: ``Predictive`` shows it as 0.
_ERROR = {np.float64: 1e-9, np.float32: 1e-5}
# A probability below it has an entropy of nothing in either type.
_LEAST = 1e-37


class Statistics:
    """Nodes over draws ``(draws, rows, …)``; every result is float32.

    ``shape`` is that of one row of an answer.
    """

    def __init__(
        self, g: Graph, signature: Signature, shape: tuple[int, ...], dtype: Any, draws: int
    ) -> None:
        self.g, self.signature, self.dtype, self.draws = g, signature, dtype, draws
        self._shape = shape
        self.is_classifier = isinstance(signature.likelihood, Categorical)

    def write(self, heads: Mapping[str, str], wanted: tuple[str, ...]) -> dict[str, str]:
        """The wanted outputs by name, from the heads in network units (float32)."""
        if self.is_classifier and "draw_variances" in wanted:
            raise BadInput(
                "draw_variances is an output of a regression", "a classifier", "leave it out: draws has all"
            )
        wide = {name: self.g.cast(tensor, self.dtype) for name, tensor in heads.items()}
        found = (
            self._classification(wide[""], wanted) if self.is_classifier else self._regression(wide, wanted)
        )
        return {name: self.g.cast(tensor, np.float32) for name, tensor in found.items()}

    def _classification(self, logits: str, wanted: tuple[str, ...]) -> dict[str, str]:
        g = self.g
        draws = g.node("Softmax", logits, axis=2)
        mean = self._mean(draws)
        found = {"draws": draws, "mean": mean}
        if "variance" in wanted:
            found["variance"] = self._spread(draws, mean)
        if {"entropy", "mutual_information"} & set(wanted):
            expected = self._mean(self._entropy(draws))
            found |= self._entropies(self._entropy(mean), expected)
        return {name: found[name] for name in wanted if name in found}

    def _regression(self, heads: Mapping[str, str], wanted: tuple[str, ...]) -> dict[str, str]:
        g, target = self.g, self.signature.target
        means, variances = heads["mean"], g.node("Exp", heads["log_variance"])
        if target is not None:
            along = (-1, *(1,) * (len(self._shape) - 1))
            offset, std = (t.double().numpy().reshape(along) for t in (target.mean, target.std))
            means = g.node("Add", g.node("Mul", means, self._number(std)), self._number(offset))
            variances = g.node("Mul", variances, self._number(std**2))
        mean = self._mean(means)
        found = {"draws": means, "draw_variances": variances, "mean": mean}
        if "variance" in wanted:
            found["variance"] = g.node("Add", self._spread(means, mean), self._mean(variances))
        if {"entropy", "mutual_information"} & set(wanted):
            logs = g.node("Log", g.node("Mul", variances, self._number(2 * math.pi * math.e)))
            of_draws = g.node("Mul", logs, self._number(0.5))
            expected = self._over_targets(self._mean(of_draws))
            total = expected if self.draws == 1 else self._over_targets(self._mixture(means, variances, mean))
            found |= self._entropies(total, expected)
        return {name: found[name] for name in wanted if name in found}

    def _number(self, value: Any) -> str:
        return self.g.constant(np.asarray(value, self.dtype))

    def _mean(self, draws: str) -> str:
        return self.g.node("ReduceMean", draws, self.g.whole(0), keepdims=0)

    def _spread(self, draws: str, mean: str) -> str:
        """Unbiased variance over the draws; 0 for one."""
        g = self.g
        apart = g.node("Sub", draws, mean)
        squares = g.node("ReduceSum", g.node("Mul", apart, apart), g.whole(0), keepdims=0)
        return g.node("Mul", squares, self._number(1 / max(1, self.draws - 1)))

    def _entropy(self, probabilities: str) -> str:
        g = self.g
        logs = g.node("Log", g.node("Max", probabilities, self._number(_LEAST)))
        return g.node("Neg", g.node("ReduceSum", g.node("Mul", probabilities, logs), g.whole(-1), keepdims=0))

    def _entropies(self, total: str, expected: str) -> dict[str, str]:
        g = self.g
        apart = g.node("Sub", total, expected)
        error = g.node(
            "Mul", g.node("Add", g.node("Abs", total), self._number(1)), self._number(_ERROR[self.dtype])
        )
        known = g.node("Greater", apart, error)
        return {"entropy": total, "mutual_information": g.node("Where", known, apart, self._number(0))}

    def _over_targets(self, tensor: str) -> str:
        return self.g.node("ReduceSum", tensor, self.g.whole(*range(1, len(self._shape) + 1)), keepdims=0)

    def _mixture(self, means: str, variances: str, centre: str) -> str:
        """``−∫ p ln p`` on the cells between all ``μ_d + k σ_d``, in units of the mixture's own spread."""
        g = self.g
        apart = g.node("Sub", means, centre)
        spread = g.node("Sqrt", self._mean(g.node("Add", variances, g.node("Mul", apart, apart))))
        mean, std = g.node("Div", apart, spread), g.node("Div", g.node("Sqrt", variances), spread)
        edges = self._edges(mean, std)
        count = self.draws * len(ENTROPY_KNOTS)
        first, last = (self._part(edges, a, b) for a, b in ((0, count - 1), (1, count)))
        half = g.node("Mul", g.node("Sub", last, first), self._number(0.5))
        nodes = self._along_front(LEGENDRE_NODES)
        middle = g.node("Add", first, half)
        points = g.node("Add", middle, g.node("Mul", half, nodes))  # (nodes, cells, rows, …)
        density = self._density(points, mean, std)
        inner = g.node(
            "Neg", g.node("Mul", density, g.node("Log", g.node("Max", density, self._number(_LEAST))))
        )
        weighed = g.node("Mul", g.node("Mul", inner, half), self._along_front(LEGENDRE_WEIGHTS))
        summed = g.node("ReduceSum", weighed, g.whole(0, 1), keepdims=0)
        return g.node("Add", summed, g.node("Log", spread))

    def _edges(self, mean: str, std: str) -> str:
        g, axes = self.g, len(self._shape) + 1
        knots = g.constant(np.asarray(ENTROPY_KNOTS, self.dtype).reshape(-1, 1, *(1,) * axes))
        placed = g.node("Add", mean, g.node("Mul", std, knots))
        count = self.draws * len(ENTROPY_KNOTS)
        flat = g.node("Reshape", placed, g.whole(count, -1, *self._shape))
        # ONNX sorts by giving the k largest, or smallest, of all.
        return g.nodes("TopK", flat, g.whole(count), results=2, axis=0, largest=0, sorted=1)[0]

    def _density(self, points: str, mean: str, std: str) -> str:
        """``Σ_d N(point | μ_d, σ_d) / D``, one draw after the other so that memory stays small."""
        g, total = self.g, ""
        for draw in range(self.draws):
            m, s = (self._part(tensor, draw, draw + 1) for tensor in (mean, std))
            z = g.node("Div", g.node("Sub", points, m), s)
            bell = g.node("Div", g.node("Exp", g.node("Mul", g.node("Mul", z, z), self._number(-0.5))), s)
            total = bell if draw == 0 else g.node("Add", total, bell)
        return g.node("Mul", total, self._number(1 / (self.draws * math.sqrt(2 * math.pi))))

    def _part(self, tensor: str, start: int, stop: int) -> str:
        return self.g.node("Slice", tensor, self.g.whole(start), self.g.whole(stop), self.g.whole(0))

    def _along_front(self, numbers: tuple[float, ...]) -> str:
        return self.g.constant(np.asarray(numbers, self.dtype).reshape(-1, 1, 1, *(1,) * len(self._shape)))
