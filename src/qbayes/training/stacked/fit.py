"""Stacked training: K independent small networks of one shape as one batched program.

Folds, seeds and chains of a small network leave most of a processor idle, one by one: their time goes into
starting operations. Here the parameters of all of them get a leading axis, and forward pass, loss, gradient,
clipping and optimiser run once for all. Each network keeps its own first weights, order of rows and noise,
from generators seeded as ``fit`` seeds them, and no operation mixes networks: what comes out is what ``fit``
gives for each, up to the rounding of sums taken in another order.
"""

import copy
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qbayes import noise
from qbayes.device import choose_device
from qbayes.errors import BadInput, RunFailed
from qbayes.methods.base import Method
from qbayes.noise import derive_seed
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Attachment
from qbayes.posterior.storage.save import state_hash
from qbayes.provenance import device_name, versions
from qbayes.tasks import Task
from qbayes.training.budget import Budget
from qbayes.training.checkpoint import check_overwriting
from qbayes.training.fit import Network, check_kinds, make_posterior, prepare, resolve_budget, run_spec
from qbayes.training.progress import TrainingProgress
from qbayes.training.stacked.key import key_of, why_not
from qbayes.training.stacked.loop import StackLoop
from qbayes.training.stacked.network import stack_of
from qbayes.training.stacked.noise import CannotStack, NoiseGenerators, OrderGenerators

CHECKPOINT = "stack.checkpoint"


@dataclass(frozen=True, eq=False)
class StackJob:
    """One network to train: the arguments of ``fit`` with one chain."""

    network: Network
    task: Task
    method: Method
    budget: Budget | None = None
    seed: int = 0
    start: NetworkPosterior | None = None


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A job with its module ready to train."""

    job: StackJob
    budget: Budget
    seed: int
    module: nn.Module
    attachment: Attachment
    template: nn.Module

    @property
    def spec(self) -> dict[str, Any]:
        job = self.job
        return run_spec(job.network, job.task, job.method, self.budget, self.seed, 1, self.module)

    def generator_seed(self, purpose: str) -> int:
        """As ``fit`` and ``Loop`` seed the only chain of this job."""
        return derive_seed(derive_seed(self.seed, "chain", 0), purpose)


def stack_key(job: StackJob) -> str | None:
    """Jobs with equal keys can be trained together; None: this one only by itself (``cannot_stack``)."""
    ready = _prepare(job)
    return None if _why_not(ready) else _key(ready)


def cannot_stack(job: StackJob) -> str | None:
    """Why a job cannot be part of a stack, or None when it can."""
    return _why_not(_prepare(job))


def module_of(job: StackJob) -> nn.Module:
    """The network of a job as its training would begin."""
    return _prepare(job).module


def fit_stacked(
    jobs: Sequence[StackJob],
    *,
    device: str | torch.device = "auto",
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> list[NetworkPosterior | RunFailed]:
    """Train the jobs as one program: for each what ``fit`` gives, or the failure of that one network.

    All must have the same ``stack_key``. With ``checkpoint`` a folder is kept from which an interrupted stack
    goes on, to the same bits, when ``resume`` is given; it must then be given the same jobs in their order.
    """
    if not jobs:
        return []
    place, begun = choose_device(device), time.monotonic()
    path = None if checkpoint is None else Path(checkpoint) / CHECKPOINT
    if not resume:
        check_overwriting([path])
    ready = [_prepare(job) for job in jobs]
    check_alike(_why_not(ready[0]), [_key(one) for one in ready])
    loop = _loop(ready, place, path)
    with TrainingProgress(_title(ready), ready[0].budget.epochs, progress) as loop.progress:
        loop.run(resume=resume)
    if path is not None and not loop.alive:
        # it would only fail again.
        path.unlink(missing_ok=True)
    shared: dict[str, Any] = {
        "seconds": round((time.monotonic() - begun) / len(jobs), 3),
        "versions": versions(),
        "device": device_name(place),
        "stacked": len(jobs),
    }
    return [_result(loop, index, one, shared, place) for index, one in enumerate(ready)]


def _prepare(job: StackJob) -> _Prepared:
    check_kinds(job.network, job.task, job.method, job.budget)
    seed = noise.check_seed(job.seed)
    budget = resolve_budget(job.budget, job.method, job.task)
    module, attachment = prepare(job.network, job.task, job.method, seed=seed, chain=0, start=job.start)
    return _Prepared(job, budget, seed, module, attachment, copy.deepcopy(module))


def _key(ready: _Prepared) -> str:
    method = ready.job.method
    how = [type(method).__module__, type(method).__qualname__, method.to_json()]
    return key_of(ready.module, ready.job.task, ready.budget, how)


def _why_not(ready: _Prepared) -> str | None:
    job, two = ready.job, [ready.module, ready.module]
    return why_not(
        _key(ready),
        job.task,
        ready.budget,
        lambda generators: stack_of(two, job.task, job.method, ready.budget, generators),
    )


def check_alike(why: str | None, keys: Sequence[str]) -> None:
    """Raise unless a stack can be made (``why`` is None) and its jobs have one key."""
    if why is not None:
        raise CannotStack.because(why)
    differing = next((index for index, key in enumerate(keys) if key != keys[0]), None)
    if differing is not None:
        raise BadInput(
            "the jobs of a stack must have one shape, method, budget and number of rows",
            f"job {differing} differs from job 0",
            "group the jobs by stack_key",
        )


def _loop(ready: Sequence[_Prepared], device: torch.device, checkpoint: Path | None) -> StackLoop:
    first = ready[0]
    task, method, budget = first.job.task, first.job.method, first.budget
    states = [[one.spec, state_hash(one.module)] for one in ready]
    fingerprint = hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()
    generators = NoiseGenerators([one.generator_seed("noise") for one in ready], device)
    stack, optimizer = stack_of([one.module for one in ready], task, method, budget, generators)
    return StackLoop(
        stack,
        [one.job.task for one in ready],
        budget,
        optimizer,
        method.collect,
        order=OrderGenerators([one.generator_seed("order") for one in ready]),
        noise=generators,
        device=device,
        fingerprint=fingerprint,
        checkpoint=checkpoint,
        progress=None,
    )


def _title(ready: Sequence[_Prepared]) -> str:
    names = sorted({one.job.task.name for one in ready})
    return f"{ready[0].job.method.name} on {', '.join(names)}: {len(ready)} networks"


def _result(
    loop: StackLoop, index: int, ready: _Prepared, shared: dict[str, Any], device: torch.device
) -> NetworkPosterior | RunFailed:
    if index in loop.failures:
        return loop.failures[index]
    members: list[dict[str, Tensor]] = [loop.stack.split(state, index) for state in loop.state.members]
    provenance = {
        **ready.spec,
        "attachment": {"left_alone": [list(item) for item in ready.attachment.left_alone]},
        "losses": [loop.losses(index)],
        **shared,
    }
    module, members = ready.job.method.to_posterior(ready.template, members, ready.job.task)
    return make_posterior(module, members, ready.job.task, provenance).to(device)
