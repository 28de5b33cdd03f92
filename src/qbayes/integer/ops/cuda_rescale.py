"""Sums to codes on a CUDA device in one kernel, where plain torch takes a dozen passes over int64 numbers.

The same integers: ``Weighted.run_draw`` and ``Add.run`` define them, and the tests compare. On a GPU the
reference backend waits for memory: fewer passes make it fast enough for whole studies. Triton comes with
torch's CUDA build and with no other: it is imported with the first CUDA tensor.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from qbayes.device import in_memory, triton_works_on
from qbayes.integer.ops.base import Constants, Grids, type_of_codes
from qbayes.integer.ops.cuda_rescale_triton import kernels

_BLOCK = 1024
_LANES = torch.channels_last
_MOST_ELEMENTS = 2**31 - 1


def can_fuse(*tensors: Tensor) -> bool:
    """Whether the kernels serve these tensors: plain ones, of one shape, in the memory of a CUDA device."""
    first = tensors[0]
    if torch.compiler.is_compiling() or not all(t.is_cuda for t in tensors):
        return False
    alike = all(t.shape == first.shape and t.device == first.device for t in tensors)
    fits = alike and 0 < first.numel() <= _MOST_ELEMENTS
    return fits and in_memory(*tensors) and triton_works_on(first.device)


def rescale_sums(
    sums: Tensor,
    spread: Tensor | None,
    drawn: Mapping[str, Tensor],
    constants: Constants,
    grids: Grids,
    axis: int,
) -> Tensor:
    """Codes from the sums of a weighted op (float lanes) and, with two accumulators, of its noise.

    ``axis`` is that of the output's channels, counted from the front.
    """
    sums = sums.contiguous()
    codes = torch.empty_like(sums, dtype=type_of_codes(grids.out_bits))
    second = constants["second_multiplier"] if spread is not None else constants["multiplier"]
    more = spread.contiguous() if spread is not None else sums
    bias = drawn["bias"]
    with torch.cuda.device_of(sums):
        kernels()[0][(_programs(sums),)](
            *(sums, more, codes, bias, constants["multiplier"], second, constants["shift"]),
            *(constants["low"], constants["high"], grids.zero, sums.numel(), sums.shape[axis]),
            math.prod(sums.shape[axis + 1 :]),
            BIASES=int(bias.numel() > 1),
            MULTIPLIERS=int(constants["multiplier"].numel() > 1),
            SHIFTS=int(constants["shift"].numel() > 1),
            SECONDS=int(second.numel() > 1),
            TWO=spread is not None,
            BLOCK=_BLOCK,
        )
    return codes


def add_codes(first: Tensor, second: Tensor, constants: Constants, grids: Grids) -> Tensor:
    """Codes of the sum of two values of one shape, in the layout that both have."""
    if first.stride() != second.stride() or not first.is_contiguous(memory_format=_LANES):
        first, second = first.contiguous(), second.contiguous()
    codes = torch.empty_like(first, dtype=type_of_codes(grids.out_bits))
    with torch.cuda.device_of(first):
        kernels()[1][(_programs(first),)](
            *(first, second, codes, constants["multipliers"], constants["shift"]),
            *(constants["low"], constants["high"], *grids.zeros, grids.zero, first.numel()),
            BLOCK=_BLOCK,
        )
    return codes


def _programs(t: Tensor) -> int:
    return -(-t.numel() // _BLOCK)
