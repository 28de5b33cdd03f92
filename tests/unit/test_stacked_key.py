"""Which networks may be stacked: equal keys where one program serves all, a reason where it does not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.training.stacked.fit import StackJob, cannot_stack, fit_stacked, stack_key

BUDGET = qb.Budget(epochs=2, batch_size=10)


def make_task(rows: int = 30, features: int = 4, seed: int = 0, **options: Any) -> qb.Task:
    x = torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))
    return qb.Task.from_arrays(x, torch.arange(rows) % 3, kind="classification", **options)


def make_job(task: qb.Task | None = None, **changes: Any) -> StackJob:
    task = task or make_task()
    job = StackJob(lambda: qb.network("mlp", task, hidden=(5,)), task, qb.method("mcd", rate=0.2), BUDGET)
    return dataclasses.replace(job, **changes)


def test_seeds_and_folds_share_a_key() -> None:
    key = stack_key(make_job())
    assert key is not None
    assert stack_key(make_job(seed=7)) == key
    assert stack_key(make_job(make_task(seed=1))) == key


@pytest.mark.parametrize(
    "other",
    [
        lambda: make_job(make_task(rows=31)),
        lambda: make_job(make_task(features=5)),
        lambda: make_job(network=lambda: qb.network("mlp", make_task(), hidden=(6,))),
        lambda: make_job(network=lambda: qb.network("mlp", make_task(), hidden=(5,), activation="tanh")),
        lambda: make_job(method=qb.method("mcd", rate=0.3)),
        lambda: make_job(method=qb.method("mcd", rate=0.2, optimizer="sgd")),
        lambda: make_job(method=qb.method("bbb")),
        lambda: make_job(budget=qb.Budget(epochs=3, batch_size=10)),
        lambda: make_job(budget=qb.Budget(epochs=2, batch_size=10, clip=1.0)),
        lambda: make_job(budget=qb.Budget(epochs=2, batch_size=10, learning_rate=2e-3)),
    ],
    ids=[
        "rows",
        "inputs",
        "width",
        "activation",
        "rate",
        "optimizer",
        "method",
        "epochs",
        "clip",
        "step size",
    ],
)
def test_keys_differ_where_one_program_would_not_serve_both(other: Callable[[], StackJob]) -> None:
    key = stack_key(other())
    assert key is not None
    assert key != stack_key(make_job())


class Own(nn.Module):
    """A network that keeps numbers, tensors, functions and hidden modules beside its parameters."""

    def __init__(self, factor: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.settings = {"factor": factor}
        self.offset = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        self.act = lambda z: z * factor
        # in a list torch does not find it: a fixed random projection.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = [nn.Linear(4, 4).requires_grad_(False)]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.layer(self.hidden[0](x))) + self.offset


def test_what_a_network_keeps_beside_its_parameters_is_part_of_the_key() -> None:
    key = stack_key(make_job(network=Own, method=qb.method("pointwise")))
    assert key is not None
    assert stack_key(make_job(network=Own, method=qb.method("pointwise"), seed=3)) == key
    for changed in (lambda: Own(factor=2.0), lambda: Own(seed=1)):
        assert stack_key(make_job(network=changed, method=qb.method("pointwise"))) != key


class Dropping(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Dropout(0.5), nn.Linear(4, 3))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        return z if z.mean() > 0 else -z


def streamed() -> qb.Task:
    x, y = next(make_task().batches("train", 30))
    return qb.Task.from_loader(
        lambda split, seed: [(x, y)], kind="classification", splits=("train",), classes=3
    )


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (lambda: make_job(streamed()), "streamed"),
        (lambda: make_job(make_task(augment=lambda x: x + torch.randn_like(x))), "augmented"),
        (lambda: make_job(budget=qb.Budget(epochs=2, bf16=True)), "bf16"),
        (lambda: make_job(budget=qb.Budget(epochs=2, compile=True)), "compile"),
        (lambda: make_job(network=Dropping, method=qb.method("pointwise")), "noise of its own"),
        (lambda: make_job(network=Branching, method=qb.method("pointwise")), "data-dependent"),
        (lambda: make_job(method=qb.method("sghmc")), "burn-in"),
    ],
    ids=["stream", "augment", "bf16", "compile", "dropout", "branch", "too few epochs"],
)
def test_what_cannot_be_stacked_has_no_key_and_a_reason(job: Callable[[], StackJob], why: str) -> None:
    made = job()
    assert stack_key(made) is None
    assert why in (cannot_stack(made) or "")
    with pytest.raises(BadInput, match=r"train it by itself with qb\.fit"):
        fit_stacked([made], device="cpu")


def test_own_dropout_that_is_a_site_can_be_stacked() -> None:
    assert stack_key(make_job(network=Dropping)) is not None
