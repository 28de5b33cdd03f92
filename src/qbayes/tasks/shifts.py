"""Shifts of images: rotation, brightness and horizontal shift, five levels each, batched on tensors.

Black and white are given as ``low`` and ``high``, so the same functions serve raw images (0 and 255) and
standardised ones (one black and white level a channel): shifting commutes with an affine transform.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.errors import BadInput, unknown_name

Level = float | Tensor

LEVELS: dict[str, tuple[float, ...]] = {
    "rotation": (15.0, 30.0, 45.0, 60.0, 75.0),  # degrees, counter-clockwise
    "brightness": (1.5, 2.0, 2.5, 3.0, 3.5),  # factor on the intensity above black
    "horizontal_shift": (0.1, 0.2, 0.3, 0.4, 0.5),  # share of the width, to the right
}


def shift(x: Tensor, name: str, level: int, low: Level, high: Level) -> Tensor:
    """The images ``(rows, channels, height, width)`` shifted at ``level`` 1 … 5; level 0 changes nothing.

    ``low`` and ``high`` are the black and white levels in the units of ``x``, numbers or one a channel.
    uint8 images stay uint8, rounded to nearest.
    """
    _check(x, name, level)
    if level == 0:
        return x
    values = x if x.is_floating_point() else x.float()
    black, white = _per_channel(low, values), _per_channel(high, values)
    shifted = _SHIFTS[name](values, LEVELS[name][level - 1], black, white)
    return shifted if x.is_floating_point() else shifted.round().clamp(0, 255).to(x.dtype)


def rotate(x: Tensor, degrees: float, low: Tensor, high: Tensor) -> Tensor:
    """Counter-clockwise about the image's centre, bilinear, black outside.

    The output pixel at offset ``(u, v)`` (right, down) from the centre is read at
    ``(u cos θ − v sin θ, u sin θ + v cos θ)``.
    """
    height, width = x.shape[-2:]
    angle = math.radians(degrees)
    v = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
    u = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    v, u = torch.meshgrid(v, u, indexing="ij")
    across = u * math.cos(angle) - v * math.sin(angle)
    down = u * math.sin(angle) + v * math.cos(angle)
    # grid_sample's units: −1 and 1 are the outer edges of the border pixels.
    grid = torch.stack((across * 2 / width, down * 2 / height), -1).to(x)
    above_black = (x - low).contiguous()
    turned = F.grid_sample(
        above_black, grid.expand(len(x), -1, -1, -1), padding_mode="zeros", align_corners=False
    )
    return turned + low


def brighten(x: Tensor, factor: float, low: Tensor, high: Tensor) -> Tensor:
    """``min(white, black + factor (x − black))``."""
    return torch.minimum(low + factor * (x - low), high)


def shift_right(x: Tensor, share: float, low: Tensor, high: Tensor) -> Tensor:
    """Moved right by ``share`` of the width, in whole pixels; black moves in from the left."""
    width = x.shape[-1]
    pixels = math.floor(share * width + 0.5)
    moved = low.expand_as(x).clone()
    moved[..., pixels:] = x[..., : width - pixels]
    return moved


_SHIFTS: dict[str, Callable[[Tensor, float, Tensor, Tensor], Tensor]] = {
    "rotation": rotate,
    "brightness": brighten,
    "horizontal_shift": shift_right,
}


def _check(x: Tensor, name: str, level: int) -> None:
    if name not in LEVELS:
        raise unknown_name("shift", name, LEVELS)
    if level not in range(len(LEVELS[name]) + 1):
        raise BadInput(
            "the level of a shift must be 0 … 5", f"{level!r}", "0 is the clean image, 5 the worst"
        )
    if x.ndim != 4:
        raise BadInput(
            "shifts need images (rows, channels, height, width)",
            f"shape {tuple(x.shape)}",
            "shift image tasks only",
        )


def _per_channel(level: Level, x: Tensor) -> Tensor:
    tensor = torch.as_tensor(level, dtype=x.dtype, device=x.device)
    if tensor.ndim == 0 or tensor.numel() in (1, x.shape[1]):
        return tensor.reshape(-1, 1, 1)
    raise BadInput(
        f"black and white must be numbers, or one value for each of the {x.shape[1]} channels",
        f"{tensor.numel()} values",
        "apply the task's transform to the raw black and white levels",
    )
