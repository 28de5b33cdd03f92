"""The draws of a member in the graph: what they share runs once, masks fold into the batch, weights loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qbayes.export.onnx.noise import (
    ROWS,
    NoiseInputs,
    NoiseInside,
    NoiseSite,
    NoiseSource,
    mask_elements,
)
from qbayes.integer.onnx.dialect import Dialect
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.site import dtype_of_codes, site_of
from qbayes.integer.onnx.weights import sampled, sampled_bias
from qbayes.integer.ops import Mask, Op, Weighted
from qbayes.integer.plan import Step, plan
from qbayes.integer.program import Member, Program


@dataclass(frozen=True, eq=False)
class MemberDraws:
    """One member of a program, with the number of its draws and the inputs that hold their noise.

    ``given`` has for each site the tensor ``(draws, …)`` of this member; without it the noise is inside.
    """

    program: Program
    member: Member
    dialect: Dialect
    draws: int
    sites: Mapping[int, NoiseSite]
    given: Mapping[int, str] | None

    def write(self, g: Graph, x: str) -> dict[str, str]:
        """The codes of each head, ``(draws, rows, …)``, from raw inputs."""
        names = dict.fromkeys(self.program.outputs.values())
        if self.draws == 1:
            values = self.values_of_draw(g, x)
            made = {name: g.node("Unsqueeze", values[name], g.whole(0)) for name in names}
            return {head: made[name] for head, name in self.program.outputs.items()}
        order = plan(self.program)
        values = {self.program.input: self.input_codes(g, x)}
        self._steps(g, order.prefix, values, NoiseInside())
        noisy = [name for name in names if name in self.program.noisy_values()]
        loops = any(isinstance(step.op, Weighted) and step.op.is_stochastic for step in order.suffix)
        made = (self._looped if loops else self._folded)(g, order.suffix, values, noisy)
        for name in names:
            if name not in made:
                made[name] = self._repeated(g, values[name], name, stacked=True)
        return {head: made[name] for head, name in self.program.outputs.items()}

    def values_of_draw(self, g: Graph, x: str) -> dict[str, str]:
        """The codes of every value of the program for a single draw."""
        order = plan(self.program)
        values = {self.program.input: self.input_codes(g, x)}
        self._steps(g, (*order.prefix, *order.suffix), values, self._of_draw(g, g.constant(np.int64(0))))
        return values

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

    def _folded(
        self, g: Graph, steps: Sequence[Step], values: dict[str, str], noisy: Sequence[str]
    ) -> dict[str, str]:
        """All draws as rows of one batch, the draw being the outer part."""
        noise = NoiseInside() if self.given is None else NoiseInputs(self.given)
        own = self.program.noisy_values()
        shared = {name: values[name] for step in steps for name in step.op.inputs if name not in own}
        repeated = {name: self._repeated(g, tensor, name, stacked=False) for name, tensor in shared.items()}
        found = {**repeated}
        self._steps(g, steps, found, noise)
        shapes = {name: self.program.values[name].shape for name in noisy}
        return {
            name: g.node("Reshape", found[name], g.whole(self.draws, -1, *shapes[name])) for name in noisy
        }

    def _looped(
        self, g: Graph, steps: Sequence[Step], values: dict[str, str], noisy: Sequence[str]
    ) -> dict[str, str]:
        """One pass of the body for each draw, whose weights serve all rows."""
        body = g.body("draw", [("draw", np.int64, ()), ("go", np.bool_, ())])
        found = dict(values)
        self._steps(body, steps, found, self._of_draw(body, "draw"))
        body.output("go", "go_on", np.bool_, ())
        for at, name in enumerate(noisy):
            value = self.program.values[name]
            body.output(found[name], f"head{at}", dtype_of_codes(value.bits), (ROWS, *value.shape))
        results = g.nodes(
            "Loop",
            *(g.constant(np.int64(self.draws)), g.constant(np.bool_(True))),
            results=len(noisy),
            body=body.proto("draw"),
        )
        return dict(zip(noisy, results, strict=True))

    def _of_draw(self, g: Graph, draw: str) -> NoiseSource:
        if self.given is None:
            return NoiseInside()
        tensors = {site: g.node("Gather", tensor, draw, axis=0) for site, tensor in self.given.items()}
        return NoiseInputs(tensors)

    def _steps(self, g: Graph, steps: Sequence[Step], values: dict[str, str], noise: NoiseSource) -> None:
        """Write the ops in order; a site that several ops share is drawn once."""
        known: dict[int, str] = {}
        for step in steps:
            op = step.op
            inputs = [values[name] for name in op.inputs]
            drawn = self._drawn(g, op, inputs[0], noise, known)
            values[op.output] = self.dialect.write(g, site_of(self.program, self.member, op, drawn), inputs)

    def _drawn(self, g: Graph, op: Op, x: str, noise: NoiseSource, known: dict[int, str]) -> dict[str, str]:
        if isinstance(op, Mask):
            with g.scope(op.name):
                if op.site not in known:
                    known[op.site] = noise.keep(g, self.sites[op.site], x)
                return {"keep": self._shaped_keep(g, op, known[op.site])}
        if not isinstance(op, Weighted) or not op.is_stochastic:
            return {}
        constants, lanes = self.member.constants[op.name], self.dialect.lanes
        with g.scope(op.name):
            for site in (op.weights.site, op.weights.bias_site):
                if site is not None and site not in known:
                    known[site] = noise.epsilon(g, self.sites[site], x)
            found = sampled(g, lanes, op, constants, known[op.weights.site])
            if op.weights.bias_site is not None:
                found["bias_steps"] = sampled_bias(g, lanes, constants, known[op.weights.bias_site])
        return found

    def _shaped_keep(self, g: Graph, op: Mask, flat: str) -> str:
        row = self.program.values[op.output].shape
        elements = mask_elements(op, row)
        if elements < self.sites[op.site].shape[0]:
            flat = g.node("Slice", flat, g.whole(0), g.whole(elements), g.whole(1))
        bits = (row[0], *(1,) * (len(row) - 1)) if op.channelwise else row
        return g.node("Reshape", flat, g.whole(-1, *bits))

    def _repeated(self, g: Graph, tensor: str, name: str, *, stacked: bool) -> str:
        """Rows that all draws share, once for each: along an axis of their own, or folded into the batch."""
        shape = self.program.values[name].shape
        wide = g.node("Expand", g.node("Unsqueeze", tensor, g.whole(0)), g.whole(self.draws, 1, *shape))
        return wide if stacked else g.node("Reshape", wide, g.whole(-1, *shape))
