"""Augmentation of training images, batched on their device with torch's global generator."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Augment = Callable[[Tensor], Tensor]
Border = Literal["black", "reflect"]
BORDERS = ("black", "reflect")


@dataclass(frozen=True)
class CropAndFlip:
    """A random crop of the image padded by ``padding`` pixels, mirrored with probability ½.

    The padding is black, or what lies inside the border, reflected. Takes and gives
    ``(rows, channels, height, width)`` in raw units, where black is ``black``.
    """

    padding: int = 4
    black: float = 0.0
    border: Border = "black"

    def __call__(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        device = x.device
        down, right = torch.randint(0, 2 * self.padding + 1, (2, rows, 1), device=device)
        mirrored = torch.rand(rows, 1, device=device) < 0.5
        along, across = torch.arange(height, device=device), torch.arange(width, device=device)
        row, column = down + along, right + torch.where(mirrored, width - 1 - across, across)
        if self.border == "reflect":
            row, column = (_reflect(at - self.padding, n) for at, n in ((row, height), (column, width)))
        else:
            x = F.pad(x, (self.padding,) * 4, value=self.black)
        from_row, from_column = row[:, None, :, None], column[:, None, None, :]
        image = torch.arange(rows, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[None, :, None, None]
        return x[image, channel, from_row, from_column]


def _reflect(at: Tensor, length: int) -> Tensor:
    """Places beyond the ends of ``0 … length − 1``, reflected at the first and the last."""
    return length - 1 - (length - 1 - at.abs()).abs()


@dataclass(frozen=True)
class Cutout:
    """A square of ``side`` pixels painted in ``fill``, its centre at any pixel (DeVries and Taylor, 2017).

    What lies beyond the edge is cut off, so that some images keep most of themselves. Raw units as above.
    """

    side: int
    fill: float

    def __call__(self, x: Tensor) -> Tensor:
        rows, _, height, width = x.shape
        covered = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=x.device)
        for size, shape in ((height, (1, 1, -1, 1)), (width, (1, 1, 1, -1))):
            first = torch.randint(0, size, (rows, 1, 1, 1), device=x.device) - self.side // 2
            along = torch.arange(size, device=x.device).view(shape)
            covered = covered & (along >= first) & (along < first + self.side)
        return x.masked_fill(covered, self.fill)


@dataclass(frozen=True)
class InTurn:
    """One augmentation after the other."""

    parts: tuple[Augment, ...]

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x
