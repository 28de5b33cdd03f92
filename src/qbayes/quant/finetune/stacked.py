"""Stacked quantisation-aware training: the members of several posteriors as one batched program.

As for float training (``training.stacked.fit``): every network keeps its own weights, ranges, rows' order
and noise, and no operation mixes networks, so each comes out as ``quantize`` gives it, up to the rounding of
sums taken in another order. Bits may differ between the networks where only the ends of the codes depend on
them: the searches of ``mse`` do besides.
"""

import copy
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.device import choose_device
from qbayes.errors import BadInput, QbayesError
from qbayes.noise import derive_seed
from qbayes.posterior.likelihood import Likelihood, Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.storage.save import state_hash
from qbayes.quant.finetune.best_epoch import BestEpoch
from qbayes.quant.finetune.distill import Imitation, student_state
from qbayes.quant.finetune.job import QuantizeJob, descent, network_of
from qbayes.quant.finetune.quantize import last_epoch, validation_loss
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import prepare_module
from qbayes.quant.quantizer import Quantizer
from qbayes.tasks import Task
from qbayes.training.budget import Budget
from qbayes.training.checkpoint import check_overwriting
from qbayes.training.progress import TrainingProgress
from qbayes.training.stacked.fit import CHECKPOINT, check_alike
from qbayes.training.stacked.key import key_of, why_not
from qbayes.training.stacked.loop import StackLoop
from qbayes.training.stacked.network import Stack
from qbayes.training.stacked.noise import NoiseGenerators, OrderGenerators, TrainingNoise

# rows that set the ranges of a network that is only tried.
_PROBED_ROWS = 32
_CODES = ("low", "high")
# what a quantiser whose bits may differ in a stack knows of them.
_OF_BITS = frozenset({*_CODES, "bits", "rule"})


@dataclass(frozen=True, eq=False)
class _Member:
    """A member ready to train: its ranges are set."""

    job: QuantizeJob
    index: int
    begins: str
    module: nn.Module
    trainable: nn.Module

    @property
    def key(self) -> str:
        job = self.job
        settings = [*job.fine_tuning.of_stages("training").items(), job.rounds]
        return _key(self.trainable, job.task, job.budget, settings)

    def generator_seed(self, purpose: str) -> int:
        """As ``quantize`` and ``Loop`` seed this member's training."""
        return derive_seed(self.job.training_seed(self.index), purpose)


def quantize_stacked(
    jobs: Sequence[QuantizeJob],
    *,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> list[NetworkPosterior | QbayesError]:
    """All members of all posteriors as one program: for each what ``quantize`` gives, or its failure.

    They must have one structure, budget and number of rows. With ``checkpoint`` a folder is kept from which
    an interrupted stack goes on, to the same bits, when ``resume`` is given with the same arguments.
    """
    if any(one.budget.epochs < 1 for one in jobs):
        raise BadInput("a stack needs epochs to train", "0 epochs", "calibrate by qb.quantize")
    place, begun = choose_device(device), time.monotonic()
    path = None if checkpoint is None else Path(checkpoint) / CHECKPOINT
    if not resume:
        check_overwriting([path])
    prepared = [_members(one, place) for one in jobs]
    members = [member for found in prepared if isinstance(found, list) for member in found]
    if not members:
        return [found for found in prepared if isinstance(found, QbayesError)]
    first = members[0]
    why = _why_not(first.trainable, first.job.task, first.job.likelihood, first.job.budget)
    if any(one.fine_tuning.mixup > 0 for one in jobs):
        why = "its rows are mixed, which draws noise of its own"
    check_alike(why, [one.key for one in members])
    loop = _loop(members, place, path)
    title = f"{first.job.title} on {first.job.task.name}: {len(members)} networks"
    with TrainingProgress(title, first.job.budget.epochs, progress) as loop.progress:
        loop.run(resume=resume)
    if path is not None and not loop.alive:
        # it would only fail again.
        path.unlink(missing_ok=True)
    seconds = round((time.monotonic() - begun) / len(jobs), 3)
    results: list[NetworkPosterior | QbayesError] = []
    taken = 0
    for one, found in zip(jobs, prepared, strict=True):
        if isinstance(found, QbayesError):
            results.append(found)
            continue
        networks = range(taken, taken + len(found))
        results.append(_result(loop, one, found, networks, place, seconds, len(members)))
        taken += len(found)
    return results


@torch.no_grad()
def cannot_stack_quantised(
    network: nn.Module, task: Task, precision: Precision, budget: Budget
) -> str | None:
    """Why posteriors of networks like this one cannot be quantised in a stack, or None when they can."""
    precision = precision.for_likelihood(task.signature.likelihood)
    module = prepare_module(network, task.signature.input_shape, precision)
    x, _ = next(task.batches("train", _PROBED_ROWS))
    with torch.random.fork_rng(devices=[]), network_of(module).calibrating():
        module(task.signature.transform.apply(x))
    with torch.enable_grad():
        return _why_not(module, task, task.signature.likelihood, budget.for_rows(task.train_rows))


def _members(job: QuantizeJob, device: torch.device) -> list[_Member] | QbayesError:
    """The members of one posterior with their ranges set; trouble with one of them is its posterior's."""
    found: list[_Member] = []
    try:
        for index in range(job.members):
            module = job.prepare(index).to(device)
            begins = state_hash(module)
            job.calibrate(module, index, device)
            found.append(_Member(job, index, begins, module, job.trainable(module, index)))
    except QbayesError as error:
        return error
    return found


def _mixable(module: nn.Module) -> dict[str, Quantizer]:
    """The quantisers, by name, that training asks for nothing but the ends of their codes."""
    return {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, Quantizer) and not (part.follows and part.rule.needs_bits)
    }


