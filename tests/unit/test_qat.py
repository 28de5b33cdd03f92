"""QuantizeJob-aware training: equal bits from equal seeds, what is trained and what is not, and refusals."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from fine_tuned import tuning, with_options
from qbayes.errors import BadFile, BadInput, Interrupted, QbayesError
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.quant.network import QuantNetwork
from qbayes.quant.observers import QUANTIZERS
from qbayes.training.loop import Loop

SHORT = tuning(epochs=3, batch_size=16, learning_rate=0.02, clip=1.0)
METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {"kl_weight": 0.1},
    "sghmc": {"members": 2, "every": 1},
}


def blobs(rows: int = 90, validation: bool = True) -> qb.Task:
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 4, generator=generator) + 4 * nn.functional.one_hot(y, 4)
    more = {"validation": 0.2} if validation else {}
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="blobs", **more)


def curve(rows: int = 90) -> qb.Task:
    x = torch.linspace(-2, 2, rows)[:, None]
    return qb.Task.from_arrays(x, x.sin(), x, x.sin(), kind="regression", name="curve")


def net(inputs: int = 4, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def fitted(method: str, task: qb.Task, network: Callable[[], nn.Module] = net, **options: Any) -> Any:
    chains = options.pop("chains", 1)
    made = qb.method(method, **{**METHODS[method], **options})
    budget = qb.Budget(epochs=4, batch_size=16, learning_rate=0.02)
    return qb.fit(network, task, made, budget, chains=chains, device="cpu", progress=False)


def quantize(posterior: Any, task: Any, precision: Any = "W8A8", budget: Any = SHORT, **more: Any) -> Any:
    steps = with_options(budget, more)
    return qb.quantize(posterior, task, precision, steps, device="cpu", progress=False, **more)


def same(one: qb.NetworkPosterior, other: qb.NetworkPosterior) -> bool:
    pairs = list(zip(one.members, other.members, strict=True))
    return all(a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) for a, b in pairs)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(method: str) -> None:
    task = blobs()
    posterior = fitted(method, task)
    before = copy.deepcopy(posterior.members)
    one, two, other = (quantize(posterior, task, seed=seed) for seed in (1, 1, 2))
    assert same(one, two)
    assert not same(one, other)
    # what was given is as it was.
    assert all(torch.equal(a[n], b[n]) for a, b in zip(before, posterior.members, strict=True) for n in a)


class Stopper:
    """Asks every loop to stop after so many steps of all loops together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        step = Loop._step

        def counted(loop: Loop, x: Tensor, y: Tensor) -> None:
            step(loop, x, y)
            self.left -= 1
            loop._stop = loop._stop or self.left == 0

        monkeypatch.setattr(Loop, "_step", counted)


