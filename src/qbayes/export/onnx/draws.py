"""The draws of a member in a graph: what they share runs once, masks fold into the batch, weights loop.

Integer and float networks are written the same way; they differ in the steps, and in how noise enters one.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from qbayes.export.onnx.noise import ROWS, NoiseSource
from qbayes.integer.onnx.graph import Graph

Key = TypeVar("Key", bound=Hashable)
Step = TypeVar("Step")


@dataclass(frozen=True, eq=False)
class Flow(Generic[Key, Step]):
    """The steps of a network, and what passes between them."""

    once: Sequence[Step]
    for_each_draw: Sequence[Step]
    # values that run once and that a step of a draw reads.
    shared: Sequence[Key]
    heads: Mapping[str, Key]
    noisy: frozenset[Key]
    samples_weights: bool


class Draws(ABC, Generic[Key, Step]):
    """One member with the number of its draws; ``given`` names the tensors ``(draws, …)`` of its sites.

    Without ``given`` the noise is drawn inside the graph.
    """

    draws: int
    given: Mapping[int, str] | None

    @abstractmethod
    def flow(self) -> Flow[Key, Step]:
        """What runs once, and what for each draw."""

    @abstractmethod
    def begin(self, g: Graph, x: str) -> dict[Key, str]:
        """The values that are there before any step, from the graph's input."""

    @abstractmethod
    def run(self, g: Graph, steps: Sequence[Step], values: dict[Key, str], noise: NoiseSource) -> None:
        """Write the steps in order into ``values``; a site that several share is drawn once."""

    @abstractmethod
    def noise(self, given: Mapping[int, str] | None) -> NoiseSource:
        """The noise in these tensors, or from inside."""

    @abstractmethod
    def shape(self, key: Key) -> tuple[int, ...]:
        """Of one row of a value."""

    @abstractmethod
    def dtype(self, key: Key) -> Any:
        """Of a value."""

    def write(self, g: Graph, x: str) -> dict[str, str]:
        """The values of each head, ``(draws, rows, …)``."""
        flow = self.flow()
        keys = dict.fromkeys(flow.heads.values())
        if self.draws == 1:
            values = self.values_of_draw(g, x)
            made = {key: g.node("Unsqueeze", values[key], g.whole(0)) for key in keys}
            return {head: made[key] for head, key in flow.heads.items()}
        values = self.begin(g, x)
        self.run(g, flow.once, values, self.noise(None))
        noisy = [key for key in keys if key in flow.noisy]
        made: dict[Key, str] = {}
        if noisy:
            made = (self._loop_draws if flow.samples_weights else self._fold_draws)(g, flow, values, noisy)
        for key in keys:
            if key not in made:
                made[key] = self._repeat(g, values[key], key, stacked=True)
        return {head: made[key] for head, key in flow.heads.items()}

    def values_of_draw(self, g: Graph, x: str) -> dict[Key, str]:
        """Every value of the network for the first draw: one pass through all steps."""
        flow, values = self.flow(), self.begin(g, x)
        self.run(g, (*flow.once, *flow.for_each_draw), values, self._noise_of_draw(g, None))
        return values

    def _fold_draws(
        self, g: Graph, flow: Flow[Key, Step], values: dict[Key, str], noisy: Sequence[Key]
    ) -> dict[Key, str]:
        """All draws as rows of one batch, the draw being the outer part."""
        found = {key: self._repeat(g, values[key], key, stacked=False) for key in flow.shared}
        self.run(g, flow.for_each_draw, found, self.noise(self.given))
        return {
            key: g.node("Reshape", found[key], g.whole(self.draws, -1, *self.shape(key))) for key in noisy
        }

    def _loop_draws(
        self, g: Graph, flow: Flow[Key, Step], values: dict[Key, str], noisy: Sequence[Key]
    ) -> dict[Key, str]:
        """One pass of the body for each draw, whose weights serve all rows."""
        body = g.body("draw", [("draw", np.int64, ()), ("go", np.bool_, ())])
        found = dict(values)
        self.run(body, flow.for_each_draw, found, self._noise_of_draw(body, "draw"))
        body.output("go", "go_on", np.bool_, ())
        for at, key in enumerate(noisy):
            body.output(found[key], f"head{at}", self.dtype(key), (ROWS, *self.shape(key)))
        count, go = g.constant(np.int64(self.draws)), g.constant(np.bool_(True))
        results = g.nodes("Loop", count, go, results=len(noisy), body=body.proto("draw"))
        return dict(zip(noisy, results, strict=True))

    def _noise_of_draw(self, g: Graph, draw: str | None) -> NoiseSource:
        """The noise of the draw whose number that tensor holds; of the first, where there is but one."""
        if self.given is None:
            return self.noise(None)
        at = g.constant(np.int64(0)) if draw is None else draw
        return self.noise({s: g.node("Gather", tensor, at, axis=0) for s, tensor in self.given.items()})

    def _repeat(self, g: Graph, tensor: str, key: Key, *, stacked: bool) -> str:
        """Rows that all draws share, once for each: along an axis of their own, or folded into the batch."""
        shape = self.shape(key)
        wide = g.node("Expand", g.node("Unsqueeze", tensor, g.whole(0)), g.whole(self.draws, 1, *shape))
        return wide if stacked else g.node("Reshape", wide, g.whole(-1, *shape))
