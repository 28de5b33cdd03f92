"""Fine-tuning in float, the control of quantisation: the same steps, no rounding, a float posterior."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from fine_tuned import plain_job, tuning, with_options
from qbayes.errors import BadInput, Interrupted
from qbayes.posterior.predictive import CategoricalPredictive, GaussianPredictive
from qbayes.quant.finetune.job import QuantizeJob
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.training.loop import Loop

METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {"kl_weight": 0.1},
    "sghmc": {"members": 2, "every": 1},
}
# steps so small that no weight moves.
STILL = tuning(epochs=1, batch_size=32, learning_rate=1e-30)
SHORT = tuning(epochs=3, batch_size=16, learning_rate=0.02, clip=1.0)
# of logits: float32 through a few layers, weights folded and given back.
ROUNDING = 2e-5


def blobs(rows: int = 90) -> qb.Task:
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 4, generator=generator) + 4 * F.one_hot(y, 4)
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="blobs", validation=0.2)


def pictures(rows: int = 60) -> qb.Task:
    generator = torch.Generator().manual_seed(4)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 2, 6, 6, generator=generator) + y[:, None, None, None]
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="pictures")


def curve(rows: int = 90) -> qb.Task:
    x = torch.linspace(-2, 2, rows)[:, None]
    return qb.Task.from_arrays(x, x.sin(), x, x.sin(), kind="regression", name="curve")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class Residual(nn.Module):
    """Norms behind convolutions with and without a bias, and one that is not folded: its input branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.inner = nn.BatchNorm2d(4)
        self.outer = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.stem(x)))
        y = y + self.inner(self.conv(y))
        y = torch.relu(self.outer(y) + y)
        return self.head(y.mean((2, 3)))


