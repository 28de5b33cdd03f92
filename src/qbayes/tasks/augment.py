"""Augmentation of training images, batched on their device with torch's global generator."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Augment = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CropAndFlip:
    """A random crop of the image padded by ``padding`` pixels of black, mirrored with probability ½.

    Takes and gives ``(rows, channels, height, width)`` in raw units, where black is ``black``.
    """

    padding: int = 4
    black: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        device = x.device
        down, right = torch.randint(0, 2 * self.padding + 1, (2, rows, 1), device=device)
        mirrored = torch.rand(rows, 1, device=device) < 0.5
        along, across = torch.arange(height, device=device), torch.arange(width, device=device)
        from_row = (down + along)[:, None, :, None]
        from_column = (right + torch.where(mirrored, width - 1 - across, across))[:, None, None, :]
        image = torch.arange(rows, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[None, :, None, None]
        padded = F.pad(x, (self.padding,) * 4, value=self.black)
        return padded[image, channel, from_row, from_column]
