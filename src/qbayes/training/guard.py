"""Numerical trouble stops a run with a reason and never hides in an average.

Everything here works on one network, or on several along a leading stack axis.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from qbayes.errors import RunFailed

# A loss this many times worse than the first epoch's is not coming back.
_DIVERGED = 100.0


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, *, stacked: bool = False) -> Tensor:
    """Scale gradients so that each network's norm is at most ``limit``; returns the norms before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    squares = [(g * g).reshape(len(g), -1).sum(1) if stacked else (g * g).sum() for g in gradients]
    norms = torch.stack(squares).sum(0).sqrt()
    scales = (limit / norms.clamp_min(1e-12)).clamp_max(1.0)
    for gradient in gradients:
        gradient.mul_(scales.view((-1,) + (1,) * (gradient.ndim - 1)) if stacked else scales)
    return norms


def check_epoch_loss(losses: Tensor, first: Tensor | None, epoch: int) -> None:
    """Raise if an epoch's mean loss (one a network) is not finite, or far above the first epoch's."""
    bad = ~torch.isfinite(losses)
    reason = "is not finite"
    if first is not None and not bool(bad.any()):
        bad = losses > _DIVERGED * (1 + first.abs())
        reason = f"is over {_DIVERGED:g} times the first epoch's"
    if bool(bad.any()):
        which = "" if losses.ndim == 0 else f" of network {int(bad.nonzero()[0])}"
        value = float(losses[bad].flatten()[0])
        raise RunFailed(
            "the training loss must stay finite and not diverge",
            f"in epoch {epoch} the loss{which} {reason} ({value:.4g})",
            "lower the learning rate, clip gradients (clip=1), or check the data's scale",
        )


def check_state(state: Mapping[str, Tensor], epoch: int) -> None:
    """Raise if a state to be kept holds NaN or infinity: the last step's harm shows in no loss."""
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise RunFailed(
                "the parameters must stay finite",
                f"after epoch {epoch}, {name} is not",
                "lower the learning rate, clip gradients (clip=1), or check the data's scale",
            )
