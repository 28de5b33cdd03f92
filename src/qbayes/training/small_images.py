"""Smaller images for the first epochs: what is learnt first needs no detail, and steps take half the time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.tasks import Task

_SHARE = 0.75
_IMAGES = 4  # axes of a batch


def shrink(x: Tensor) -> Tensor:
    """A batch of images with three quarters of their side, smoothed before pixels are left out."""
    side = [max(1, round(_SHARE * length)) for length in x.shape[-2:]]
    return F.interpolate(x, side, mode="bilinear", antialias=True)


@torch.no_grad()
def check_small_images(module: nn.Module, task: Task) -> None:
    """Raise BadInput unless the task has images and the network takes smaller ones too."""
    example = task.example(2)
    got = f"rows of the shape {tuple(example.shape[1:])}"
    if example.ndim == _IMAGES:
        try:
            module.eval()(shrink(example))
        except (RuntimeError, ValueError) as error:
            got = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        else:
            return
    raise BadInput(
        "small_images needs images, and a network that takes them in any size",
        got,
        "leave small_images out, or average over the map before the first Linear layer",
    )
