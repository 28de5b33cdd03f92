"""A trial of a kernel at load: random codes at the real size, in dirty memory, against exact integers.

A runtime chooses its kernel by processor, shape and number of rows, and some are wrong. On a processor with
AMX, OpenVINO 2026.4 was wrong for one random program in thirty, and on one with AVX2 for none of these. So no
list of shapes would do: what a runtime compiled is tried as it is.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from qbayes.integer.arithmetic.dirty_memory import dirty_memory
from qbayes.integer.backends.base import Kernel
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.ops.base import Constants, Grids, Noise, type_of_codes
from qbayes.integer.ops.weighted import Weighted

# a single row, a few and more: each may have a kernel of its own.
_ROWS = (1, 3, 9)
_DIRT = (0x55, 0xAA)
_SEED, _DRAWS = 1, 2
# an output beyond its ends hides what its sum was.
_MOST_HIDDEN = 0.5
_LARGEST_SHIFT = 62
_BYTE = 8


def is_right(
    make: Callable[[Grids, Constants], Kernel], made: Kernel, shape: tuple[int, ...], most_apart: int
) -> bool:
    """Whether a runtime's kernel of a Conv or Linear gives the codes of exact integers.

    Where most sums lie beyond the ends of the output, the same op is tried once more with a wider output.

    Args:
        make: compiles the op with other grids and constants.
        made: the kernel to try.
        shape: of one row of the input.
        most_apart: by how much a code may differ.
    """
    right, hidden = _tried(made, shape, most_apart)
    if not right or hidden <= _MOST_HIDDEN:
        return right
    grids, constants = _widened(made, shape)
    return _tried(make(grids, constants), shape, most_apart)[0]


def _tried(kernel: Kernel, shape: tuple[int, ...], most_apart: int) -> tuple[bool, float]:
    """Whether all codes are right, and the share of them at the ends of the output."""
    exact = exact_kernel(kernel.op, kernel.grids, kernel.constants)
    hidden: list[float] = []
    for rows in _ROWS:
        want = _run(exact, rows, shape)
        for byte in _DIRT:
            with dirty_memory(byte):
                got = _run(kernel, rows, shape)
            if int((got - want).abs().max()) > most_apart:
                return False, 0.0
        hidden.append(_hidden(kernel.constants, want))
    return True, max(hidden)


def _run(kernel: Kernel, rows: int, shape: tuple[int, ...]) -> Tensor:
    draws = torch.arange(_DRAWS) if kernel.draws_weights else torch.zeros(1, dtype=torch.int64)
    drawn = [kernel.draw(_SEED, draw) for draw in draws.tolist()] if kernel.draws_weights else []
    return kernel([_codes(kernel.grids, rows, shape)], Noise(_SEED, draws, 0, rows), drawn).int()


def _hidden(constants: Constants, codes: Tensor) -> float:
    low, high = int(constants["low"]), int(constants["high"])
    return float(((codes <= low) | (codes >= high)).double().mean())


def _widened(kernel: Kernel, shape: tuple[int, ...]) -> tuple[Grids, Constants]:
    """The op with an output of a byte, in steps so large that most sums lie within it."""
    op, constants = kernel.op, dict(kernel.constants)
    assert isinstance(op, Weighted)
    top = (1 << _BYTE) - 1
    grids = replace(kernel.grids, zero=(top + 1) // 2, out_bits=_BYTE)
    constants["low"] = torch.zeros_like(constants["low"])
    constants["high"] = torch.full_like(constants["high"], top)
    while int(constants["shift"].max()) < _LARGEST_SHIFT:
        codes = torch.cat([_run(exact_kernel(op, grids, constants), rows, shape).flatten() for rows in _ROWS])
        if _hidden(constants, codes) <= _MOST_HIDDEN / 2:
            break
        constants["shift"] = constants["shift"] + 1
    return grids, constants


def _codes(grids: Grids, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Rows that reach all codes, and rows next to the zero-point, whose sums are small."""
    top, zero = (1 << grids.bits[0]) - 1, grids.zeros[0]
    generator = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, top + 1, (rows, *shape), generator=generator)
    shares = itertools.islice(itertools.cycle((4, 16, 1)), rows)
    for row, share in zip(codes, shares, strict=True):
        row.copy_((zero + torch.div(row - zero, share, rounding_mode="trunc")).clamp(0, top))
    return codes.to(type_of_codes(grids.bits[0]))
