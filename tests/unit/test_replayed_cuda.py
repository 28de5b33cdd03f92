"""Recorded steps on a GPU: the same bits as eager ones, for every batch and phase, and after a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch

import needs
import qbayes as qb
from fine_tuned import plain_job, tuning
from qbayes.errors import Interrupted
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.quant.observers import QUANTIZERS
from qbayes.training import loop
from qbayes.training.loop import Loop
from qbayes.training.replayed import ReplayedSteps
from qbayes.training.stacked.fit import StackJob, fit_stacked

pytestmark = needs.gpu

# the step of sghmc is no part of the recording, the gradient is.
METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {},
    "sghmc": {"members": 2, "every": 1},
}
# 72 does not divide the rows: every epoch has batches of two shapes.
STEPS: dict[str, Any] = {"epochs": 12, "batch_size": 72, "learning_rate": 1e-3, "clip": 1.0}
BUDGET = qb.Budget(**STEPS)
QUANTISATIONS: dict[str, dict[str, Any]] = {
    "labels": {"optimizer": "sgd"},
    "taught": {"optimizer": "adam", "distill": 1.0, "equalize": True},
}


def jobs(method: str) -> list[StackJob]:
    tasks = [qb.load_task("diabetes", split=split) for split in range(3)]
    return [
        StackJob(
            lambda task=task: qb.network("mlp", task, hidden=(20, 20), noise="row"),
            task,
            qb.method(method, **METHODS[method]),
            BUDGET,
            seed,
        )
        for seed, task in enumerate(tasks)
    ]


def eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "can_be_replayed", lambda device: False)


def same(one: Any, other: Any) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert isinstance(mine, NetworkPosterior)
        assert isinstance(theirs, NetworkPosterior)
        for a, b in zip(mine.members, theirs.members, strict=True):
            for name, value in a.items():
                assert torch.equal(value.cpu(), b[name].cpu()), name


@pytest.mark.parametrize("method", METHODS)
def test_float_training_has_the_same_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = fit_stacked(jobs(method), device="cuda", progress=False)
    eagerly(monkeypatch)
    same(replayed, fit_stacked(jobs(method), device="cuda", progress=False))


@pytest.mark.parametrize("network", ["lenet", "resnet18"])
@pytest.mark.parametrize("method", METHODS)
def test_float_training_of_one_network_has_the_same_bits(
    method: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = qb.load_task("digits")
    how = qb.method(method, **METHODS[method])
    budget = qb.Budget(epochs=2, batch_size=200, learning_rate=1e-3, clip=1.0)

    def fitted() -> qb.Posterior:
        torch.manual_seed(0)  # of the first weights
        return qb.fit(qb.network(network, task), task, how, budget, device="cuda", progress=False)

    replayed = fitted()
    eagerly(monkeypatch)
    same([replayed], [fitted()])


def test_a_users_own_network_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may do what no graph repeats: here it counts its calls, and adds them to its answer."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.calls = torch.nn.Linear(64, 10), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.linear(x.flatten(1)) + 0.001 * self.calls

    monkeypatch.setattr(ReplayedSteps, "__call__", lambda *args: pytest.fail("replayed"))
    task = qb.load_task("digits")
    qb.fit(Counting(), task, qb.method("pointwise"), qb.Budget(epochs=1), device="cuda", progress=False)


@pytest.mark.parametrize("how", QUANTISATIONS)
@pytest.mark.parametrize("scheme", ["default", "ema"])
@pytest.mark.parametrize("method", METHODS)
def test_quantisation_has_the_same_bits(
    method: str, scheme: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``ema`` ranges follow the data for half of the epochs: two phases."""
    rule = {} if scheme == "default" else {"weight_range": "ema", "activation_range": "ema"}
    floats = fit_stacked(jobs(method), device="cuda", progress=False)
    asked = []
    for seed, (one, job) in enumerate(zip(floats, jobs(method), strict=True)):
        assert isinstance(one, NetworkPosterior)
        precision = qb.Precision(4, 4, **rule)
        asked.append(
            plain_job(one.to("cpu"), job.task, precision, tuning(**STEPS), seed, **QUANTISATIONS[how])
        )
    replayed = quantize_stacked(asked, device="cuda", progress=False)
    eagerly(monkeypatch)
    same(replayed, quantize_stacked(asked, device="cuda", progress=False))


@pytest.mark.parametrize("rule", QUANTIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_single_network_has_the_same_bits(method: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions, by labels: masks and weights are drawn inside the graph, by the device's generator."""
    task = qb.load_task("digits")
    how = qb.method(method, **METHODS[method])
    network = qb.network("lenet", task, style="relu")
    posterior = qb.fit(network, task, how, qb.Budget(epochs=2), device="cuda", progress=False)
    precision = qb.Precision(4, 4, weight_range=rule, activation_range=rule)
    budget = tuning(epochs=4, batch_size=200, learning_rate=1e-2)
    replayed = qb.quantize(posterior, task, precision, budget, device="cuda", progress=False)
    eagerly(monkeypatch)
    same([replayed], [qb.quantize(posterior, task, precision, budget, device="cuda", progress=False)])


def test_an_interrupted_stack_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit_stacked(jobs("mcd"), device="cuda", progress=False)
    step, count = Loop._step, 0

    def stopping(self: Loop, x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal count
        step(self, x, y)
        count += 1
        self._stop = count == 33

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopping)
        with pytest.raises(Interrupted):
            fit_stacked(jobs("mcd"), device="cuda", progress=False, checkpoint=tmp_path)
    again = fit_stacked(jobs("mcd"), device="cuda", progress=False, checkpoint=tmp_path, resume=True)
    same(whole, again)


def test_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above compare is not eager twice."""
    recorded = []
    original = ReplayedSteps._record

    def record(self: ReplayedSteps, x: torch.Tensor, y: torch.Tensor) -> Any:
        recorded.append(tuple(x.shape))
        return original(self, x, y)

    monkeypatch.setattr(ReplayedSteps, "_record", record)
    fit_stacked(jobs("mcd"), device="cuda", progress=False)
    assert len(recorded) == len(set(recorded)) == 2
