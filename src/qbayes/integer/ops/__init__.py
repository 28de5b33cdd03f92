"""The ops of a program, one family a file; ``OPS`` finds them by their kind."""

from qbayes.integer.ops.base import (
    OPS,
    Bound,
    Constant,
    Constants,
    Grids,
    MovingOp,
    Noise,
    Op,
    Shape,
    Value,
    clamp_codes,
    register_op,
    type_of_codes,
)
from qbayes.integer.ops.combine import Add, Concat, Mul
from qbayes.integer.ops.mask import Mask
from qbayes.integer.ops.pool import AvgPool, MaxPool
from qbayes.integer.ops.shape import Pad, Permute, Reshape, Slice, Upsample
from qbayes.integer.ops.unary import Affine, Lookup, Rescale
from qbayes.integer.ops.weighted import Conv, Linear, Weighted
from qbayes.integer.ops.weights import Weights

__all__ = [
    "OPS",
    "Add",
    "Affine",
    "AvgPool",
    "Bound",
    "Concat",
    "Constant",
    "Constants",
    "Conv",
    "Grids",
    "Linear",
    "Lookup",
    "Mask",
    "MaxPool",
    "MovingOp",
    "Mul",
    "Noise",
    "Op",
    "Pad",
    "Permute",
    "Rescale",
    "Reshape",
    "Shape",
    "Slice",
    "Upsample",
    "Value",
    "Weighted",
    "Weights",
    "clamp_codes",
    "register_op",
    "type_of_codes",
]
