"""Whether a runtime's int8 products saturate on this processor, found out by running one.

x86 without VNNI adds two products of a byte and an int8 in 16 bits: ``255 · 127 · 2`` does not fit, and the
sum is silently wrong. Products whose pairs stay below 2^15 are right everywhere.
"""

import numpy as np
import torch

from qbayes.integer.arithmetic.fixed_point import fixed_point
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.backends.onnx_ops.model import OUTPUT, input_name, single_op
from qbayes.integer.onnx.dialect import Dialect
from qbayes.integer.onnx.op_context import Site
from qbayes.integer.onnx.runtimes import open_model
from qbayes.integer.onnx.weights import drawn_codes, point_parts
from qbayes.integer.ops import Linear, Weights
from qbayes.integer.ops.base import Grids
from qbayes.integer.ops.weighted import Weighted

_PAIR = (1 << 15) - 1
_INPUTS, _OUTPUTS, _WANTED = 64, 16, 200
WHY = "8-bit products saturate in this runtime on this processor"


def saturates(dialect: Dialect, runtime: str) -> bool:
    """Whether sums of the largest products come out wrong."""
    op = Linear("probe", ("x",), "y", Weights("point", 8), _INPUTS, _OUTPUTS)
    largest = 255 * 127 * _INPUTS
    multiplier, shift = fixed_point(torch.full((_OUTPUTS,), _WANTED / largest, dtype=torch.float64))
    constants = {
        "weight": torch.full((_OUTPUTS, _INPUTS), 127, dtype=torch.int8),
        "bias": torch.zeros(_OUTPUTS, dtype=torch.int32),
        "multiplier": multiplier,
        "shift": shift,
        "low": torch.tensor([0]),
        "high": torch.tensor([255]),
    }
    site = Site(op, Grids((0,), 0, (8,), 8), constants, ((_INPUTS,),), (_OUTPUTS,), 1.0, 1.0)
    run = open_model(single_op(dialect, site), runtime, {OUTPUT}, torch.get_num_threads())
    found = run({input_name(0): np.full((32, _INPUTS), 255, np.uint8)})[OUTPUT]
    return bool((found != _WANTED).any())


def may_saturate(site: Site) -> bool:
    """Whether two neighbouring products of the op could leave 16 bits."""
    op = site.op
    if not isinstance(op, Weighted) or site.grids.bits[0] > MOST_BITS:
        return False
    names = ("mean", "noise") if op.weights.grids == 2 else ("weight",)
    codes = [drawn_codes(site, name) for name in names] if op.is_stochastic else point_parts(site)
    return 2 * site.reach * max(part.size + abs(part.zero) for part in codes) > _PAIR
