"""The ops of a program, one family a file; ``OPS`` finds them by their kind."""

from qbayes.integer.ops.base import Constant, Constants, Grids, Noise, Op, Value, clamp_codes, type_of_codes
from qbayes.integer.ops.combine import Add, Concat, Mul
from qbayes.integer.ops.mask import Mask
from qbayes.integer.ops.pool import AvgPool, MaxPool
from qbayes.integer.ops.shape import Pad, Permute, Reshape, Slice, Upsample
from qbayes.integer.ops.unary import Affine, Lookup, Rescale
from qbayes.integer.ops.weighted import Conv, Linear, Weighted
from qbayes.integer.ops.weights import Weights

_ALL: tuple[type[Op], ...] = (
    *(Conv, Linear, Mask, Add, Mul, Concat, Rescale, Affine, Lookup),
    *(MaxPool, AvgPool, Upsample, Pad, Slice, Reshape, Permute),
)
OPS: dict[str, type[Op]] = {op.kind: op for op in _ALL}

__all__ = [
    "OPS",
    "Add",
    "Affine",
    "AvgPool",
    "Concat",
    "Constant",
    "Constants",
    "Conv",
    "Grids",
    "Linear",
    "Lookup",
    "Mask",
    "MaxPool",
    "Mul",
    "Noise",
    "Op",
    "Pad",
    "Permute",
    "Rescale",
    "Reshape",
    "Slice",
    "Upsample",
    "Value",
    "Weighted",
    "Weights",
    "clamp_codes",
    "type_of_codes",
]
