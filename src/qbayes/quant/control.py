"""``fine_tune``: the control of quantisation-aware training, the same fine-tuning without any quantiser.

A quantised posterior differs from the float one that it was made of by its bits, and by epochs that the other
never had. The control has the epochs and not the bits. It is trained by the same code: the folded network
that ``quantize`` makes, channels equalised alike, by the same rows, teacher, optimiser and steps, with
quantisers that are off. What comes out is a float posterior of the old structure (``qbayes.quant.unfold``).
"""

from pathlib import Path

import torch

from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.precision import Precision
from qbayes.quant.qat import asked_for, quantize_members
from qbayes.quant.quantisation import Keep
from qbayes.quant.recipe import Optimiser
from qbayes.tasks import Task
from qbayes.training.budget import Budget


def fine_tune(
    posterior: NetworkPosterior,
    task: Task,
    like: Precision | None = None,
    budget: Budget | None = None,
    *,
    seed: int = 0,
    keep: Keep = "last",
    teacher: float | None = None,
    optimiser: Optimiser | None = None,
    equalise: bool | None = None,
    blend: float | None = None,
    match: bool | None = None,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> NetworkPosterior:
    """The float posterior with the fine-tuning that ``quantize`` gives at a precision, without quantisers.

    What is not given is as ``quantize`` has it: the same arguments make the control of the same call.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> network = qb.network("mlp", task, hidden=[32])
        >>> posterior = qb.fit(network, task, qb.method("mcd", rate=0.1), qb.Budget(epochs=2), seed=0)
        >>> short = qb.Budget(epochs=1, learning_rate=0.01)
        >>> quantised = qb.quantize(posterior, task, qb.Precision(weight=4, activation=4), short)
        >>> control = qb.fine_tune(posterior, task, qb.Precision(weight=4, activation=4), short)

    Args:
        posterior: A float posterior; it stays as it is.
        task: What it is fine-tuned on.
        like: The precision whose fine-tuning it has: the recipe's learning rate depends on the bits.
        budget: Epochs, rate and the like; by default the recipe's for ``like``.
        seed: The same seed gives the same bits, and the same order of rows as in ``quantize``.
        keep: The epoch to keep: ``last``, or ``best`` on the validation rows.
        teacher: The share of the loss in which each draw imitates that of the posterior given.
        optimiser: ``sgd`` or ``adam``.
        equalise: Whether channels are given one range before, as where they are rounded.
        blend: The share of rows blended with others, where the teacher is all there is to learn from.
        match: Whether class scores are made as sharp as those of the posterior given.
        device: ``auto``, ``cpu``, ``cuda``, …
        checkpoint: A folder from which an interrupted run goes on.
        resume: Whether to go on from there.
        progress: Whether to show it; by default where a person looks on.
    """
    told = {"teacher": teacher, "optimiser": optimiser, "equalise": equalise, "blend": blend, "match": match}
    asked = asked_for(posterior, task, like, budget, told, seed=seed, keep=keep, rounds=False)
    return quantize_members(asked, device=device, checkpoint=checkpoint, resume=resume, progress=progress)
