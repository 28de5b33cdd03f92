"""``fit``: chains, starts, noise, devices, and the networks it must refuse."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qbayes import Budget, Task, attach, fit, load_posterior, method, network, save_posterior
from qbayes.device import choose_device
from qbayes.errors import BadFile, BadInput, RunFailed
from qbayes.networks import build_network
from qbayes.posterior.base import Posterior
from qbayes.posterior.sites import point_state
from qbayes.training.checkpoint import Checkpoint
from qbayes.training.fit import default_budget, reinitialise
from qbayes.training.loop import Loop

SHORT = Budget(epochs=2, batch_size=16, learning_rate=1e-2)


def blobs(rows: int = 60, name: str = "arrays") -> Task:
    torch.manual_seed(3)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 4) + 3 * nn.functional.one_hot(y, 4)
    return Task.from_arrays(x, y, x[:20], y[:20], kind="classification", name=name)


def line(rows: int = 80, noise: float = 0.3) -> Task:
    torch.manual_seed(4)
    x = torch.randn(rows, 2)
    y = 5 + 2 * x[:, :1] - x[:, 1:] + noise * torch.randn(rows, 1)
    return Task.from_arrays(x, y, kind="regression")


def mlp(outputs: int = 3, inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_same_seed_same_bits() -> None:
    one, two = (fit(mlp, blobs(), method("mcd"), SHORT, seed=5) for _ in range(2))
    assert same(one.members[0], two.members[0])
    other = fit(mlp, blobs(), method("mcd"), SHORT, seed=6)
    assert not same(one.members[0], other.members[0])


@pytest.mark.parametrize("name", ["pointwise", "mcd", "bbb"])
def test_neither_fit_nor_the_callers_generator_touches_the_other(name: str) -> None:
    net, task = mlp(), blobs()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = fit(net, task, method(name), SHORT, chains=2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(one.members[1], fit(net, task, method(name), SHORT, chains=2).members[1])


def test_the_network_given_is_where_training_starts_and_is_not_changed() -> None:
    net = mlp()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tiny = Budget(epochs=1, batch_size=60, learning_rate=1e-12)
    posterior = fit(net, blobs(), method("pointwise"), tiny)
    assert same(before, net.state_dict())
    for name, value in posterior.members[0].items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("made", ["module", "function", "ours"])
def test_chains_are_different_and_reproducible(made: str) -> None:
    task = blobs()
    given: Any = {"module": mlp(), "function": mlp, "ours": network("mlp", task, hidden=(8,))}[made]
    posterior = fit(given, task, method("pointwise"), SHORT, chains=3)
    again = fit(given, task, method("pointwise"), SHORT, chains=3)
    assert len(posterior.members) == 3
    for i in range(3):
        assert same(posterior.members[i], again.members[i])
        assert not same(posterior.members[i], posterior.members[(i + 1) % 3])
    alone = fit(given, task, method("pointwise"), SHORT)
    assert same(alone.members[0], posterior.members[0]), "the first chain is the single run"
    assert posterior.provenance["chains"] == 3
    assert len(posterior.provenance["losses"]) == 3


def test_the_next_chain_is_initialised_as_the_first_was() -> None:
    """resnet18 starts from He's normal, not from its layers' own uniform."""
    net = build_network("resnet18", (3, 8, 8), 10, width=8)
    fresh = reinitialise(net)
    first, second = (module.stage3[1].conv2.weight.detach() for module in (net, fresh))
    assert not torch.equal(first, second)
    expected = math.sqrt(2 / (32 * 9))
    assert float(second.std()) == pytest.approx(expected, rel=0.05)
    # the kurtosis of a normal is 3, of a uniform 1.8
    assert float(((second / second.std()) ** 4).mean()) == pytest.approx(3, abs=0.3)


def test_layers_that_cannot_start_anew_are_named() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) * self.scale

    with pytest.raises(BadInput, match=r"Scaled at ''.*"):
        fit(Scaled(), blobs(), method("pointwise"), SHORT, chains=2)
    assert len(fit(Scaled, blobs(), method("pointwise"), SHORT, chains=2).members) == 2


@pytest.mark.parametrize("target", ["bbb", "mcd", "pointwise"])
@pytest.mark.parametrize("source", ["pointwise", "bbb", "mcd"])
def test_start_puts_the_trained_point_weights_in(source: str, target: str) -> None:
    task, net = line(), mlp(1, 2)
    begun = fit(net, task, method(source), SHORT)
    still = Budget(epochs=1, batch_size=80, learning_rate=1e-12)
    posterior = fit(net, task, method(target), still, start=begun)
    trained = point_state(begun.network, begun.members[0])
    found = point_state(posterior.network, posterior.members[0])
    assert trained.keys() == found.keys()
    for name in trained:
        torch.testing.assert_close(found[name], trained[name], rtol=0, atol=1e-9)


def test_start_from_another_network_is_refused() -> None:
    begun = fit(mlp(), blobs(), method("pointwise"), SHORT)
    wider = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(BadInput, match="same network"):
        fit(wider, blobs(), method("bbb"), SHORT, start=begun)


@pytest.mark.parametrize("noise", [0.1, 0.6])
def test_a_constant_noise_is_learned(noise: float) -> None:
    task = line(2000, noise)
    budget = Budget(epochs=60, batch_size=200, learning_rate=2e-2)
    posterior = fit(nn.Linear(2, 1), task, method("pointwise", weight_decay=0.0), budget)
    predictive = posterior.predict(torch.zeros(1, 2), draws=1)
    assert float(predictive.variance.sqrt()) == pytest.approx(noise, rel=0.05)
    assert float(predictive.mean) == pytest.approx(5, abs=0.05)


def test_heads_of_the_networks_own_are_kept() -> None:
    posterior = fit(network("mlp", line(), hidden=(8,)), line(), method("mcd"), SHORT)
    found = {name.replace(".layer.", ".") for name in posterior.members[0]}
    plain = network("mlp", line(), hidden=(8,)).state_dict()
    assert found == set(plain), "no second noise beside the head's own"


class Reshaping(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(2, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.view(-1, 2))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


@pytest.mark.parametrize("name", ["pointwise", "bbb", "sghmc"])
@pytest.mark.parametrize(
    ("net", "why"),
    [
        (Reshaping(), "keep its batch"),
        (mlp(4), "3 logits"),
        (mlp(inputs=5), r"\(rows, 4\)"),
        (Pair(), "tuple"),
        (nn.Flatten(), "parameters|must find"),
    ],
)
def test_networks_that_do_not_fit(net: nn.Module, why: str, name: str) -> None:
    with pytest.raises(BadInput, match=why):
        fit(net, blobs(), method(name), SHORT)


@pytest.mark.parametrize("device", ["banana", "cuda:99", "meta", "", None, "cpuu"])
def test_devices_that_are_not_there(device: Any) -> None:
    with pytest.raises(BadInput, match="device"):
        choose_device(device)


def test_devices_that_are() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    "options",
    [{"seed": -1}, {"seed": 2**63}, {"chains": 0}, {"seed": 0.5}, {"chains": 1.5}, {"chains": "2"}],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        fit(mlp(), blobs(), method("pointwise"), SHORT, **options)


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"seed": np.int64(1), "chains": np.int64(2)}
    found = fit(mlp, blobs(), method("pointwise"), SHORT, **options)
    plain = fit(mlp, blobs(), method("pointwise"), SHORT, seed=1, chains=2)
    assert all(same(a, b) for a, b in zip(found.members, plain.members, strict=True))
    assert json.loads(json.dumps(found.provenance))["seed"] == 1


def raising() -> nn.Module:
    raise KeyError("width")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"net": None}, "network must be a module"),
        ({"net": nn.Linear}, "missing 2 required positional arguments"),
        ({"net": lambda: None}, "it made None"),
        ({"net": raising}, "KeyError: 'width'"),
        ({"kind": "mdc"}, "did you mean 'mcd'"),
        ({"kind": type(method("bbb"))}, r"use qb\.method\('bbb'\)"),
        ({"budget": {"epochs": 3, "clip": 1.0}}, r"use qb\.Budget\(epochs=3, clip=1\.0\)"),
        ({"budget": 3}, r"use qb\.Budget\(epochs=3\)"),
        ({"budget": 0}, "the budget must be a Budget"),
        ({"task": (torch.ones(4, 4), torch.arange(4))}, r"tuple\n.*from_arrays"),
    ],
)
def test_arguments_of_another_kind_are_told_apart(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"net": mlp(), "task": blobs(), "kind": method("mcd"), "budget": SHORT}
    with pytest.raises(BadInput, match=said):
        fit(*(given | change).values())


def test_an_error_of_ours_in_the_networks_function_stays_as_it_is() -> None:
    with pytest.raises(BadInput, match="did you mean 'mlp'"):
        fit(lambda: network("mpl", blobs()), blobs(), method("mcd"), SHORT)


@pytest.mark.parametrize("task", [blobs(), line()], ids=["classification", "regression"])
def test_a_batch_cut_beyond_the_dry_runs_rows_is_found_in_the_first_step(task: Task) -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shape = task.signature.input_shape
            self.inner = mlp(3 if task.kind == "classification" else 1, shape[0])

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[:2]

    with pytest.raises(BadInput, match=r"keep its batch.*\n.*16 rows in"):
        fit(Cut(), task, method("pointwise"), SHORT)


@pytest.mark.parametrize("name", ["pointwise", "mcd", "bbb", "sghmc"])
def test_a_frozen_network_is_refused(name: str) -> None:
    """Also in regression, where the learned noise alone would be left to train."""
    with pytest.raises(BadInput):
        fit(mlp(1, 2).requires_grad_(False), line(), method(name), SHORT)


def test_a_run_that_blows_up_fails_with_its_reason() -> None:
    budget = Budget(epochs=3, batch_size=16, learning_rate=1e30)
    with pytest.raises(RunFailed, match=r"epoch \d"):
        fit(mlp(1, 2), line(), method("pointwise", optimizer="sgd"), budget)


def test_a_task_without_training_rows_is_refused() -> None:
    task = Task.for_testing(torch.randn(6, 4), torch.arange(6) % 3, labels=["a", "b", "c"], name="t")
    with pytest.raises(BadInput, match="train"):
        fit(mlp(), task, method("pointwise"), SHORT)


def test_provenance_is_json_and_says_what_was_done(tmp_path: Path) -> None:
    posterior = fit(mlp(), blobs(), method("mcd", rates={"2": 0.3}, after=("1",)), SHORT, seed=4)
    said = json.loads(json.dumps(posterior.provenance))
    assert said["method"]["rates"] == {"2": 0.3}
    assert said["seed"] == 4
    assert said["budget"]["epochs"] == 2
    assert len(said["losses"][0]) == 2
    assert all(math.isfinite(loss) for loss in said["losses"][0])
    assert said["attachment"]["left_alone"] == [["0", "no mask before it"]]
    assert save_posterior(posterior, tmp_path / "p").exists()


@pytest.mark.parametrize("name", ["mcd", "bbb", "sghmc"])
def test_our_networks_are_rebuilt_at_loading(name: str, tmp_path: Path) -> None:
    options = {"members": 2, "every": 1} if name == "sghmc" else {}
    posterior = fit(network("mlp", blobs(), hidden=(8,)), blobs(), method(name, **options), SHORT)
    again = load_posterior(save_posterior(posterior, tmp_path / "p"))
    x = torch.randn(4, 4)
    assert torch.equal(again.predict(x, draws=4).draws, posterior.predict(x, draws=4).draws)
    own = save_posterior(fit(mlp(), blobs(), method(name, **options), SHORT), tmp_path / "q")
    with pytest.raises(BadInput, match="needs that network"):
        load_posterior(own)


def test_checkpoints_of_all_chains_are_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, kind = blobs(), method("mcd")
    whole = fit(mlp, task, kind, SHORT, chains=2)
    fit(mlp, task, kind, SHORT, chains=2, checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chain-0000.checkpoint",
        "chain-0001.checkpoint",
    ]
    (tmp_path / "chain-0001.checkpoint").unlink()
    steps: list[int] = []
    real = Loop._step
    monkeypatch.setattr(Loop, "_step", lambda self, x, y: (steps.append(1), real(self, x, y))[1])
    resumed = fit(mlp, task, kind, SHORT, chains=2, checkpoint=Checkpoint(tmp_path, resume=True))
    assert len(steps) == 8, "only the second chain is trained again"
    assert all(same(a, b) for a, b in zip(whole.members, resumed.members, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"chains": 2},
        {"budget": Budget(epochs=3, batch_size=16, learning_rate=1e-2)},
        {"kind": method("mcd", rate=0.2)},
        {"task": blobs(63)},
        {"net": nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))},
    ],
)
def test_another_runs_checkpoint_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    given = {"net": mlp(), "task": blobs(), "kind": method("mcd"), "budget": SHORT}
    fit(*given.values(), checkpoint=tmp_path)
    given |= {key: value for key, value in change.items() if key in given}
    options = {key: value for key, value in change.items() if key not in given}
    with pytest.raises(BadInput, match="another run"):
        fit(*given.values(), checkpoint=Checkpoint(tmp_path, resume=True), **options)


def test_attach_for_ones_own_loop() -> None:
    task, net = blobs(), mlp()
    kind = method("mcd", rate=0.3)
    module = attach(net, kind, task.example(2))
    assert [site.module for site in module.attachment.sites] == ["2"]  # pyright: ignore[reportAttributeAccessIssue]
    optimizer = kind.make_optimizer(module, 1e-2, rows=60, steps_per_epoch=1, epochs=20)
    for _ in range(20):
        for x, y in task.training_batches(60, torch.Generator().manual_seed(0), torch.device("cpu"), 0):
            loss = kind.loss(module, module(x), y, task.signature.likelihood, 60)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    posterior = Posterior.from_trained(module, task.signature)
    x, y = next(task.batches("test", 20))
    predictive = posterior.predict(x, draws=10)
    assert float((predictive.mean.argmax(1) == y).float().mean()) > 0.6
    assert float(predictive.draws.std(0).max()) > 0


def test_channels_last_gives_a_posterior_that_predicts() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2, 6, 6)
    task = Task.from_arrays(x, torch.arange(40) % 2, kind="classification", labels=["a", "b"])
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    for name in ("mcd", "bbb"):
        budget = Budget(epochs=1, batch_size=20, channels_last=True)
        posterior = fit(net, task, method(name), budget)
        assert bool(torch.isfinite(posterior.predict(x, draws=3).draws).all())


def test_the_default_budget_is_the_methods_preset_for_the_task() -> None:
    assert default_budget(method("sghmc"), blobs()).schedule == "constant"
    assert default_budget(method("mcd"), line()) != default_budget(method("mcd"), blobs())


def test_attach_and_start_say_what_they_want() -> None:
    with pytest.raises(BadInput, match=r"use qb\.method"):
        attach(nn.Linear(2, 2), "mcd")  # type: ignore[arg-type]
    task = Task.from_arrays(torch.randn(8, 2), torch.arange(8) % 2, kind="classification")
    with pytest.raises(BadInput, match="load_posterior"):
        fit(nn.Linear(2, 2), task, method("pointwise"), Budget(epochs=1), start="runs/point")  # type: ignore[arg-type]


def test_a_new_run_does_not_replace_a_checkpoint(tmp_path: Path) -> None:
    task = Task.from_arrays(torch.randn(8, 2), torch.arange(8) % 2, kind="classification")
    options = {"device": "cpu", "progress": False, "checkpoint": tmp_path}
    first = fit(nn.Linear(2, 2), task, method("pointwise"), Budget(epochs=1), **options)
    kept = (tmp_path / "chain-0000.checkpoint").read_bytes()
    with pytest.raises(BadFile, match="resume=True"):
        fit(nn.Linear(2, 2), task, method("pointwise"), Budget(epochs=2), **options)
    assert (tmp_path / "chain-0000.checkpoint").read_bytes() == kept
    assert len(first.members) == 1


def test_a_budget_that_is_to_go_on_from_a_trained_network_says_so_without_one() -> None:
    task = blobs(name="cifar10")
    with pytest.warns(UserWarning, match=r"bbb for cifar10 must begin at a trained pointwise network"):
        fit(mlp(), task, method("bbb"), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        point = fit(mlp(), task, method("pointwise", optimizer="sgd"), SHORT, progress=False)
        fit(mlp(), task, method("bbb"), start=point, progress=False)
        fit(mlp(), task, method("bbb"), SHORT, progress=False)
        fit(mlp(), blobs(), method("bbb"), SHORT, progress=False)


def test_a_fit_without_an_epoch_is_refused() -> None:
    """Without one no state is collected, and the posterior would have no member."""
    with pytest.raises(BadInput, match="at least one epoch"):
        fit(mlp, blobs(), method("pointwise"), Budget(epochs=0), device="cpu", progress=False)
