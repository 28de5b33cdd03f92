"""A stack that was interrupted or killed goes on to the same bits."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qbayes as qb
from qbayes.errors import BadFile, BadInput, Interrupted, RunFailed
from qbayes.posterior.network import NetworkPosterior
from qbayes.training import loop as loop_module
from qbayes.training.stacked.fit import CHECKPOINT, StackJob, fit_stacked
from qbayes.training.stacked.loop import StackLoop

METHODS = {
    "mcd": {"rate": 0.3},
    "bbb": {},
    "sghmc": {"members": 2, "every": 1, "resample_momentum": 4, "resample_prior": 3},
}


class Killed(BaseException):
    """As if the process had ended here."""


def make_jobs(method: str, poisoned: bool = False, seed: int = 0) -> list[StackJob]:
    """Three folds, five steps an epoch (the last of 3 rows) for four epochs."""
    generator = torch.Generator().manual_seed(1)
    jobs: list[StackJob] = []
    for fold in range(3):
        x = torch.randn(23, 3, generator=generator)
        task = qb.Task.from_arrays(x, x.sum(1), kind="regression")
        if poisoned and fold == 1:
            next(task.batches("train", 23))[0][0] = float("nan")
        budget = qb.Budget(epochs=4, batch_size=5, learning_rate=0.01, clip=1.0)
        how = qb.method(method, **METHODS[method])
        network = lambda task=task: qb.network("mlp", task, hidden=(6,))  # noqa: E731
        jobs.append(StackJob(network, task, how, budget, seed + fold))
    return jobs


def after(steps: int, act: Any, patch: pytest.MonkeyPatch) -> None:
    """Call ``act(loop)`` when a stack has made ``steps`` steps."""
    step, made = StackLoop._step, [0]

    def counted(loop: StackLoop, x: Tensor, y: Tensor) -> None:
        made[0] += 1
        if made[0] == steps + 1:
            act(loop)
        step(loop, x, y)

    patch.setattr(StackLoop, "_step", counted)


def kill(loop: StackLoop) -> None:
    raise Killed


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        if isinstance(b, RunFailed):
            assert str(a) == str(b)
            continue
        assert isinstance(a, NetworkPosterior)
        assert a.provenance["losses"] == b.provenance["losses"]
        for mine, theirs in zip(a.members, b.members, strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


# at the start, mid-epoch, at both sides of an epoch's end, in the last epoch.
@pytest.mark.parametrize("steps", [1, 4, 5, 6, 19])
@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_equals_uninterrupted(
    method: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit_stacked(make_jobs(method), device="cpu")
    with monkeypatch.context() as patch:
        # every step is on disk, so that the kill finds the state of the step before.
        patch.setattr(loop_module, "_CHECKPOINT_SECONDS", -1.0)
        after(steps, kill, patch)
        with pytest.raises(Killed):
            fit_stacked(make_jobs(method), device="cpu", checkpoint=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    torch.manual_seed(99)
    assert_same(fit_stacked(make_jobs(method), device="cpu", checkpoint=tmp_path, resume=True), whole)
    # and once more, from the checkpoint of the finished stack
    assert_same(fit_stacked(make_jobs(method), device="cpu", checkpoint=tmp_path, resume=True), whole)


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit_stacked(make_jobs("mcd"), device="cpu")
    with monkeypatch.context() as patch:
        after(7, lambda loop: os.kill(os.getpid(), signal.SIGINT), patch)
        with pytest.raises(Interrupted, match="epoch 2 of 4"):
            fit_stacked(make_jobs("mcd"), device="cpu", checkpoint=tmp_path)
    assert_same(fit_stacked(make_jobs("mcd"), device="cpu", checkpoint=tmp_path, resume=True), whole)


def test_a_failure_before_the_kill_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit_stacked(make_jobs("bbb", poisoned=True), device="cpu")
    assert [isinstance(one, RunFailed) for one in whole] == [False, True, False]
    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "_CHECKPOINT_SECONDS", -1.0)
        after(8, kill, patch)
        with pytest.raises(Killed):
            fit_stacked(make_jobs("bbb", poisoned=True), device="cpu", checkpoint=tmp_path)
    resumed = fit_stacked(make_jobs("bbb", poisoned=True), device="cpu", checkpoint=tmp_path, resume=True)
    assert_same(resumed, whole)


def test_a_checkpoint_belongs_to_its_jobs_in_their_order(tmp_path: Path) -> None:
    fit_stacked(make_jobs("mcd"), device="cpu", checkpoint=tmp_path)
    with pytest.raises(BadFile, match="without checkpoints"):
        fit_stacked(make_jobs("mcd"), device="cpu", checkpoint=tmp_path)
    for others in (make_jobs("mcd")[::-1], make_jobs("mcd", seed=5), make_jobs("mcd")[:2]):
        with pytest.raises(BadInput, match="belongs to another run"):
            fit_stacked(others, device="cpu", checkpoint=tmp_path, resume=True)
