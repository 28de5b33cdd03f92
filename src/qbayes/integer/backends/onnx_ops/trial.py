"""A trial of a kernel at load: random codes at the real size, in dirty memory, against exact integers.

A runtime chooses its kernel by processor, shape and number of rows, and some are wrong. On a processor with
AMX, OpenVINO 2026.4 was wrong for one random program in thirty, and on one with AVX2 for none of these. So no
list of shapes would do: what a runtime compiled is tried as it is.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from qbayes.integer.arithmetic.exact_matmul import dirty_memory
from qbayes.integer.arithmetic.fixed_point import fixed_point
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.backends.base import Kernel
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.backends.onnx_ops.kernel import OUTPUT, input_name, single_op
from qbayes.integer.onnx.dialect import Dialect
from qbayes.integer.onnx.op_context import Site
from qbayes.integer.onnx.runtimes import open_model
from qbayes.integer.onnx.weights import codes_of_draws, point_parts
from qbayes.integer.ops import Linear, Weights
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
    right, hidden = _try(made, shape, most_apart)
    if not right or hidden <= _MOST_HIDDEN:
        return right
    grids, constants = _widen(made, shape)
    return _try(make(grids, constants), shape, most_apart)[0]


def _try(kernel: Kernel, shape: tuple[int, ...], most_apart: int) -> tuple[bool, float]:
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


def _widen(kernel: Kernel, shape: tuple[int, ...]) -> tuple[Grids, Constants]:
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
    codes = [codes_of_draws(site, name) for name in names] if op.is_stochastic else point_parts(site)
    return 2 * site.reach * max(part.size + abs(part.zero) for part in codes) > _PAIR
