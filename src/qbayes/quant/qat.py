"""``quantize``: fold, insert fake-quantisers, calibrate, and train on by the same loop as ``fit``.

Quantisation-aware training minimises the negative log-likelihood alone: no KL, whatever the method was; the
deviations of Gaussian weights stay as they are (the paper's preset trains them). Every member of an ensemble
is fine-tuned by itself, with ranges of its own.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.errors import Interrupted, RunFailed
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.best_epoch import BestEpoch, ValidationLoss
from qbayes.quant.precision import Precision
from qbayes.quant.quantisation import Keep, Quantisation, descent, network_of
from qbayes.quant.recipe import Optimiser, qat_recipe
from qbayes.quant.teacher import student_state
from qbayes.tasks import Task
from qbayes.training.budget import Budget
from qbayes.training.fit import check_overwriting, choose_device, state_hash
from qbayes.training.loop import Loop
from qbayes.training.progress import TrainingProgress


def quantize(
    posterior: NetworkPosterior,
    task: Task,
    precision: Precision | None = None,
    budget: Budget | None = None,
    *,
    seed: int = 0,
    keep: Keep = "last",
    freeze: float = 0.5,
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
    """The posterior with weights and activations on n-bit grids, fine-tuned on ``task``.

    ``budget.epochs = 0`` only calibrates. ``keep="best"`` keeps the epoch with the least validation NLL
    instead of the last. Ranges that follow the data (minmax, ema, …) do so for the first ``freeze`` of the
    epochs and are frozen after; learned ones (lsq) are set by calibration and then trained. ``teacher`` is
    the share of the loss in which each draw imitates the float network's (``qbayes.quant.teacher``);
    ``equalise`` gives channels one range before anything is rounded (``qbayes.quant.equalise``); ``blend``
    is the share of rows that are blended with others where the teacher is all there is to learn from;
    ``match`` makes class scores as sharp as the float network's on held-out rows (``qbayes.quant.match``).
    What is not given is as the default recipe has it for this task or its kind (``qbayes.quant.recipe``).
    """
    told = {"teacher": teacher, "optimiser": optimiser, "equalise": equalise, "blend": blend, "match": match}
    asked = asked_for(posterior, task, precision, budget, told, seed=seed, keep=keep, freeze=freeze)
    return quantize_members(asked, device=device, checkpoint=checkpoint, resume=resume, progress=progress)


def asked_for(
    posterior: NetworkPosterior,
    task: Task,
    precision: Precision | None,
    budget: Budget | None,
    told: Mapping[str, Any],
    **more: Any,
) -> Quantisation:
    """What is asked for, with the default recipe's values in the place of None."""
    known = (task.kind, task.name) if isinstance(task, Task) else ()
    recipe = qat_recipe("default", *known)
    precision = Precision() if precision is None else precision
    if budget is None and isinstance(precision, Precision):
        budget = recipe.settled(precision.fewest_bits)
    how = recipe.told(**{name: value for name, value in told.items() if value is not None})
    return Quantisation(posterior, task, precision, Budget() if budget is None else budget, **more, **how)


def quantize_members(
    asked: Quantisation,
    *,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> NetworkPosterior:
    """``quantize``, of what was asked: one member after the other."""
    place, begun = choose_device(device), time.monotonic()
    asked = asked.on(place)
    run = _Members(asked, place, progress)
    folder = None if checkpoint is None else Path(checkpoint)
    paths = [
        None if folder is None else folder / f"member-{index:04d}.checkpoint"
        for index in range(asked.members)
    ]
    if not resume:
        check_overwriting(paths)
    members = [run.member(index, path, resume) for index, path in enumerate(paths)]
    seconds = round(time.monotonic() - begun, 3)
    return asked.result(run.module, members, run.losses, place, seconds=seconds)


class _Members:
    """Quantises the members one after the other, in one module (compiled once where it is compiled)."""

    def __init__(self, asked: Quantisation, device: torch.device, progress: bool | None) -> None:
        self.asked, self.device, self.progress = asked, device, progress
        self.losses: list[list[float]] = []
        # every refusal comes here, before any training.
        self.module = asked.prepared(0).to(device)

    def member(self, index: int, checkpoint: Path | None, resume: bool) -> dict[str, Tensor]:
        """The settled state of one member."""
        if index > 0:
            self.module.train()
            self.module.load_state_dict(self.asked.prepared(index).state_dict())
        begins = state_hash(self.module)
        self.asked.calibrate(self.module, index, self.device)
        if self.asked.budget.epochs == 0:
            return self.asked.settled(self.module, index)
        trained = self._trained(index, begins, checkpoint, resume)
        return self.asked.settled(self.module, index, trained)

    def _trained(self, index: int, begins: str, checkpoint: Path | None, resume: bool) -> dict[str, Tensor]:
        asked, budget, likelihood = self.asked, self.asked.budget, self.asked.likelihood
        module = asked.trainable(self.module, index)
        if budget.channels_last:
            # weights as the rows lie: else each of them, and its gradient, is copied in every step.
            module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        network = network_of(module)
        title = f"{asked.title} on {asked.task.name}" + (
            f", member {index + 1} of {asked.members}" if asked.members > 1 else ""
        )

        def loss(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
            return likelihood.nll(outputs, target).mean(-1)

        best = best_of(self.module, asked, index) if asked.keep == "best" else None
        with TrainingProgress(title, budget.epochs, self.progress) as bar:
            loop = Loop(
                module,
                asked.task,
                budget,
                loss,
                descent(module, budget.learning_rate, asked.optimiser),
                last_epoch if best is None else best.collect,
                seed=asked.training_seed(index),
                device=self.device,
                fingerprint=asked.fingerprint(index, begins),
                checkpoint=checkpoint,
                progress=bar,
                check=likelihood.check,
                before_epoch=lambda epoch: network.observe(asked.observes(epoch)),
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


def best_of(module: nn.Module, asked: Quantisation, member: int) -> BestEpoch:
    """The best epoch of a single network."""

    def replace(kept: dict[str, Tensor], state: Mapping[str, Tensor], network: int) -> None:
        kept.update(state)

    return BestEpoch([validation_loss(module, asked, member)], lambda state: [student_state(state)], replace)


def validation_loss(module: nn.Module, asked: Quantisation, member: int) -> ValidationLoss:
    """Of a member in evaluation: on codes, or in float where nothing is rounded."""

    def answering(twin: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
        return asked.answering(twin, member, state)

    return ValidationLoss(module, asked.task, answering)
