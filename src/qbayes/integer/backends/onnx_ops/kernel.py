"""A kernel that hands one op to a runtime for ONNX models, as a model of its own.

Weights and masks are drawn as everywhere else and go in as tensors, so that a backend's draws are those of
the reference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.backends.exact_kernel import rows_of_draws
from qbayes.integer.c_library import threads_for
from qbayes.integer.onnx.dialect import Dialect
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site, dtype_of_codes
from qbayes.integer.onnx.runtimes import Arrays, open_model
from qbayes.integer.ops.base import Constants, Grids, Noise, Op
from qbayes.integer.ops.mask import Mask
from qbayes.integer.ops.weighted import Weighted

ROWS = "rows"
OUTPUT = "y"


def input_name(at: int) -> str:
    return f"x{at}"


def noise_types(site: Site) -> Mapping[str, tuple[type, tuple[str | int, ...]]]:
    """Type and shape of each tensor that the op draws from, by name."""
    op = site.op
    if isinstance(op, Mask):
        row = (site.shapes[0][0], *(1,) * (len(site.shapes[0]) - 1)) if op.channelwise else site.shapes[0]
        return {"keep": (np.bool_, (ROWS, *row))}
    if not isinstance(op, Weighted) or not op.is_stochastic:
        return {}
    drawn = "noise" if op.weights.grids == 2 else "weight"
    found: dict[str, tuple[type, tuple[str | int, ...]]] = {drawn: (np.int8, op.weight_shape)}
    if op.weights.bias_site is not None:
        found["bias_steps"] = np.int32, op.weight_shape[:1]
    return found


def single_op(dialect: Dialect, site: Site) -> bytes:
    """The model as the bytes of a file."""
    g = Graph()
    rows = [(ROWS, *shape) for shape in site.shapes]
    inputs = [
        g.input(input_name(at), dtype_of_codes(bits), shape)
        for at, (bits, shape) in enumerate(zip(site.grids.bits, rows, strict=True))
    ]
    for name, (dtype, shape) in noise_types(site).items():
        g.input(name, dtype, shape)
    codes = dialect.write(g, site, inputs)
    g.output(codes, OUTPUT, dtype_of_codes(site.grids.out_bits), (ROWS, *site.out_shape))
    return g.model(site.op.name).SerializeToString()


def bare_site(op: Op, grids: Grids, constants: Constants, shapes: Sequence[tuple[int, ...]]) -> Site:
    """An op outside its program: what codes mean does not change a code, so they count in steps of 1."""
    site = Site(op, grids, constants, tuple(shapes), op.out_shape(shapes), 1.0, 1.0)
    return replace(site, noise={name: name for name in noise_types(site)})


class RuntimeKernel(Kernel):
    """One op in a runtime."""

    def __init__(
        self,
        op: Op,
        grids: Grids,
        constants: Constants,
        shapes: Sequence[tuple[int, ...]],
        dialect: Dialect,
        runtime: str,
    ) -> None:
        super().__init__(op, grids, constants, runtime)
        site = bare_site(op, grids, constants, shapes)
        model = single_op(dialect, site)
        self._run = open_model(model, runtime, {OUTPUT}, torch.get_num_threads())
        self._weighted = op if isinstance(op, Weighted) and op.is_stochastic else None
        # every draw meets the rows by itself, so that they need not be repeated.
        self.takes_shared = self._weighted is not None

    @property
    def draws_weights(self) -> bool:
        return self._weighted is not None

    def draw(self, seed: int, draw: int) -> Drawn:
        """The codes of one draw as arrays."""
        op = self._weighted
        assert op is not None
        drawn = op.weights.draw(self.constants, seed, draw, threads_for(math.prod(op.weight_shape)))
        feeds = {name: drawn[name].numpy() for name in ("weight", "noise") if name in drawn}
        if op.weights.bias_site is not None:
            steps = drawn["bias"].long() - self.constants["bias"].long()
            feeds["bias_steps"] = steps.to(torch.int32).numpy()
        return feeds

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        if self._weighted is not None:
            pairs = zip(rows_of_draws(inputs[0], noise), drawn, strict=True)
            return torch.cat([self._codes([rows], one) for rows, one in pairs])
        if isinstance(self.op, Mask):
            keep = self.op.keep(inputs[0].shape, noise)
            return self._codes(inputs, {"keep": keep.numpy()})
        return self._codes(inputs, {})

    def _codes(self, inputs: Sequence[Tensor], noise: Arrays) -> Tensor:
        codes = {input_name(at): x.contiguous().numpy() for at, x in enumerate(inputs)}
        return torch.from_numpy(self._run({**codes, **noise})[OUTPUT])
