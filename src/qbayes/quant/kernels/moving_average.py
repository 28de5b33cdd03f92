r"""Ranges that follow the data of training: on a CUDA device in two kernels, on a CPU in one call of C.

A moving average of the extremes (``ema``, the paper's rule) takes some 35 operations on single numbers for
each tensor of each step: to find the extremes, to see that they are finite, to move, and to make a grid.

.. math::
    a \leftarrow a + c\,(\min x - a), \qquad b \leftarrow b + c\,(\max x - b), \qquad
    S = \frac{\max(b, 0) - \min(a, 0)}{q_{high} - q_{low}}, \qquad
    Z = q_{low} - \mathrm{round}(\min(a, 0) / S)

Weights are seen whole: theirs are the extremes now, c = 1. Batches that are not finite are passed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.device import ALIGNMENT, DTYPES, dense, in_memory, on_a_cpu, on_a_gpu, triton_works_on
from qbayes.integer.arithmetic.grid import EMPTY_SCALE, LARGEST_SCALE, SMALLEST_SCALE
from qbayes.quant.kernels import c_kernels
from qbayes.quant.kernels.moving_average_triton import kernels

_BLOCK, _BLOCKS = 4096, 1024


@dataclass(frozen=True)
class Grid:
    """What moves: the grid of codes from ``first`` to ``last``, and whether data have set it."""

    scale: Tensor
    zero: Tensor
    ready: Tensor
    first: int
    last: int


def can_follow(x: Tensor, grid: Grid) -> bool:
    """Whether the kernels serve these: one scale, and a tensor without gaps."""
    gpu = on_a_gpu(x)
    if not (gpu or on_a_cpu(x)) or not in_memory(grid.scale) or grid.scale.numel() > 1:
        return False
    if not gpu:
        fits = x.dtype in c_kernels.DTYPES and grid.scale.dtype == torch.float32
        return fits and x.numel() > 0 and dense(x) and c_kernels.kernels() is not None
    sound = x.dtype in DTYPES and x.numel() > 0 and x.data_ptr() % ALIGNMENT == 0
    return sound and grid.scale.device == x.device and dense(x) and triton_works_on(x.device)


@torch.no_grad()
def follow(x: Tensor, grid: Grid, state: Mapping[str, Tensor], pace: float) -> None:
    """Let the range of ``state`` (low, high, started) move towards ``x``, and the grid with it.

    Without a state they are there at once.
    """
    if not on_a_gpu(x):
        _follow_on_a_cpu(x, grid, state, pace)
        return
    blocks = -(-x.numel() // _BLOCK)
    lows, highs = x.new_empty((2, blocks), dtype=torch.float32)
    moving = (state["low"], state["high"], state["started"]) if state else (lows, highs, grid.ready)
    numbers = {
        "MOVES": bool(state),
        "PACE": pace,
        "EMPTY": EMPTY_SCALE,
        "SMALLEST": SMALLEST_SCALE,
        "LARGEST": LARGEST_SCALE,
        "STEPS": -(-blocks // _BLOCKS),
        "BLOCK": _BLOCKS,
    }
    # a flag is a byte.
    flags = [flag.view(torch.uint8) for flag in (moving[2], grid.ready)]
    ends = (float(grid.first), float(grid.last), blocks)
    with torch.cuda.device_of(x):
        kernels()[0][(blocks,)](x, lows, highs, x.numel(), BLOCK=_BLOCK)
        kernels()[1][(1,)](
            lows, highs, *moving[:2], flags[0], grid.scale, grid.zero, flags[1], *ends, **numbers
        )


def _follow_on_a_cpu(x: Tensor, grid: Grid, state: Mapping[str, Tensor], pace: float) -> None:
    library = c_kernels.kernels()
    assert library is not None
    shares = torch.empty(3 * -(-x.numel() // library.chunk))
    moving = [state[name].data_ptr() for name in ("low", "high", "started")] if state else (None, None, None)
    library.follow(
        *(x.data_ptr(), int(x.dtype == torch.bfloat16), x.numel(), *moving),
        *(grid.scale.data_ptr(), grid.zero.data_ptr(), grid.ready.data_ptr()),
        *(grid.first, grid.last, pace, EMPTY_SCALE, SMALLEST_SCALE, LARGEST_SCALE),
        *(shares.data_ptr(), c_kernels.threads_for(x.numel())),
    )
