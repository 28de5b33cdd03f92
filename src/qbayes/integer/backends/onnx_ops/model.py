"""One op of a program as a model of its own: codes and drawn noise in, codes out. What backends run."""

from collections.abc import Mapping

import numpy as np

from qbayes.integer.onnx.dialect import Dialect
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site, dtype_of_codes
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
