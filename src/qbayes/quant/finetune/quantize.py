"""``quantize``: fold, insert fake-quantisers, calibrate, and train on by the same loop as ``fit``.

Quantisation-aware training minimises the negative log-likelihood alone: no KL, whatever the method was; the
deviations of Gaussian weights stay as they are (the paper's preset trains them). Every member of an ensemble
is fine-tuned by itself, with ranges of its own.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from qbayes.device import choose_device
from qbayes.errors import Interrupted, RunFailed
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import state_hash
from qbayes.quant.finetune.best_epoch import BestEpoch, ValidationLoss
from qbayes.quant.finetune.distill import student_state
from qbayes.quant.finetune.fine_tuning import FineTuning
from qbayes.quant.finetune.job import QuantizeJob, descent, network_of
from qbayes.quant.precision import Precision, PrecisionLike
from qbayes.tasks import TaskLike, resolve_task
from qbayes.training.checkpoint import Checkpoint, CheckpointLike
from qbayes.training.loop import Loop
from qbayes.training.progress import TrainingProgress


def quantize(
    posterior: NetworkPosterior,
    task: TaskLike,
    precision: PrecisionLike = "W8A8",
    finetuning: FineTuning | None = None,
    *,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: CheckpointLike = None,
    progress: bool | None = None,
) -> NetworkPosterior:
    """The posterior with weights and activations on n-bit grids, fine-tuned on ``task``.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit("mlp", task, "mcd", qb.Budget(epochs=1), progress=False)
        >>> quantized = qb.quantize(posterior, task, "W4A4", qb.FineTuning(epochs=1), progress=False)
        >>> quantized.quantised["weight"]
        4

    Args:
        posterior: A float posterior; it stays as it is.
        task: What it is fine-tuned on: as a rule the task that it was fitted on.
        precision: The bits, and which grids: ``"W4A4"``, a ``Precision``, or its options by name. 8 bits by
            default.
        finetuning: How it is trained. By default, and for every option that is not given, as the recipe has
            it for this task. ``FineTuning(epochs=0)`` calibrates only.
        seed: The same seed gives the same bits.
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda``, …
        checkpoint: A folder in which an interrupted run leaves its state; ``Checkpoint(folder, resume=True)``
            goes on from it. None by default.
        progress: Whether to show it; by default where a person looks on.

    Returns:
        A quantised posterior. ``lower`` makes a program of it.

    Raises:
        BadInput: The posterior is not float, the options do not fit together, or the network cannot become
            integers.
        RunFailed: The loss or the weights are not finite.
        Interrupted: It was stopped and left a checkpoint.
    """
    job = QuantizeJob(
        posterior, resolve_task(task), Precision.parse(precision), finetuning or FineTuning(), seed
    )
    return quantize_members(job, device=device, checkpoint=checkpoint, progress=progress)


def quantize_members(
    job: QuantizeJob,
    *,
    device: str | torch.device = "auto",
    checkpoint: CheckpointLike = None,
    progress: bool | None = None,
) -> NetworkPosterior:
    """``quantize`` of a job: one member after the other."""
    place, begun = choose_device(device), time.monotonic()
    job = job.on(place)
    run = _Members(job, place, progress)
    kept = Checkpoint.of(checkpoint)
    paths = [kept.path(f"member-{index:04d}.checkpoint") for index in range(job.members)]
    kept.check_overwriting(paths)
    members = [run.member(index, path, kept.resume) for index, path in enumerate(paths)]
    seconds = round(time.monotonic() - begun, 3)
    return job.result(run.module, members, run.losses, place, seconds=seconds)


class _Members:
    """Quantises the members one after the other, in one module (compiled once where it is compiled)."""

    def __init__(self, job: QuantizeJob, device: torch.device, progress: bool | None) -> None:
        self.job, self.device, self.progress = job, device, progress
        self.losses: list[list[float]] = []
        # every refusal comes here, before any training.
        self.module = job.prepare(0).to(device)

    def member(self, index: int, checkpoint: Path | None, resume: bool) -> dict[str, Tensor]:
        """The settled state of one member."""
        if index > 0:
            self.module.train()
            self.module.load_state_dict(self.job.prepare(index).state_dict())
        begins = state_hash(self.module)
        self.job.calibrate(self.module, index, self.device)
        if self.job.budget.epochs == 0:
            return self.job.settle_state(self.module, index)
        trained = self._train(index, begins, checkpoint, resume)
        return self.job.settle_state(self.module, index, trained)

    def _train(self, index: int, begins: str, checkpoint: Path | None, resume: bool) -> dict[str, Tensor]:
        job, budget, likelihood = self.job, self.job.budget, self.job.likelihood
        module = job.trainable(self.module, index)
        if budget.channels_last:
            # weights as the rows lie: else each of them, and its gradient, is copied in every step.
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        network = network_of(module)
        title = f"{job.title} on {job.task.name}" + (
            f", member {index + 1} of {job.members}" if job.members > 1 else ""
        )

        def loss(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
            return likelihood.nll(outputs, target).mean(-1)

        best = best_of(self.module, job, index) if job.fine_tuning.keep == "best" else None
        with TrainingProgress(title, budget.epochs, self.progress) as bar:
            loop = Loop(
                module,
                job.task,
                budget,
                loss,
                descent(module, budget.learning_rate, job.fine_tuning.optimizer),
                last_epoch if best is None else best.collect,
                seed=job.training_seed(index),
                device=self.device,
                fingerprint=job.fingerprint(index, begins),
                checkpoint=checkpoint,
                progress=bar,
                check=likelihood.check,
                before_epoch=lambda epoch: network.observe(job.observes(epoch)),
                may_rise=True,
                replay=True,
            )
            if best is not None:
                best.loop = loop
            try:
                run = loop.run(resume=resume)
            except Interrupted:
                raise
            except RunFailed:
                if checkpoint is not None:
                    checkpoint.unlink(missing_ok=True)
                raise
        self.losses.append(run.losses)
        return student_state(run.members[-1])


def last_epoch(epoch: int, epochs: int) -> bool:
    return epoch == epochs


def best_of(module: nn.Module, job: QuantizeJob, member: int) -> BestEpoch:
    """The best epoch of a single network."""

    def replace(kept: dict[str, Tensor], state: Mapping[str, Tensor], network: int) -> None:
        kept.update(state)

    return BestEpoch([validation_loss(module, job, member)], lambda state: [student_state(state)], replace)


def validation_loss(module: nn.Module, job: QuantizeJob, member: int) -> ValidationLoss:
    """Of a member in evaluation: on codes, or in float where nothing is rounded."""

    def answering(twin: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
        return job.answering(twin, member, state)

    return ValidationLoss(module, job.task, answering)
