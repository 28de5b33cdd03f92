"""The draws of a program in a graph: codes from raw inputs, op by op in a dialect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qbayes.export.onnx.draws import Draws, Flow
from qbayes.export.onnx.noise import (
    NoiseInputs,
    NoiseInside,
    NoiseSite,
    NoiseSource,
    mask_elements,
)
from qbayes.integer.onnx.dialect import Dialect
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import dtype_of_codes, site_of
from qbayes.integer.onnx.weights import write_bias_draw, write_draw
from qbayes.integer.ops import Mask, Op, Weighted
from qbayes.integer.program import Program
from qbayes.integer.structure.program_data import Member, Step, plan


@dataclass(frozen=True, eq=False)
class MemberDraws(Draws[str, Step]):
    """One member of a program."""

    program: Program
    member: Member
    dialect: Dialect
    draws: int
    sites: Mapping[int, NoiseSite]
    given: Mapping[int, str] | None

    def flow(self) -> Flow[str, Step]:
        order, noisy = plan(self.program), self.program.noisy_values()
        steps = order.suffix
        shared = dict.fromkeys(name for step in steps for name in step.op.inputs if name not in noisy)
        samples = any(isinstance(step.op, Weighted) and step.op.is_stochastic for step in steps)
        return Flow(order.prefix, steps, tuple(shared), self.program.outputs, frozenset(noisy), samples)

    def begin(self, g: Graph, x: str) -> dict[str, str]:
        return {self.program.input: self.input_codes(g, x)}

    def noise(self, given: Mapping[int, str] | None) -> NoiseSource:
        return NoiseInside() if given is None else NoiseInputs(given)

    def shape(self, key: str) -> tuple[int, ...]:
        return self.program.values[key].shape

    def dtype(self, key: str) -> Any:
        return dtype_of_codes(self.program.values[key].bits)

    def input_codes(self, g: Graph, x: str) -> str:
        """``clamp(round(z / S), −Z, 2^n − 1 − Z) + Z`` of the standardised input z, in float32."""
        program, name = self.program, self.program.input
        value, zero = program.values[name], float(self.member.zeros[name])
        along = (-1, *(1,) * (len(value.shape) - 1))
        transform = program.signature.transform
        mean, std = (t.numpy().astype(np.float32).reshape(along) for t in (transform.mean, transform.std))
        with g.scope("input"):
            z = g.node("Div", g.node("Sub", x, g.constant(mean)), g.constant(std))
            steps = g.node("Div", z, g.constant(np.float32(self.member.scales[name])))
            ends = (-zero, (1 << value.bits) - 1 - zero)
            clipped = g.node("Clip", steps, *(g.constant(np.float32(end)) for end in ends))
            codes = g.node("Add", g.node("Round", clipped), g.constant(np.float32(zero)))
            return g.cast(codes, dtype_of_codes(value.bits))

    def run(self, g: Graph, steps: Sequence[Step], values: dict[str, str], noise: NoiseSource) -> None:
        known: dict[int, str] = {}
        for step in steps:
            op = step.op
            inputs = [values[name] for name in op.inputs]
            drawn = self._draw(g, op, inputs[0], noise, known)
            values[op.output] = self.dialect.write(g, site_of(self.program, self.member, op, drawn), inputs)

    def _draw(self, g: Graph, op: Op, x: str, noise: NoiseSource, known: dict[int, str]) -> dict[str, str]:
        if isinstance(op, Mask):
            with g.scope(op.name):
                if op.site not in known:
                    known[op.site] = noise.keep(g, self.sites[op.site], x)
                return {"keep": self._shape_keep(g, op, known[op.site])}
        if not isinstance(op, Weighted) or not op.is_stochastic:
            return {}
        constants, lanes = self.member.constants[op.name], self.dialect.lanes
        with g.scope(op.name):
            for site in (op.weights.site, op.weights.bias_site):
                if site is not None and site not in known:
                    known[site] = noise.epsilon(g, self.sites[site], x)
            found = write_draw(g, lanes, op, constants, known[op.weights.site])
            if op.weights.bias_site is not None:
                found["bias_steps"] = write_bias_draw(g, lanes, constants, known[op.weights.bias_site])
        return found

    def _shape_keep(self, g: Graph, op: Mask, flat: str) -> str:
        row = self.program.values[op.output].shape
        elements = mask_elements(op, row)
        if elements < self.sites[op.site].shape[0]:
            flat = g.node("Slice", flat, g.whole(0), g.whole(elements), g.whole(1))
        bits = (row[0], *(1,) * (len(row) - 1)) if op.channelwise else row
        return g.node("Reshape", flat, g.whole(-1, *bits))
