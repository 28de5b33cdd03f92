"""What must be proven of an op's constants: that they lie in the ranges that their roles have."""

from torch import Tensor

from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.ops.bound import require


def check_codes(op: Op, constants: Constants, grids: Grids) -> None:
    """Raise unless the constants, already of their declared widths, lie in the ranges their roles have."""
    for name, codes in constants.items():
        limits = op.limits(name, grids)
        if limits is not None:
            _within(op, name, codes, *limits)
    if "low" in constants:
        low, high = int(constants["low"]), int(constants["high"])
        if low > high:
            require(False, f"'{op.name}': low must be at most high", f"{low} and {high}")
    if op.keeps_grid:
        before, after = (grids.bits[0], grids.zeros[0]), (grids.out_bits, grids.zero)
        if before != after:
            must = f"'{op.name}' must keep the bits and the zero-point of its codes"
            require(False, must, f"{before} before, {after} after")


def _within(op: Op, name: str, codes: Tensor, low: int, high: int) -> None:
    least, most = extremes(codes)
    if not low <= least <= most <= high:
        require(False, f"'{op.name}': {name} must lie in {low} … {high}", f"{least} … {most}")


def extremes(codes: Tensor) -> tuple[int, int]:
    """The least and the greatest of integers; most constants are a single one."""
    if codes.numel() == 1:
        return (only := int(codes)), only
    return int(codes.min()), int(codes.max())
