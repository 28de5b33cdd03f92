"""Dense memory layouts of codes: channels first, or channels last as int8 convolutions like them.

A tensor of rows (rows, channels, positions …) is dense in one of the two ways, and kernels keep the way that
comes in. Sequences (rows, channels, length) are images of height 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_LAST = torch.channels_last


def images(x: Tensor) -> Tensor:
    """``(rows, channels, height, width)`` with channels last in memory."""
    return (x.unsqueeze(2) if x.dim() == 3 else x).contiguous(memory_format=_LAST)


def is_last(x: Tensor) -> bool:
    """Whether channels lie last in memory and not first (where both are the same, they lie first)."""
    if x.is_contiguous() or x.dim() not in (3, 4):
        return False
    return (x.unsqueeze(2) if x.dim() == 3 else x).is_contiguous(memory_format=_LAST)


def dense(x: Tensor) -> Tensor:
    """``x`` itself if it is dense in one of the two ways, else with channels first."""
    return x if is_last(x) else x.contiguous()


def alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    """All in the layout of the first that has channels last, else with channels first."""
    if any(is_last(x) for x in tensors):
        return [_last(x) for x in tensors]
    return [x.contiguous() for x in tensors]


def empty(shape: Sequence[int], last: bool) -> Tensor:
    """Room for codes, with channels last or first."""
    if not last:
        return torch.empty(tuple(shape), dtype=torch.uint8)
    if len(shape) == 3:
        rows, channels, length = shape
        return torch.empty((rows, channels, 1, length), dtype=torch.uint8, memory_format=_LAST).squeeze(2)
    return torch.empty(tuple(shape), dtype=torch.uint8, memory_format=_LAST)


def _last(x: Tensor) -> Tensor:
    return images(x).squeeze(2) if x.dim() == 3 else images(x)