def _key(module: nn.Module, task: Task, budget: Budget, settings: list[Any]) -> str:
    mixable = _mixable(module)
    rules = [[name, part.rule.name] for name, part in mixable.items()]
    how = ["quantise", *settings, rules]
    return key_of(module, task, budget, how, dict.fromkeys(mixable, _OF_BITS))


def _why_not(module: nn.Module, task: Task, likelihood: Likelihood | Imitation, budget: Budget) -> str | None:
    def attempt(generators: NoiseGenerators) -> tuple[Stack, torch.optim.Optimizer]:
        stack, _ = _stack([module, module], likelihood, generators)
        return stack, descent(stack, budget.learning_rate, "sgd")

    return why_not(_key(module, task, budget, []), task, budget, attempt)


def _stack(
    modules: Sequence[nn.Module], likelihood: Likelihood | Imitation, generators: NoiseGenerators
) -> tuple[Stack, nn.Module]:
    template = copy.deepcopy(modules[0]).to(generators.device)

    def loss(outputs: Outputs, target: Tensor) -> Tensor:
        return likelihood.nll(outputs, target).mean(-1)

    numbers = [(name, code) for name in _mixable(template) for code in _CODES]
    noise = TrainingNoise(template, likelihood, generators)
    stack = Stack(modules, template, loss, noise, numbers).to(generators.device)
    return stack, template


def _loop(members: Sequence[_Member], device: torch.device, checkpoint: Path | None) -> StackLoop:
    job = members[0].job
    prints = [one.job.fingerprint(one.index, one.begins) for one in members]
    generators = NoiseGenerators([one.generator_seed("noise") for one in members], device)
    stack, template = _stack([one.trainable for one in members], job.likelihood, generators)
    network, best = network_of(template), None
    if job.fine_tuning.keep == "best":
        best = _best(stack, members)
    loop = StackLoop(
        stack,
        [one.job.task for one in members],
        job.budget,
        descent(stack, job.budget.learning_rate, job.fine_tuning.optimizer),
        last_epoch if best is None else best.collect,
        order=OrderGenerators([one.generator_seed("order") for one in members]),
        noise=generators,
        device=device,
        fingerprint=hashlib.sha256(json.dumps(prints).encode()).hexdigest(),
        checkpoint=checkpoint,
        progress=None,
        before_epoch=lambda epoch: network.observe(job.observes(epoch)),
        may_rise=True,
    )
    if best is not None:
        best.loop = loop
    return loop


def _best(stack: Stack, members: Sequence[_Member]) -> BestEpoch:
    def split(state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        return [student_state(stack.split(state, network)) for network in range(len(members))]

    def join(kept: dict[str, Tensor], state: Mapping[str, Tensor], network: int) -> None:
        for name, value in state.items():
            kept[name][network] = value[network]

    losses = [validation_loss(one.module, one.job, one.index) for one in members]
    return BestEpoch(losses, split, join)


def _result(
    loop: StackLoop,
    job: QuantizeJob,
    members: Sequence[_Member],
    networks: Sequence[int],
    device: torch.device,
    seconds: float,
    stacked: int,
) -> NetworkPosterior | QbayesError:
    failure = next((loop.failures[network] for network in networks if network in loop.failures), None)
    if failure is not None:
        return failure
    kept: Mapping[str, Any] = loop.state.members[-1]
    states = [
        job.settle_state(member.module, member.index, student_state(loop.stack.split(kept, network)))
        for member, network in zip(members, networks, strict=True)
    ]
    losses = [loop.losses(network) for network in networks]
    return job.result(members[0].module, states, losses, device, seconds=seconds, stacked=stacked)
