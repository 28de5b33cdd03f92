"""The training loop: equal bits from equal seeds, also across an interruption."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qbayes import Budget, Task
from qbayes.errors import BadFile, BadInput, Interrupted, RunFailed
from qbayes.methods import Method, make_method
from qbayes.noise import derive_seed
from qbayes.posterior.likelihood import Outputs
from qbayes.training.budget import rows_in_epoch, steps_in_epoch
from qbayes.training.checkpoint import BadCheckpoint, read_checkpoint, write_checkpoint
from qbayes.training.loop import Loop, Run

CPU = torch.device("cpu")


def jitter(x: Tensor) -> Tensor:
    """An augmentation that draws from torch's global generator."""
    return x + 0.1 * torch.randn_like(x)


def make_task(rows: int = 23, augment: Any = None) -> Task:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=generator)
    y = (x.sum(1) > 0).long()
    return Task.from_arrays(x, y, kind="classification", labels=["no", "yes"], augment=augment)


def streamed_task(rows: int = 23) -> Task:
    whole = make_task(rows)
    x, y = next(whole.batches("train", rows))

    def factory(split: str, seed: int) -> Any:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        return [(x[part], y[part]) for part in order.split(4)]

    return Task.from_loader(factory, kind="classification", splits=("train",), classes=2)


METHODS: dict[str, Callable[[], Method]] = {
    "adam": lambda: make_method("mcd", rate=0.3),
    "sgd": lambda: make_method("mcd", rate=0.3, optimizer="sgd"),
    "bbb": lambda: make_method("bbb"),
    "sghmc": lambda: make_method("sghmc", members=2, every=1, resample_momentum=4, resample_prior=3),
}


