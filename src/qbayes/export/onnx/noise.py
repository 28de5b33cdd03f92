"""Where the noise of an exported model comes from: inputs of the graph, or generators inside it.

Noise belongs to a site, not to an op: a layer that is called twice draws once. A mask is made flat, as many
elements as the largest op of its site reads of a row, and each op takes the first ones of it, as the library
numbers them; ε has the shape of the weights.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qbayes.integer.arithmetic.epsilon_table import INDEX_BITS, epsilon_table
from qbayes.integer.onnx.graph import Axis, Graph
from qbayes.integer.ops import Mask, Weighted
from qbayes.integer.program import Program
from qbayes.noise import THRESHOLD_BITS, keep_threshold

ROWS = "rows"


@dataclass(frozen=True)
class NoiseSite:
    """A place where a program draws: its number, name in the model, and the shape of what is drawn.

    ``kind`` is ``mask``, ``weight`` or ``bias``. A mask has ``shape`` (elements of a row,).
    """

    site: int
    name: str
    kind: str
    shape: tuple[int, ...]
    rate: float = 0.0
    bits: int = 8

    @property
    def dtype(self) -> type[np.integer]:
        return np.uint8 if self.kind == "mask" else np.int8

    def axes(self, draws: int) -> tuple[Axis, ...]:
        """The axes of the model's input."""
        return (draws, ROWS, *self.shape) if self.kind == "mask" else (draws, *self.shape)


def noise_sites(program: Program) -> dict[int, NoiseSite]:
    """Every site of a program by its number, called after the first op that draws there."""
    found: dict[int, NoiseSite] = {}
    for op in program.ops:
        if isinstance(op, Mask):
            elements = mask_elements(op, program.values[op.output].shape)
            name = found[op.site].name if op.site in found else f"{op.name}.keep"
            most = max(elements, *(found[op.site].shape if op.site in found else (0,)))
            found[op.site] = NoiseSite(op.site, name, "mask", (most,), float(op.rate))
        elif isinstance(op, Weighted) and op.is_stochastic:
            weights, shape = op.weights, op.weight_shape
            first = NoiseSite(weights.site, f"{op.name}.epsilon", "weight", shape, bits=weights.noise_bits)
            found.setdefault(weights.site, first)
            if weights.bias_site is not None:
                name = f"{op.name}.bias_epsilon"
                bias = NoiseSite(weights.bias_site, name, "bias", shape[:1], bits=weights.noise_bits)
                found.setdefault(weights.bias_site, bias)
    return found


def mask_elements(op: Mask, row: tuple[int, ...]) -> int:
    """How many bits a row takes."""
    return row[0] if op.channelwise else math.prod(row)


class NoiseSource(ABC):
    """Gives the noise of one draw, or of all draws of a member folded into the batch."""

    @abstractmethod
    def keep(self, g: Graph, site: NoiseSite, like: str) -> str:
        """The bits of a mask, bool ``(batch, elements)``; the batch is that of the tensor ``like``."""

    @abstractmethod
    def epsilon(self, g: Graph, site: NoiseSite, like: str) -> str:
        """The codes of ε in int8, in the shape of the site."""


class NoiseInside(NoiseSource):
    """Uniform numbers of the runtime's own generator: they differ in every run.

    A mask keeps where ``u ≥ p``; ε is the entry of the library's table at ``⌊4096 u⌋``. ONNX Runtime takes
    ``Dropout`` out of a model, but no node that draws. OpenVINO folds such a node where its shape is known
    before a run, and makes one of two that are equal: shapes come from the input, no two ranges are alike.
    """

    def keep(self, g: Graph, site: NoiseSite, like: str) -> str:
        # asked for the first axis alone, OpenVINO reads it off a convolution, and then fuses no bias there.
        rows = g.node("Mul", g.node("Shape", like, start=0, end=2), g.whole(1, 0))
        uniform, top = self._uniform(g, g.node("Add", rows, g.whole(0, *site.shape)))
        rate = keep_threshold(site.rate) / (1 << THRESHOLD_BITS)
        return g.node("GreaterOrEqual", uniform, g.constant(np.float32(rate * top)))

    def epsilon(self, g: Graph, site: NoiseSite, like: str) -> str:
        nothing = g.node("Mul", g.node("Shape", like, start=0, end=1), g.whole(0))
        uniform, top = self._uniform(g, g.node("Add", nothing, g.whole(*site.shape)))
        count = 1 << INDEX_BITS
        index = g.node("Floor", g.node("Mul", uniform, g.constant(np.float32(count / top))))
        # a runtime's generator may reach the end of its range.
        index = g.node("Min", index, g.constant(np.float32(count - 1)))
        table = g.constant(epsilon_table(site.bits), np.int8, "epsilon_table")
        drawn = g.node("Gather", table, g.cast(index, np.int32))
        return g.node("Reshape", drawn, g.whole(*site.shape))

    def _uniform(self, g: Graph, shape: str) -> tuple[str, float]:
        """Numbers from 0 to ``top``, which no other node of the model has."""
        top = float(g.serial())
        blank = g.node("ConstantOfShape", shape, value=g.zeros())
        return g.node("RandomUniformLike", blank, dtype=g.type_of(np.float32), low=0.0, high=top), top


class NoiseInputs(NoiseSource):
    """Tensors of the graph that hold the noise: of one draw, or of the folded draws of a member."""

    def __init__(self, tensors: Mapping[int, str]) -> None:
        self._tensors = tensors

    def keep(self, g: Graph, site: NoiseSite, like: str) -> str:
        flat = g.node("Reshape", self._tensors[site.site], g.whole(-1, *site.shape))
        return g.cast(flat, np.bool_)

    def epsilon(self, g: Graph, site: NoiseSite, like: str) -> str:
        return g.node("Reshape", self._tensors[site.site], g.whole(*site.shape))
