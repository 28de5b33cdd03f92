"""Stacked quantisation-aware training gives what ``quantize`` gives for each posterior."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qbayes as qb
from fine_tuned import plain_job, tuning
from qbayes.errors import BadInput, Interrupted, QbayesError
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.finetune.job import QuantizeJob, network_of
from qbayes.quant.finetune.quantize import quantize_members
from qbayes.quant.finetune.stacked import cannot_stack_quantised, quantize_stacked
from qbayes.training.loop import Loop
from qbayes.training.stacked.loop import StackLoop

METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {},
    "sghmc": {"members": 3, "every": 2},
}
BITS = ((8, 8), (4, 4), (2, 3))
# ranges that follow the data: a sum taken in another order moves them by its rounding and no more.
FOLLOWING = {
    "paper": [qb.Precision.preset("paper", weight=w, activation=a) for w, a in ((8, 7), (8, 3), (4, 7))],
    "percentile": [
        qb.Precision(w, a, weight_range="percentile", activation_range="minmax", input=None) for w, a in BITS
    ],
}
LEARNED = [qb.Precision(w, a) for w, a in BITS]


def posteriors(method: str, count: int = 3) -> list[tuple[NetworkPosterior, qb.Task]]:
    found: list[tuple[NetworkPosterior, qb.Task]] = []
    budget = qb.Budget(epochs=8, batch_size=64, learning_rate=1e-3)
    for seed in range(count):
        task = qb.load_task("diabetes", split=seed, validation=0.1)
        network = qb.network("mlp", task, hidden=(20, 20), noise="row")
        how = qb.method(method, **METHODS[method])
        found.append((qb.fit(network, task, how, budget, seed=seed, device="cpu"), task))
    return found


def asked_for(
    method: str, precisions: Sequence[qb.Precision], epochs: int = 4, **more: Any
) -> list[QuantizeJob]:
    """Five steps an epoch, each of the three with its own fold, bits and seed."""
    budget = tuning(epochs=epochs, batch_size=72, learning_rate=1e-3, clip=1.0)
    return [
        plain_job(posterior, task, precision, budget, seed, **more)
        for seed, ((posterior, task), precision) in enumerate(
            zip(posteriors(method), precisions, strict=True)
        )
    ]


def together(asked: Sequence[QuantizeJob], **more: Any) -> list[NetworkPosterior]:
    found = quantize_stacked(asked, device="cpu", **more)
    assert all(isinstance(one, NetworkPosterior) for one in found), found
    return [one for one in found if isinstance(one, NetworkPosterior)]


def apart(one: NetworkPosterior, other: NetworkPosterior) -> float:
    """The largest difference of a tensor of the states over its largest entry."""
    assert len(one.members) == len(other.members) > 0
    worst = 0.0
    for mine, theirs in zip(one.members, other.members, strict=True):
        assert list(mine) == list(theirs)
        for name, expected in theirs.items():
            size = expected.double().abs().max().clamp_min(1e-12)
            worst = max(worst, float((mine[name].double() - expected.double()).abs().max() / size))
    return worst


@pytest.mark.parametrize("rule", FOLLOWING)
@pytest.mark.parametrize("method", METHODS)
def test_folds_and_bits_are_as_quantised_one_by_one_after_20_steps(method: str, rule: str) -> None:
    asked = asked_for(method, FOLLOWING[rule])
    for one, found in zip(asked, together(asked), strict=True):
        alone = quantize_members(one, device="cpu")
        assert apart(found, alone) <= 2e-6
        assert found.quantised == alone.quantised == one.precision.to_json()


@pytest.mark.parametrize("method", METHODS)
def test_each_of_20_steps_has_the_gradient_of_the_network_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learned steps amplify a rounding that falls to the other side: here both start each step alike."""
    asked = asked_for(method, LEARNED)
    likelihood = asked[0].task.signature.likelihood
    members = [(one, member) for one in asked for member in range(one.members)]
    modules = [one.prepare(member) for one, member in members]
    for (one, member), module in zip(members, modules, strict=True):
        one.calibrate(module, member, torch.device("cpu"))
    differences: list[float] = []
    step = StackLoop._step  # pyright: ignore[reportPrivateUsage]

    def compared(loop: StackLoop, x: Tensor, y: Tensor) -> None:
        state, noise = loop.stack.state_dict(), loop.noise.get_state()
        singles: list[dict[str, Tensor]] = []
        for index, module in enumerate(modules):
            module.load_state_dict(loop.stack.split(state, index))
            module.train()
            network_of(module).observe(loop.state.epoch < 2)
            module.zero_grad()
            torch.default_generator.set_state(noise[index].clone())
            likelihood.nll(module(x[index]), y[index]).mean().backward()
            held = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
            singles.append(held)
        loop.noise.set_state(noise)
        monkeypatch.setattr("qbayes.training.loop.clip_gradients", lambda *_, **__: compare(loop, singles))
        step(loop, x, y)

    def compare(loop: StackLoop, singles: list[dict[str, Tensor]]) -> None:
        gradients = loop.stack.state_dict()
        gradients |= {name: p.grad for name, p in loop.stack.named_parameters() if p.grad is not None}
        for index, single in enumerate(singles):
            stacked = loop.stack.split(gradients, index)
            differs = sum(float((stacked[name] - own).square().sum()) for name, own in single.items())
            size = sum(float(own.square().sum()) for own in single.values())
            differences.append((differs / size) ** 0.5)

    monkeypatch.setattr(StackLoop, "_step", compared)
    together(asked)
    assert len(differences) == 20 * len(modules)
    # now and then a number lies on the edge between two codes, and falls to either side.
    assert sorted(differences)[len(differences) * 9 // 10] <= 1e-5
    assert max(differences) <= 0.05


def test_members_and_their_ranges_are_their_own() -> None:
    (one,) = together(asked_for("sghmc", LEARNED)[:1])
    scales = [member["layers.mean.out.scale"] for member in one.members]
    assert len(scales) == 3
    assert len({float(scale) for scale in scales}) == 3
    record = one.provenance["quantised"]
    assert record["stacked"] == 3
    assert [len(losses) for losses in record["losses"]] == [4, 4, 4]


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_stopped_stack_goes_on_to_the_same_bits(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_for("mcd", LEARNED, keep=keep)
    whole = together(asked)
    step, done = Loop._step, [0]  # pyright: ignore[reportPrivateUsage]

    def stopping(loop: Loop, x: Tensor, y: Tensor) -> None:
        step(loop, x, y)
        done[0] += 1
        loop._stop = done[0] == 12  # pyright: ignore[reportPrivateUsage]

    with monkeypatch.context() as patch:
        patch.setattr(StackLoop, "_step", stopping)
        with pytest.raises(Interrupted):
            quantize_stacked(asked, device="cpu", checkpoint=tmp_path)
    for one, other in zip(together(asked, checkpoint=tmp_path, resume=True), whole, strict=True):
        assert apart(one, other) == 0.0
        assert one.provenance["quantised"]["losses"] == other.provenance["quantised"]["losses"]


def test_the_best_epoch_is_each_networks_own() -> None:
    asked = asked_for("pointwise", FOLLOWING["paper"], keep="best")
    for one, found in zip(asked, together(asked), strict=True):
        assert apart(found, quantize_members(one, device="cpu")) <= 2e-6


def test_the_trouble_of_one_posterior_is_its_own() -> None:
    asked = asked_for("pointwise", FOLLOWING["paper"])
    healthy = together(asked)
    with torch.no_grad():
        next(iter(asked[1].posterior.networks[0].parameters())).fill_(float("nan"))
    found = quantize_stacked(asked, device="cpu")
    assert isinstance(found[1], QbayesError)
    for index in (0, 2):
        one = found[index]
        assert isinstance(one, NetworkPosterior)
        assert apart(one, healthy[index]) == 0.0


def test_bits_that_a_search_depends_on_are_not_mixed() -> None:
    precisions = [qb.Precision(w, a, weight_range="mse", activation_range="mse") for w, a in BITS]
    asked = asked_for("pointwise", precisions)
    with pytest.raises(BadInput, match="one shape"):
        quantize_stacked(asked, device="cpu")
    same = [QuantizeJob(one.posterior, one.task, precisions[1], one.fine_tuning, one.seed) for one in asked]
    for one, found in zip(same, together(same), strict=True):
        assert apart(found, quantize_members(one, device="cpu")) <= 1e-4


def test_a_stack_without_epochs_is_refused() -> None:
    with pytest.raises(BadInput, match="0 epochs"):
        quantize_stacked(asked_for("pointwise", LEARNED, epochs=0), device="cpu")


def test_a_network_that_draws_its_own_noise_is_told_before() -> None:
    task = qb.load_task("diabetes")
    budget = qb.Budget(epochs=1, batch_size=64)
    plain = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    noisy = torch.nn.Sequential(torch.nn.Linear(10, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    for network, why in ((plain, None), (noisy, "noise of its own")):
        found = cannot_stack_quantised(ConstantNoise(network, (1,)), task, qb.Precision(), budget)
        assert (found is None) if why is None else (found is not None and why in found)
