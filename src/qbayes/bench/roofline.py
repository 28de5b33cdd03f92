"""How many operations a second this processor can do: a large matrix product, timed in the same run.

The int8 product is oneDNN's, with the kernels that the backend ``onednn`` uses; a multiply-accumulate counts
as two operations. What a network reaches of it is the share of the operations that it *needs*, layer by layer
for every draw, whatever an engine computes in truth: work that it saves counts as done.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from qbayes.bench.timing import Times, Way
from qbayes.integer.int8_ops import Shape, Target, pack, product, why_missing
from qbayes.integer.ops import Weighted
from qbayes.integer.program import Program

# Rows, inputs and outputs of the product: 17 billion operations, some hundredths of a second.
SIZE = 2048
_OPERATIONS = 2 * SIZE**3
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


def roofline_ways() -> dict[str, Way]:
    """What to time beside the engines."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    ways = {FLOAT: Way(lambda: torch.mm(a, b), 1)}
    if why_missing() is None:
        shape = Shape(SIZE, SIZE)
        x = torch.randint(0, 1 << 8, (SIZE, SIZE), dtype=torch.uint8)
        codes = torch.randint(-_LARGEST_CODE, _LARGEST_CODE + 1, (SIZE, SIZE), dtype=torch.int8)
        target = Target(torch.full((SIZE,), 2.0**-12), 0, 0, 255)
        zeros = torch.zeros(SIZE, dtype=torch.int32)
        packed = pack(shape, codes, zeros, target, 0)
        ways[INT8] = Way(lambda: product(shape, x, 0, packed, target, zeros), 1)
    return ways


def roofline(times: Mapping[str, Times]) -> Roofline:
    """From the times of ``roofline_ways``."""
    int8 = _OPERATIONS / times[INT8].best if INT8 in times else None
    return Roofline(int8, _OPERATIONS / times[FLOAT].best)


def operations(program: Program) -> int:
    """Operations that one pass of the network needs for one row; a Gaussian weight counts once."""
    weighted = [op for op in program.ops if isinstance(op, Weighted)]
    return 2 * sum(op.macs(program.values) // op.weights.accumulators for op in weighted)
