"""A network in which float makes no error: its calibration gives the same program on every processor."""

import torch
from torch import Tensor, nn


class Whole(nn.Module):
    """A convolution and two layers whose weights are eighths: with inputs ±1 every sum is exact in float."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.hidden, self.head = nn.Conv2d(2, 8, 3), nn.Linear(8 * 4, 16), nn.Linear(16, 5)
        self.drop = nn.Dropout(0.5)
        chosen = torch.Generator().manual_seed(8)
        for weight in self.parameters():
            drawn = torch.randint(-12, 13, weight.shape, generator=chosen)
            weight.data = drawn.float() / 8

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.head(self.drop(torch.relu(self.hidden(x.flatten(1)))))


def whole_rows(count: int = 64) -> tuple[Tensor, Tensor]:
    """Inputs ±1, and a class for each."""
    chosen = torch.Generator().manual_seed(9)
    x = torch.randint(0, 2, (count, 2, 6, 6), generator=chosen).float() * 2 - 1
    return x, torch.arange(count) % 5
