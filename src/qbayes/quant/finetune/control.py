"""``fine_tune``: the control of quantisation-aware training, the same fine-tuning without any quantiser.

A quantised posterior differs from the float one that it was made of by its bits, and by epochs that the other
never had. The control has the epochs and not the bits. It is trained by the same code: the folded network
that ``quantize`` makes, channels equalised alike, by the same rows, distillation, optimiser and steps, with
quantisers that are off. What comes out is a float posterior of the old structure (``quant.graph.unfold``).
"""

import torch

from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.finetune.job import QuantizeJob
from qbayes.quant.finetune.quantize import quantize_members
from qbayes.quant.precision import Precision, PrecisionLike
from qbayes.tasks import TaskLike, resolve_task
from qbayes.training.checkpoint import CheckpointLike


def fine_tune(
    posterior: NetworkPosterior,
    task: TaskLike,
    like: PrecisionLike = "W8A8",
    finetuning: FineTuning | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: CheckpointLike = None,
    progress: bool | None = None,
) -> NetworkPosterior:
    """The float posterior with the fine-tuning that ``quantize`` gives at a precision, without quantisers.

    What is not given is as ``quantize`` has it: the same arguments make the control of the same call.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=2), progress=False)
        >>> short = qb.FineTuning(epochs=1, learning_rate=0.01)
        >>> quantised = qb.quantize(posterior, task, "W4A4", short, progress=False)
        >>> control = qb.fine_tune(posterior, task, "W4A4", short, progress=False)

    Args:
        posterior: A float posterior; it stays as it is.
        task: What it is fine-tuned on.
        like: The precision whose fine-tuning it has: the recipe's learning rate depends on the bits.
        finetuning: How it is trained; by default as the recipe has it. It must have an epoch.
        seed: The same seed gives the same bits, and the same order of rows as in ``quantize``.
        device: ``auto``, ``cpu``, ``cuda``, …
        checkpoint: A folder in which an interrupted run leaves its state; ``Checkpoint(folder, resume=True)``
            goes on from it.
        progress: Whether to show it; by default where a person looks on.

    Returns:
        A float posterior.

    Raises:
        BadInput: The posterior is not float, there is no epoch, or the options do not fit together.
        RunFailed: The loss or the weights are not finite.
        Interrupted: It was stopped and left a checkpoint.
    """
    tuning = finetuning or FineTuning()
    job = QuantizeJob(posterior, resolve_task(task), Precision.parse(like), tuning, seed, rounds=False)
    return quantize_members(job, device=device, checkpoint=checkpoint, progress=progress)
