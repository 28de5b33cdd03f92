"""The average of late weights: what it is, its statistics, and in which arithmetic they are measured."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from fine_tuned import tuning
from qbayes.errors import BadInput
from qbayes.training.late_average import LateAverage


def task_of(rows: int = 80) -> qb.Task:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 1, 6, 6, generator=generator) + y.view(-1, 1, 1, 1)
    return qb.Task.from_arrays(x, y, x[:9], y[:9], kind="classification", validation=0.2)


class Normalised(nn.Module):
    """A convolution with a BatchNorm, which notes the type of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 3)
        self.seen: list[tuple[torch.dtype, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.seen.append((y.dtype, x.is_contiguous(memory_format=torch.channels_last)))
        return self.head(torch.relu(self.norm(y)).flatten(1))


def test_the_mean_is_that_of_all_steps_from_the_first_one_on() -> None:
    layer = nn.Linear(3, 2, bias=False)
    average, taken = LateAverage(layer, 3), [torch.randn(2, 3) for _ in range(7)]
    for step, weight in enumerate(taken):
        assert average.is_empty == (step <= 3)
        layer.weight.data.copy_(weight)
        average.add(step)
    average.give([], layer)
    torch.testing.assert_close(layer.weight.data, torch.stack(taken[3:]).mean(0))


def test_statistics_are_the_mean_over_batches_for_the_mean_weights() -> None:
    """Of layers that train: others, such as a teacher's, keep what they have."""
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.BatchNorm1d(4))
    first, kept = module[0], module[2].eval()
    average, weights, biases = LateAverage(module, 0), [], []
    for step in range(2):
        nn.init.normal_(first.weight)
        weights.append(first.weight.detach().clone())
        biases.append(first.bias.detach().clone())
        average.add(step)
    batches = [torch.randn(10, 3), torch.randn(10, 3)]
    average.give(batches, module)
    weight, bias = torch.stack(weights).mean(0), torch.stack(biases).mean(0)
    outputs = [x @ weight.T + bias for x in batches]
    torch.testing.assert_close(module[1].running_mean, torch.stack([y.mean(0) for y in outputs]).mean(0))
    torch.testing.assert_close(module[1].running_var, torch.stack([y.var(0) for y in outputs]).mean(0))
    assert module[1].momentum == 0.3
    assert torch.equal(kept.running_mean, torch.zeros(4))  # type: ignore[arg-type]
    assert torch.equal(kept.running_var, torch.ones(4))  # type: ignore[arg-type]
    assert int(kept.num_batches_tracked) == 0  # type: ignore[arg-type]


def test_statistics_are_measured_in_the_arithmetic_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbayes.training.budget.has_bf16", lambda device: True)
    made: list[Normalised] = []
    monkeypatch.setattr(LateAverage, "give", noted(made, LateAverage.give))
    budget = qb.Budget(epochs=2, batch_size=16, average=0.5, bf16=True, channels_last=True)
    qb.fit(Normalised(), task_of(), qb.method("pointwise"), budget, device="cpu", progress=False)
    assert len(made) == 1
    assert len(made[0].seen) == 4
    assert set(made[0].seen) == {(torch.bfloat16, True)}


def noted(made: list[Normalised], give: Any) -> Any:
    """``give``, behind which a network has seen nothing else."""

    def given(average: LateAverage, *how: Any) -> None:
        network = next(part for part in average._module.modules() if isinstance(part, Normalised))
        network.seen = []
        give(average, *how)
        made.append(network)

    return given


@pytest.mark.parametrize("bf16", [False, True])
def test_fine_tuning_beside_a_teacher_gives_the_average_of_its_steps(
    bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qbayes.training.budget.has_bf16", lambda device: True)
    task = task_of()
    posterior = qb.fit(
        Normalised(), task, qb.method("pointwise"), qb.Budget(epochs=2), device="cpu", progress=False
    )
    before = {name: value.clone() for name, value in posterior.members[0].items()}
    taken: list[dict[str, Tensor]] = []
    add = LateAverage.add

    def noting(average: LateAverage, step: int) -> None:
        student = average._module.get_submodule("student")
        taken.append({name: value.detach().clone() for name, value in student.named_parameters()})
        add(average, step)

    monkeypatch.setattr(LateAverage, "add", noting)
    budget = tuning(
        epochs=3, batch_size=16, average=0.5, bf16=bf16, channels_last=True, learning_rate=1e-2, distill=1.0
    )
    made = qb.quantize(posterior, task, finetuning=budget, device="cpu", progress=False)
    late = taken[len(taken) // 2 :]
    weights = [name for name in late[0] if name.endswith("weights.weight")]
    assert len(weights) == 2
    for name in weights:
        wanted = torch.stack([state[name] for state in late]).mean(0)
        torch.testing.assert_close(made.members[0][name], wanted)
        assert not torch.equal(wanted, late[-1][name])
    assert all(torch.equal(value, before[name]) for name, value in posterior.members[0].items())


def test_one_best_epoch_and_an_average_of_many_exclude_each_other() -> None:
    task = task_of()
    posterior = qb.fit(
        Normalised(), task, qb.method("pointwise"), qb.Budget(epochs=1), device="cpu", progress=False
    )
    with pytest.raises(BadInput, match="late weights can be averaged") as refused:
        qb.quantize(posterior, task, finetuning=tuning(epochs=2, average=0.5, keep="best"), device="cpu")
    assert "average=0.5" in refused.value.got
    assert "keep='last'" in refused.value.do