@pytest.mark.parametrize(
    ("method", "precision", "keep"),
    [
        ("mcd", qb.Precision(4, 4), "last"),
        ("bbb", qb.Precision.preset("paper"), "best"),
        ("sghmc", qb.Precision(4, 4), "best"),
    ],
)
def test_an_interrupted_run_goes_on_with_the_same_bits(
    method: str, precision: qb.Precision, keep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = blobs()
    posterior = fitted(method, task)
    whole = quantize(posterior, task, precision, keep=keep, seed=5)
    stopper = Stopper(monkeypatch)
    steps = 15 * len(posterior.networks)  # 5 an epoch, 3 epochs a member
    for after in (7, steps - 9):
        stopper.left = after
        with pytest.raises(Interrupted):
            quantize(
                posterior, task, precision, keep=keep, seed=5, checkpoint=qb.Checkpoint(tmp_path, resume=True)
            )
    stopper.left = -1
    resumed = quantize(
        posterior, task, precision, keep=keep, seed=5, checkpoint=qb.Checkpoint(tmp_path, resume=True)
    )
    assert same(whole, resumed)
    # a finished run is read back from its checkpoints.
    again = quantize(
        posterior, task, precision, keep=keep, seed=5, checkpoint=qb.Checkpoint(tmp_path, resume=True)
    )
    assert same(whole, again)
    with pytest.raises(BadInput, match="settings and data"):
        quantize(
            posterior, task, precision, keep=keep, seed=6, checkpoint=qb.Checkpoint(tmp_path, resume=True)
        )
    with pytest.raises(BadFile, match="resume=True"):
        quantize(posterior, task, precision, keep=keep, seed=5, checkpoint=tmp_path)


def test_no_epochs_calibrate_only() -> None:
    task = blobs()
    posterior = fitted("pointwise", task)
    made = quantize(posterior, task, budget=tuning(epochs=0, batch_size=16), equalize=False)
    norm: Any = posterior.network[1]
    gain = norm.weight / (norm.running_var + norm.eps).sqrt()
    first = made.network.layer("0").weights
    assert torch.allclose(first.weight, posterior.network[0].weight * gain[:, None], rtol=1e-6)
    last = made.network.layer("3").weights
    assert torch.equal(last.weight, posterior.network[3].weight)
    assert torch.equal(last.bias, posterior.network[3].bias)
    assert made.provenance["quantised"]["losses"] == []


@pytest.mark.parametrize(("preset", "trained"), [("default", False), ("paper", True)])
def test_deviations_are_trained_by_the_papers_scheme_only_and_no_kl_is_asked_for(
    preset: str, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = blobs()
    posterior = fitted("bbb", task)
    start = qb.prepare(posterior, qb.Precision.preset(preset))
    monkeypatch.setattr(GaussianLayer, "kl", lambda *_, **__: pytest.fail("QAT has no KL"))
    made = quantize(posterior, task, qb.Precision.preset(preset), equalize=False)
    assert isinstance(start, QuantNetwork)
    for name in ("0", "3"):
        before, after = start.layer(name).weights, made.network.layer(name).weights
        assert torch.equal(before.weight_rho, after.weight_rho) is not trained
        assert not torch.equal(before.weight_mean, after.weight_mean)


def test_learned_steps_are_trained_and_nothing_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Loop] = []
    run = Loop.run
    monkeypatch.setattr(Loop, "run", lambda loop, **more: (seen.append(loop), run(loop, **more))[1])
    task = blobs()
    quantize(fitted("pointwise", task), task, qb.Precision(4, 4))
    loop = seen[-1]  # the one before is that of fit
    network = loop.module
    assert isinstance(network, QuantNetwork)
    learned = [q.scale for _, q in network.quantizers() if isinstance(q.scale, torch.nn.Parameter)]
    scales = {id(scale) for scale in learned}
    assert len(scales) == 4  # two weights, two outputs; the input's is that of the data
    groups = loop.optimizer.param_groups
    assert all(group["weight_decay"] == 0.0 for group in groups)
    everything = [id(p) for group in groups for p in group["params"]]
    assert scales < set(everything)
    assert sorted(everything) == sorted({id(p) for p in network.parameters() if p.requires_grad})


def test_ranges_that_follow_data_stop_at_the_share_of_the_epochs_given() -> None:
    task = blobs()
    posterior = fitted("pointwise", task)
    precision = qb.Precision(8, 8, weight_range="minmax", activation_range="ema")
    still = quantize(posterior, task, precision, budget=tuning(epochs=0, batch_size=16))
    frozen, moved = (quantize(posterior, task, precision, freeze=share) for share in (0.0, 1.0))

    def ranges(made: qb.NetworkPosterior) -> list[Tensor]:
        assert isinstance(made.network, QuantNetwork)
        return [quantizer.scale for _, quantizer in made.network.quantizers()]

    assert all(torch.equal(a, b) for a, b in zip(ranges(still), ranges(frozen), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(ranges(still), ranges(moved), strict=True))


def test_the_best_epoch_is_kept_where_the_last_has_learnt_by_heart() -> None:
    generator = torch.Generator().manual_seed(4)
    x, y = torch.randn(60, 4, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    task = qb.Task.from_arrays(x, y, x, y, kind="classification", name="lots", validation=0.4)
    posterior = fitted("pointwise", task)
    long = tuning(epochs=12, batch_size=16, learning_rate=0.1)
    x, y = next(task.batches("validation", 1000))

    def nll(keep: Any) -> float:
        made = quantize(posterior, task, qb.Precision(), long, keep=keep)
        return float(-made.predict(x, 4, 0).log_mean.gather(-1, y[:, None]).mean())

    assert nll("best") < 0.95 * nll("last")


def test_each_member_is_quantised_by_itself() -> None:
    task = blobs()
    together = fitted("sghmc", task)
    precision = qb.Precision(weight_range="minmax", activation_range="minmax")
    none = tuning(epochs=0, batch_size=16)
    made = quantize(together, task, precision, none)
    for index, member in enumerate(together.members):
        alone = qb.Posterior.from_trained(together.network, task.signature, members=[member])
        single = quantize(alone, task, precision, none)
        assert all(torch.equal(made.members[index][name], v) for name, v in single.members[0].items())
    scales = [member["layers.0.weights.quantizer.scale"] for member in made.members]
    assert not torch.equal(*scales)


@pytest.mark.parametrize("rule", tuple(QUANTIZERS))
def test_every_range_rule_keeps_the_task_learnt(rule: str) -> None:
    task = blobs()
    posterior = fitted("pointwise", task)
    made = quantize(posterior, task, qb.Precision(4, 4, weight_range=rule, activation_range=rule))
    x, y = next(task.batches("test", 1000))
    right = (made.predict(x).log_mean.argmax(-1) == y).float().mean()
    assert right > 0.85


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_scheme_becomes_a_program_for_every_method(method: str) -> None:
    task = blobs()
    made = quantize(fitted(method, task), task, qb.Precision.preset("paper"))
    program = qb.load(qb.lower(made), backend="reference")
    x, _ = next(task.batches("test", 40))
    assert torch.equal(made.predict(x, 4, 1).draws, program.predict(x, 4, 1).draws)


def test_members_that_need_other_grids_become_one_program() -> None:
    task = blobs()
    posterior = fitted("bbb", task, chains=2)
    states = [{name: value.clone() for name, value in member.items()} for member in posterior.members]
    for name in states[0]:
        if name.endswith("weight_rho"):
            # a wide noise fits the weights' grid, a narrow one needs its own.
            states[0][name] = torch.full_like(states[0][name], -3.0)
            states[1][name] = torch.full_like(states[1][name], -8.0)
    mixed = qb.Posterior.from_trained(posterior.network, task.signature, members=states)
    alone = [
        quantize(
            qb.Posterior.from_trained(posterior.network, task.signature, members=[one]), task, equalize=False
        )
        for one in states
    ]
    grids = [{int(v) for n, v in made.members[0].items() if n.endswith("grids")} for made in alone]
    assert grids[0] != grids[1]
    made = quantize(mixed, task, equalize=False)
    program = qb.load(qb.lower(made), backend="reference")
    x, _ = next(task.batches("test", 40))
    assert torch.equal(made.predict(x, 4, 1).draws, program.predict(x, 4, 1).draws)
    assert float(made.predict(x, 8, 1).draws.std(0).mean()) > 0


def test_a_constant_noise_stays_and_each_member_has_its_own() -> None:
    task = curve()
    posterior = fitted("sghmc", task, lambda: net(1, 1))
    made = quantize(posterior, task)
    noises = [member["tenth_log_variance"] for member in made.members]
    assert not torch.equal(*noises)
    program = qb.load(qb.lower(made), backend="reference")
    x, _ = next(task.batches("test", 40))
    ours, theirs = (one.predict(x, 4, 1) for one in (made, program))
    assert torch.equal(ours.draws, theirs.draws)
    assert torch.allclose(ours.variance, theirs.variance, rtol=1e-5)


def poisoned(posterior: qb.NetworkPosterior, name: str) -> qb.NetworkPosterior:
    state = {key: value.clone() for key, value in posterior.members[0].items()}
    state[name].view(-1)[0] = float("nan")
    return qb.Posterior.from_trained(posterior.network, posterior.signature, members=[state])


BAD: dict[str, tuple[Callable[[Any, qb.Task], Any], str]] = {
    "quantised before": (lambda p, t: quantize(quantize(p, t), t), "W8A8"),
    "no posterior": (lambda p, t: quantize(p.network, t), "Sequential"),
    "no task": (lambda p, t: quantize(p, 3), "int"),
    "another task": (lambda p, t: quantize(p, curve()), "inputs"),
    "an unknown epoch": (lambda p, t: quantize(p, t, keep="first"), "first"),
    "no validation rows": (lambda p, t: quantize(p, blobs(validation=False), keep="best"), "validation"),
    "freeze": (lambda p, t: quantize(p, t, freeze=1.5), "1.5"),
    "freeze that is NaN": (lambda p, t: quantize(p, t, freeze=float("nan")), "nan"),
    "an override of nothing": (
        lambda p, t: quantize(p, t, qb.Precision(overrides={"head": {"weight": 4}})),
        "'head' matches none",
    ),
    "NaN in the weights": (lambda p, t: quantize(poisoned(p, "3.weight"), t), "'3'"),
    "NaN in the bias": (lambda p, t: quantize(poisoned(p, "3.bias"), t), "3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_before_any_training(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = blobs()
    posterior = fitted("pointwise", task)
    act, says = BAD[case]
    if case != "quantised before":
        monkeypatch.setattr(Loop, "run", lambda *_, **__: pytest.fail("it trained"))
    with pytest.raises(QbayesError) as told:
        act(posterior, task)
    assert says in str(told.value)
    assert told.value.do


def test_gaussian_weights_refuse_grids_that_do_not_fit_them_and_say_where() -> None:
    task = blobs()
    posterior = fitted("bbb", task)
    with pytest.raises(BadInput, match=r"affine.*'0'"):
        quantize(posterior, task, qb.Precision(weight_scheme="affine"))
    with pytest.raises(BadInput, match=r"granularity='channel'.*'0'"):
        quantize(posterior, task, qb.Precision(gaussian="single", weight_scheme="affine"))
