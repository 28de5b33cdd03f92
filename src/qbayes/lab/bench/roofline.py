"""How many operations a second this processor can do: a large matrix product, timed in the same run.

The int8 product is oneDNN's, with the kernels that the backend ``onednn`` uses; a multiply-accumulate counts
as two operations. What a network reaches of it is the share of the operations that it *needs*, layer by layer
for every draw, whatever an engine computes in truth: work that it saves counts as done. Products with the
zeros of a padding are not needed; kernels leave them out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from qbayes.integer.backends.onednn.primitives import Shape, Target, pack, product
from qbayes.integer.backends.onednn.trial import why_missing
from qbayes.integer.ops import Conv, Weighted
from qbayes.integer.program import Program
from qbayes.lab.bench.timing import Run

# Of the product: 17 billion operations, some hundredths of a second. A long sum is what kernels do best.
_ROWS, _INPUTS, _OUTPUTS = 2048, 4096, 1024
INT8, FLOAT = "roofline int8", "roofline float"
# Small codes: the product of large ones may saturate, which takes no less time.
_LARGEST_CODE = 7


@dataclass(frozen=True)
class Roofline:
    """Operations a second of a large product; None where there is no int8 kernel."""

    int8: float | None
    float32: float

    def of(self, numbers: str) -> float | None:
        return self.float32 if numbers == "float" else self.int8


def roofline_names() -> list[str]:
    """The products that this processor has kernels for."""
    return [FLOAT] if why_missing() is not None else [FLOAT, INT8]


def roofline_products() -> dict[str, Run]:
    """What to time beside the engines, by name."""
    a, b = torch.randn(_ROWS, _INPUTS), torch.randn(_INPUTS, _OUTPUTS)
    found: dict[str, Run] = {FLOAT: lambda: torch.mm(a, b)}
    if INT8 in roofline_names():
        shape = Shape(_INPUTS, _OUTPUTS)
        x = torch.randint(0, 1 << 8, (_ROWS, _INPUTS), dtype=torch.uint8)
        codes = torch.randint(-_LARGEST_CODE, _LARGEST_CODE + 1, (_OUTPUTS, _INPUTS), dtype=torch.int8)
        target = Target(torch.full((_OUTPUTS,), 2.0**-12), 0, 0, 255)
        zeros = torch.zeros(_OUTPUTS, dtype=torch.int32)
        packed = pack(shape, codes, zeros, target, 0)
        found[INT8] = lambda: product(shape, x, 0, packed, target, zeros)
    return found


def roofline(seconds: Mapping[str, Sequence[float]]) -> Roofline:
    """From the times of ``roofline_products``."""
    done = 2 * _ROWS * _INPUTS * _OUTPUTS
    return Roofline(done / min(seconds[INT8]) if INT8 in seconds else None, done / min(seconds[FLOAT]))


def operations(program: Program) -> int:
    """Operations that one pass of the network needs for one row; a Gaussian weight counts once."""
    return 2 * sum(_products(program, op) for op in program.ops if isinstance(op, Weighted))


def _products(program: Program, op: Weighted) -> int:
    """Products of a weight with a number of the input that is not padding."""
    products = op.macs(program.values) // op.weights.accumulators
    if isinstance(op, Conv):
        lengths, outputs = program.values[op.inputs[0]].shape[1:], program.values[op.output].shape[1:]
        for axis, (length, out, taps) in enumerate(zip(lengths, outputs, op.kernel, strict=True)):
            first = [place * op.stride[axis] - op.padding[axis] for place in range(out)]
            reached = [start + tap * op.dilation[axis] for start in first for tap in range(taps)]
            # the taps of an axis fall beside the image independently of the other axes.
            products = products * sum(0 <= at < length for at in reached) // len(reached)
    return products