def with_negative_gains(network: nn.Module) -> nn.Module:
    """Half of the gains below 0, as training makes a few of them: there a folded draw turns round."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            with torch.no_grad():
                layer.weight[::2] *= -1
    return network


def turned(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: with_negative_gains(make())


def fitted(method: str, task: qb.Task, network: Callable[[], nn.Module], **options: Any) -> Any:
    how = qb.method(method, **{**METHODS[method], **options})
    budget = qb.Budget(epochs=3, batch_size=16, learning_rate=0.02)
    return qb.fit(network, task, how, budget, device="cpu", progress=False)


def tuned(posterior: Any, task: Any, budget: Any = SHORT, **more: Any) -> qb.NetworkPosterior:
    steps = with_options(budget, more)
    return qb.fine_tune(posterior, task, finetuning=steps, device="cpu", progress=False, **more)


def answers(posterior: qb.NetworkPosterior, task: qb.Task) -> Tensor:
    """What each draw says of each row: log-probabilities, or means."""
    x, _ = next(task.batches("test", 1000))
    found = posterior.predict(x, 4, 7)
    if isinstance(found, CategoricalPredictive):
        return found.log_draws
    assert isinstance(found, GaussianPredictive)
    return found.draws


def same(one: qb.NetworkPosterior, other: qb.NetworkPosterior) -> bool:
    pairs = list(zip(one.members, other.members, strict=True))
    return all(a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) for a, b in pairs)


@pytest.mark.parametrize("equalize", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("task", "network"), [(blobs(), turned(net)), (pictures(), turned(Residual))], ids=["mlp", "residual"]
)
def test_without_a_step_every_draw_is_that_of_the_posterior_given(
    task: qb.Task, network: Callable[[], nn.Module], method: str, equalize: bool
) -> None:
    """Folding, equalising and giving back change no answer: same seed, same masks, same ε."""
    posterior = fitted(method, task, network)
    before = copy.deepcopy(posterior.members)
    found = tuned(posterior, task, STILL, equalize=equalize)
    assert found.quantised is None
    assert len(found.members) == len(posterior.members)
    torch.testing.assert_close(answers(found, task), answers(posterior, task), rtol=0, atol=ROUNDING)
    # what was given is as it was.
    assert all(torch.equal(a[n], b[n]) for a, b in zip(before, posterior.members, strict=True) for n in a)


@pytest.mark.parametrize("noise", ["row", "constant"])
def test_a_regression_keeps_its_noise(noise: str) -> None:
    task = curve()
    posterior = fitted("bbb", task, lambda: qb.network("mlp", task, hidden=[8], noise=noise))
    found = tuned(posterior, task, STILL)
    x, _ = next(task.batches("test", 1000))
    one, other = (p.predict(x, 4, 7) for p in (found, posterior))
    assert isinstance(one, GaussianPredictive)
    assert isinstance(other, GaussianPredictive)
    torch.testing.assert_close(one.draws, other.draws, rtol=1e-5, atol=ROUNDING)
    torch.testing.assert_close(one.draw_variances, other.draw_variances, rtol=1e-4, atol=0)


def test_the_steps_are_those_of_plain_torch_on_the_folded_weights() -> None:
    """An oracle by hand: w = g W and b = g B + β − g m are what moves; the statistics of the norm stay."""
    task = blobs()
    posterior = fitted("pointwise", task, turned(net))
    rows = task.train_rows
    budget = tuning(epochs=6, batch_size=rows, learning_rate=0.05, schedule="constant", warmup=0.0)
    found = tuned(posterior, task, budget, distill=0, equalize=False)

    state = posterior.members[0]
    gain = state["1.weight"] / (state["1.running_var"] + 1e-5).sqrt()
    weights = [
        gain[:, None] * state["0.weight"],
        gain * (state["0.bias"] - state["1.running_mean"]) + state["1.bias"],
        state["3.weight"].clone(),
        state["3.bias"].clone(),
    ]
    for weight in weights:
        weight.requires_grad_(True)

    def network(x: Tensor) -> Tensor:
        hidden = torch.relu(F.linear(x, weights[0], weights[1]))
        return F.linear(hidden, weights[2], weights[3])

    x, y = next(task.batches("train", rows))
    x = task.signature.transform.apply(x)
    descent = torch.optim.SGD(weights, 0.05, momentum=0.9, nesterov=True)
    for _ in range(6):
        descent.zero_grad()
        F.cross_entropy(network(x), y).backward()
        descent.step()
    wanted = torch.log_softmax(network(task.signature.transform.apply(next(task.batches("test", 99))[0])), -1)
    torch.testing.assert_close(answers(found, task)[0], wanted.detach(), rtol=0, atol=1e-4)
    moved = (answers(found, task) - answers(posterior, task)).abs().max()
    assert moved > 0.1, "six such steps move the answers by far more than the tolerance"


@pytest.mark.parametrize("method", METHODS)
def test_a_control_that_did_not_move_yet_imitates_its_teacher_perfectly(method: str) -> None:
    """Student and teacher see the same mask and the same ε: the divergence of their draws is 0."""
    task = blobs()
    found = tuned(fitted(method, task, turned(net)), task, STILL, distill=1.0)
    losses = found.provenance["fine_tuned"]["losses"]
    assert losses
    assert all(abs(loss) < 1e-6 for (loss,) in losses)


def test_the_rate_is_that_of_the_precision_it_is_like() -> None:
    task = curve()
    posterior = fitted("pointwise", task, lambda: qb.network("mlp", task, hidden=[8]))
    asked = {bits: QuantizeJob(posterior, task, qb.Precision(bits, bits)) for bits in (8, 4)}
    assert asked[4].budget.learning_rate == 16 * asked[8].budget.learning_rate
    quick = tuning(epochs=1, batch_size=64, learning_rate=1e-3)
    found = tuned(posterior, task, quick, like=qb.Precision(4, 4))
    quantised = qb.quantize(posterior, task, qb.Precision(4, 4), quick, device="cpu", progress=False)
    one, other = found.provenance["fine_tuned"], quantised.provenance["quantised"]
    alike = (
        "precision",
        "budget",
        "seed",
        "keep",
        "distill",
        "optimizer",
        "equalize",
        "mixup",
        "match_temperature",
        "task",
    )
    assert {name: one[name] for name in alike} == {name: other[name] for name in alike}
    assert one["rounds"] is False
    assert "rounds" not in other


@pytest.mark.parametrize("method", METHODS)
def test_a_stack_of_controls_is_what_each_is_alone(method: str) -> None:
    task = curve()
    posteriors = [
        qb.fit(
            qb.network("mlp", task, hidden=[8, 8]),
            task,
            qb.method(method, **METHODS[method]),
            qb.Budget(epochs=3, batch_size=16, learning_rate=0.01),
            seed=seed,
            device="cpu",
            progress=False,
        )
        for seed in range(3)
    ]
    asked = [
        plain_job(one, task, qb.Precision(4, 4), SHORT, seed, distill=0.5, equalize=True, rounds=False)
        for seed, one in enumerate(posteriors)
    ]
    for stacked, one in zip(quantize_stacked(asked, device="cpu", progress=False), asked, strict=True):
        alone = qb.fine_tune(
            one.posterior,
            task,
            one.precision,
            one.fine_tuning,
            seed=one.seed,
            device="cpu",
            progress=False,
        )
        assert isinstance(stacked, qb.NetworkPosterior)
        assert stacked.quantised is None
        torch.testing.assert_close(answers(stacked, task), answers(alone, task), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_an_interrupted_control_goes_on_with_the_same_bits(
    keep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = blobs()
    posterior = fitted("sghmc", task, net)
    whole = tuned(posterior, task, seed=5, keep=keep)
    left, step = [9], Loop._step

    def counted(loop: Loop, x: Tensor, y: Tensor) -> None:
        step(loop, x, y)
        left[0] -= 1
        loop._stop = loop._stop or left[0] == 0

    monkeypatch.setattr(Loop, "_step", counted)
    with pytest.raises(Interrupted):
        tuned(posterior, task, seed=5, keep=keep, checkpoint=tmp_path)
    assert same(
        whole, tuned(posterior, task, seed=5, keep=keep, checkpoint=qb.Checkpoint(tmp_path, resume=True))
    )
    assert not same(whole, tuned(posterior, task, seed=6, keep=keep))


def test_the_best_epoch_is_no_worse_on_validation_rows_than_the_last() -> None:
    task = blobs()
    posterior = fitted("mcd", task, net)
    wild = tuning(epochs=5, batch_size=16, learning_rate=0.5)
    last, best = (tuned(posterior, task, wild, keep=keep) for keep in ("last", "best"))
    assert not same(last, best)
    losses = [qb.evaluate(one, task, 4, split="validation").clean["nll"] for one in (best, last)]
    assert losses[0] < losses[1]


@pytest.mark.parametrize("method", METHODS)
def test_matched_scores_are_the_scores_times_the_sharpness(method: str) -> None:
    task = blobs()
    posterior = fitted(method, task, net)
    # labels that are all wrong make the answers unsure, and the factor large.
    unsure = tuning(epochs=2, batch_size=64, learning_rate=0.05)
    x, y = next(task.batches("train", 1000))
    shuffled = qb.Task.from_arrays(x, y.roll(1), x, y, kind="classification", name="shuffled")
    plain, matched = (
        tuned(posterior, shuffled, unsure, distill=0, match_temperature=match) for match in (False, True)
    )
    factor = matched.provenance["fine_tuned"]["sharpness"]
    assert factor > 1.05
    assert plain.provenance["fine_tuned"]["sharpness"] == 1.0
    wanted = torch.log_softmax(factor * answers(plain, task), -1)
    torch.testing.assert_close(answers(matched, task), wanted, rtol=0, atol=1e-4)


def test_it_is_a_float_posterior_that_can_be_saved_quantised_and_tuned_again(tmp_path: Path) -> None:
    task = blobs()
    network = qb.network("mlp", task, hidden=[8])
    posterior = qb.fit(
        network, task, qb.method("bbb"), qb.Budget(epochs=2), seed=0, device="cpu", progress=False
    )
    found = tuned(posterior, task)
    read = qb.load_posterior(qb.save_posterior(found, tmp_path / "control"))
    assert same(found, read)
    assert read.provenance == found.provenance
    assert read.quantised is None
    assert torch.equal(answers(read, task), answers(found, task))
    quantised = qb.quantize(read, task, qb.Precision(8, 8), qb.FineTuning(epochs=0), device="cpu")
    assert quantised.quantised is not None
    assert tuned(read, task).quantised is None
    with pytest.raises(BadInput, match="float posterior is needed"):
        tuned(quantised, task)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gain * torch.relu(self.first(x)))


class TwoRoles(nn.Module):
    """One norm behind two layers: folded, each of them has it for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.second(torch.relu(self.norm(self.first(x)))))))


def bare() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.ReLU(), nn.Linear(8, 3))


def rectified() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softplus())


REFUSED = {
    "no epoch": (net, {"budget": qb.FineTuning(epochs=0)}, "fine-tuning in float needs an epoch"),
    "single grid": (net, {"like": qb.Precision.preset("paper")}, "gaussian='single'"),
    "own numbers": (Scaled, {}, "numbers of the network's own outside of its layers"),
    "one norm, two places": (TwoRoles, {}, "serves two places"),
    "norm without weights": (bare, {}, "affine=False"),
    "scores of no layer": (rectified, {"match_temperature": True}, "give match_temperature=False"),
    "precision": (net, {"like": 4}, "a label or a table"),
}


@pytest.mark.parametrize(("network", "more", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_a_control_is_refused_before_any_step(
    network: Callable[[], nn.Module], more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = blobs()
    posterior = fitted("pointwise", task, network)

    def never(*_: Any) -> None:
        raise AssertionError("a step was taken")

    monkeypatch.setattr(Loop, "_step", never)
    with pytest.raises(BadInput) as refused:
        tuned(posterior, task, **more)
    assert said in str(refused.value)