def make_loop(
    method: Method,
    task: Task,
    checkpoint: Path | None = None,
    *,
    seed: int = 0,
    fingerprint: str = "f",
    budget: Budget | None = None,
) -> Loop:
    budget = budget or Budget(epochs=4, batch_size=5, learning_rate=0.05, clip=1.0)
    torch.manual_seed(11)
    plain = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    module, _ = method.attach(plain, task.example(2))
    likelihood, rows = task.signature.likelihood, task.train_rows

    def loss(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
        return method.loss(network, outputs, target, likelihood, rows)

    steps = steps_in_epoch(rows, budget.batch_size)
    optimizer = method.make_optimizer(
        module, budget.learning_rate, rows=rows, steps_per_epoch=steps, epochs=budget.epochs
    )
    return Loop(
        module,
        task,
        budget,
        loss,
        optimizer,
        method.collect,
        seed=seed,
        device=CPU,
        fingerprint=fingerprint,
        checkpoint=checkpoint,
    )


def stop_after(loop: Loop, steps: int, by_signal: bool = False) -> None:
    """Ask the loop to stop when it has made ``steps`` steps."""
    step, made = loop._step, [0]

    def counted(x: Tensor, y: Tensor) -> None:
        step(x, y)
        made[0] += 1
        if made[0] == steps:
            if by_signal:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                loop._stop = True

    loop._step = counted  # pyright: ignore[reportAttributeAccessIssue]


def assert_same(one: Run, other: Run) -> None:
    assert one.losses == other.losses
    assert len(one.members) == len(other.members) > 0
    for a, b in zip(one.members, other.members, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    method = METHODS["adam"]()
    one, two = (make_loop(method, make_task(augment=jitter)).run() for _ in range(2))
    assert_same(one, two)
    other = make_loop(method, make_task(augment=jitter), seed=1).run()
    assert other.losses != one.losses


def test_the_callers_generator_neither_matters_nor_moves() -> None:
    loops = [make_loop(METHODS["bbb"](), make_task(augment=jitter)) for _ in range(2)]
    torch.manual_seed(1)
    one = loops[0].run()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = loops[1].run()
    assert torch.equal(torch.get_rng_state(), before)
    assert_same(one, two)


# 5 steps an epoch (the last of 3 rows), 4 epochs: at the start, mid-epoch, at both sides of an epoch's end.
@pytest.mark.parametrize("steps", [1, 4, 5, 6, 13, 20])
@pytest.mark.parametrize("kind", METHODS)
def test_resumed_equals_uninterrupted(kind: str, steps: int, tmp_path: Path) -> None:
    task, path = make_task(augment=jitter), tmp_path / "c" / "run.checkpoint"
    whole = make_loop(METHODS[kind](), task).run()
    loop = make_loop(METHODS[kind](), task, path)
    stop_after(loop, steps)
    with pytest.raises(Interrupted, match=f"epoch {(steps - 1) // 5 + 1} of 4"):
        loop.run()
    torch.manual_seed(99)
    assert_same(make_loop(METHODS[kind](), task, path).run(resume=True), whole)
    # and once more, from the checkpoint of the finished run
    assert_same(make_loop(METHODS[kind](), task, path).run(resume=True), whole)


@settings(max_examples=8)
@given(stops=st.lists(st.integers(1, 6), min_size=2, max_size=3))
def test_a_run_may_be_interrupted_again_and_again(stops: list[int], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("again") / "run.checkpoint"
    task = make_task(augment=jitter)
    whole = make_loop(METHODS["adam"](), task).run()
    for steps in stops:
        loop = make_loop(METHODS["adam"](), task, path)
        stop_after(loop, steps)
        with pytest.raises(Interrupted):
            loop.run(resume=True)
    assert_same(make_loop(METHODS["adam"](), task, path).run(resume=True), whole)


@pytest.mark.parametrize("steps", [3, 6])
def test_streamed_tasks_resume_too(steps: int, tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    whole = make_loop(METHODS["adam"](), streamed_task()).run()
    loop = make_loop(METHODS["adam"](), streamed_task(), path)
    stop_after(loop, steps)
    with pytest.raises(Interrupted):
        loop.run()
    assert_same(make_loop(METHODS["adam"](), streamed_task(), path).run(resume=True), whole)


def test_ctrl_c_leaves_a_checkpoint_and_the_handler_as_it_was(tmp_path: Path) -> None:
    path, task = tmp_path / "run.checkpoint", make_task()
    before = signal.getsignal(signal.SIGINT)
    loop = make_loop(METHODS["adam"](), task, path)
    stop_after(loop, 7, by_signal=True)
    with pytest.raises(Interrupted, match=r"run\.checkpoint") as caught:
        loop.run()
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert_same(
        make_loop(METHODS["adam"](), task, path).run(resume=True), make_loop(METHODS["adam"](), task).run()
    )


def test_ctrl_c_without_a_checkpoint_interrupts_at_once() -> None:
    loop = make_loop(METHODS["adam"](), make_task())
    stop_after(loop, 3, by_signal=True)
    # a shell starts what runs in its background deaf to Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run()
    finally:
        signal.signal(signal.SIGINT, before)


def test_checkpoints_are_written_in_passing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that is killed loses the steps since the last one, and no more."""
    monkeypatch.setattr("qbayes.training.loop._CHECKPOINT_SECONDS", -1.0)
    path, task = tmp_path / "run.checkpoint", make_task(augment=jitter)
    loop = make_loop(METHODS["sgd"](), task, path)
    step, made = loop._step, [0]

    def killed(x: Tensor, y: Tensor) -> None:
        if made[0] == 8:
            raise MemoryError("killed")
        step(x, y)
        made[0] += 1

    loop._step = killed  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(MemoryError):
        loop.run()
    _, values = read_checkpoint(path)
    assert (values["epoch"], values["step"]) == (1, 3)
    assert_same(
        make_loop(METHODS["sgd"](), task, path).run(resume=True), make_loop(METHODS["sgd"](), task).run()
    )


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    make_loop(METHODS["adam"](), make_task(), path).run()
    content = path.read_bytes()
    with pytest.raises(BadInput, match="another run"):
        make_loop(METHODS["adam"](), make_task(), path, fingerprint="g").run(resume=True)
    assert path.read_bytes() == content


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    path, task = tmp_path / "run.checkpoint", make_task()
    make_loop(METHODS["adam"](), task, path).run()
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    flips = torch.randint(0, len(content), (60,), generator=generator).tolist()
    mutants = [content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :] for at in flips]
    mutants += [content[:cut] for cut in (0, 10, 32, 40, len(content) - 1)] + [
        content + b"x",
        b"foreign" * 20,
    ]
    for mutant in mutants:
        path.write_bytes(mutant)
        with pytest.raises(BadFile):
            make_loop(METHODS["adam"](), task, path).run(resume=True)
    path.unlink()
    path.mkdir()
    with pytest.raises(BadFile):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [
        {"members": 10**15},
        {"members": -1},
        {"members": None},
        {"numbers": 7},
        {"numbers": {"x": 1}},
        {"epoch": None, "numbers": []},
        {"epoch": 10**18},
        {"epoch": -1},
        {"step": 10**18},
        {"step": "1"},
    ],
)
def test_checkpoints_that_lie_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    """Whole and of this run, by their hashes: made by somebody, not damaged."""
    path, task = tmp_path / "run.checkpoint", make_task()
    make_loop(METHODS["adam"](), task, path).run()
    tensors, values = read_checkpoint(path)
    write_checkpoint(path, tensors, {**values, **change})
    with pytest.raises(BadCheckpoint) as caught:
        make_loop(METHODS["adam"](), task, path).run(resume=True)
    assert caught.value.do
    others = {
        name: value.flatten()[:0] if name[:7] == "module/" else value for name, value in tensors.items()
    }
    for lying in (others, {}, {**tensors, "member/x/y": torch.ones(1)}):
        write_checkpoint(path, lying, values)
        with pytest.raises(BadCheckpoint):
            make_loop(METHODS["adam"](), task, path).run(resume=True)


def test_a_checkpoint_holds_what_was_put_in(tmp_path: Path) -> None:
    tensors = {"a/b": torch.randn(3), "count": torch.tensor(7), "view": torch.arange(6).view(2, 3).T}
    write_checkpoint(tmp_path / "c", tensors, {"x": [1, 2.5, None]})
    found, values = read_checkpoint(tmp_path / "c")
    assert values == {"x": [1, 2.5, None]}
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


@pytest.mark.parametrize("poison", ["loss", "weights"])
def test_nan_stops_the_run_with_reason_and_epoch(poison: str) -> None:
    loop = make_loop(METHODS["adam"](), make_task())
    step, made = loop._step, [0]

    def poisoned(x: Tensor, y: Tensor) -> None:
        made[0] += 1
        step(x * float("nan") if poison == "loss" and made[0] == 12 else x, y)
        if poison == "weights" and made[0] == 20:
            with torch.no_grad():  # the very last step: no loss will ever see it
                next(loop.module.parameters()).fill_(float("nan"))

    loop._step = poisoned  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RunFailed, match="epoch 3" if poison == "loss" else "after epoch 4"):
        loop.run()


def test_divergence_stops_the_run() -> None:
    x = torch.randn(40, 3)
    task = Task.from_arrays(x, x.sum(1), kind="regression")
    method = make_method("pointwise", optimizer="sgd", momentum=0.0)
    budget = Budget(epochs=50, batch_size=40, learning_rate=30.0, schedule="constant")
    module = nn.Linear(3, 1)

    def squared(_: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
        assert isinstance(outputs, Tensor)
        return ((outputs - target) ** 2).mean()

    optimizer = method.make_optimizer(module, 30.0, rows=40, steps_per_epoch=1, epochs=50)
    loop = Loop(module, task, budget, squared, optimizer, method.collect, seed=0, device=CPU, fingerprint="")
    with pytest.raises(RunFailed, match="over 100 times"):
        loop.run()


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_spike_may_pass_but_none_of_its_states_is_kept(epoch: int) -> None:
    """In one of epochs 2 to 4 the loss is 1e4 times what it is: the last one's state would be the member."""
    loop = make_loop(METHODS["adam"](), make_task())
    inner = loop.loss

    def spiking(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
        return inner(network, outputs, target) * (1e4 if loop.state.epoch == epoch else 1.0)

    loop.loss = spiking
    if epoch == 3:
        with pytest.raises(RunFailed, match="in epoch 4 the loss is over 100 times"):
            loop.run()
        assert loop.state.members == []
    else:
        state = loop.run()
        assert state.losses[epoch] > 100 * state.losses[0]
        assert len(state.members) == 1


def test_the_rate_follows_the_schedule() -> None:
    loop = make_loop(METHODS["sgd"](), make_task())
    rates: list[float] = []
    step = loop.optimizer.step
    loop.optimizer.step = lambda *a, **k: (rates.append(loop.optimizer.param_groups[0]["lr"]), step(*a, **k))[
        1
    ]
    loop.run()
    assert rates == [loop.budget.rate_at(step, 20) for step in range(20)]


def test_the_epochs_loss_is_the_mean_over_the_rows_trained_on() -> None:
    """21 rows in batches of 5: the last row is left out, and the mean must know."""
    task = make_task(21)
    budget = Budget(epochs=1, batch_size=5, learning_rate=1e-12)
    loop = make_loop(make_method("pointwise", weight_decay=0.0), task, budget=budget)
    losses: list[tuple[float, int]] = []
    inner = loop.loss

    def noted(network: nn.Module, outputs: Outputs, target: Tensor) -> Tensor:
        value = inner(network, outputs, target)
        losses.append((float(value.detach()), len(target)))
        return value

    loop.loss = noted
    state = loop.run()
    assert [rows for _, rows in losses] == [5, 5, 5, 5]
    assert state.losses[0] == pytest.approx(sum(v * n for v, n in losses) / 20, rel=1e-6)


@given(rows=st.integers(2, 60), batch_size=st.integers(1, 70), loader=st.booleans())
def test_steps_are_those_of_the_task(rows: int, batch_size: int, loader: bool) -> None:
    x, y = torch.arange(float(rows))[:, None], torch.arange(rows) % 2
    task = Task.from_arrays(x, y, kind="classification", labels=["a", "b"])
    if loader:
        task = Task.from_loader(
            lambda split, seed: [(x, y)], kind="classification", splits=("train",), classes=2
        )
    batches = list(task.training_batches(batch_size, torch.Generator().manual_seed(0), CPU, 0))
    assert steps_in_epoch(rows, batch_size) == len(batches)
    assert rows_in_epoch(rows, batch_size) == sum(len(x) for x, _ in batches)


def test_derived_seeds_differ_by_purpose() -> None:
    seeds = {
        derive_seed(0, "order"),
        derive_seed(0, "noise"),
        derive_seed(1, "order"),
        derive_seed("0/1"),
    }
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "order") == derive_seed(0, "order")
