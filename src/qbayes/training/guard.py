"""Numerical trouble stops a run with a reason and never hides in an average.

Everything here works on one network, or on several along a leading stack axis.
"""
# torch's operations on lists of tensors bear private names:
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from qbayes.errors import RunFailed

# A loss this many times worse than the first epoch's is not coming back, after this many epochs on end. (The
# paper's rate for Gaussian weights on small tables has single epochs like that, and recovers.)
_DIVERGED = 100.0
_ON_END = 5


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, *, stacked: bool = False) -> Tensor:
    """Scale gradients so that each network's norm is at most ``limit``; returns the norms before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    # all tensors in one kernel where one can take them all: a network has dozens of small ones.
    if stacked:
        squares = torch._foreach_mul(gradients, gradients)
        norms = torch.stack([s.reshape(len(s), -1).sum(1) for s in squares]).sum(0).sqrt()
    else:
        norms = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    scales = (limit / norms.clamp_min(1e-12)).clamp_max(1.0)
    if stacked:
        for gradient in gradients:
            gradient.mul_(scales.view((-1,) + (1,) * (gradient.ndim - 1)))
    else:
        torch._foreach_mul_(gradients, scales)
    return norms


def check_losses(losses: Sequence[float], *, kept: bool = False, may_rise: bool = False) -> None:
    """Raise if the last of a network's epochs was not sound: its loss is not finite, or it has diverged.

    Above the first epoch's by far, a loss may come back: it must not stay there, nor be that of a state that
    is ``kept``. What starts from a trained network ``may_rise``: there a high loss is an outcome.
    """
    now, limit = losses[-1], _DIVERGED * (1 + abs(losses[0]))
    reason = None
    if not math.isfinite(now):
        reason = "is not finite"
    elif not may_rise and now > limit and (kept or min(losses[-_ON_END:]) > limit):
        reason = f"is over {_DIVERGED:g} times the first epoch's"
    if reason is not None:
        raise RunFailed(
            "the training loss must stay finite and not diverge",
            f"in epoch {len(losses)} the loss {reason} ({now:.4g})",
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
