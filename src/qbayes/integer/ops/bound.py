"""How large the numbers of an op can become, whatever its input: what every op must say of itself.

The reach of a value is the largest ``|q − Z|`` that its codes allow, ``max(Z, 2^n − 1 − Z)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from qbayes.errors import BadInput

ACCUMULATOR_LIMIT = (1 << 31) - 1
PRODUCT_LIMIT = (1 << 62) - 1
LARGEST_VALUE = 1 << 28  # elements of one row
MOST_WINDOWS = 1 << 22  # of an average pooling, which are listed one by one
DO = "lower the network again; if the program came from a file, it was damaged or made by hand"


@dataclass(frozen=True)
class Bound:
    """The largest sum that int32 must hold, and the largest product or sum of products for int64."""

    accumulator: int = 0
    product: int = 0


def require(holds: bool, must: str, got: object) -> None:
    """Raise BadInput unless the condition of a proof holds."""
    if not holds:
        raise BadInput(must, f"{got}"[:200], DO)


def reach(bits: int, zero: int) -> int:
    """The largest ``|q − Z|``."""
    return max(zero, (1 << bits) - 1 - zero)


def padded(shape: Sequence[int], padding: Sequence[int]) -> list[int]:
    """The lengths of a row of channels × axes with padding before and after each axis."""
    return [*shape[:1], *(n + 2 * p for n, p in zip(shape[1:], padding, strict=False))]


def check_padded(op: str, shape: Sequence[int], padding: Sequence[int]) -> None:
    """Raise where a row with its padding is absurdly large."""
    count = math.prod(padded(shape, padding))
    require(count <= LARGEST_VALUE, f"'{op}': a padded row must be below 2^28 elements", count)


def largest(codes: Tensor) -> int:
    """The largest magnitude of integers."""
    return int(codes.long().abs().max())
