"""Class scores as sharp as the float network's: the factor is the right one, and costs no code."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from fine_tuned import plain_job, tuning
from qbayes.errors import BadInput, RunFailed
from qbayes.integer.structure.noise_variance import variance_ratio
from qbayes.posterior.predictive import CategoricalPredictive
from qbayes.quant.finetune.job import network_of
from qbayes.quant.finetune.quantize import quantize_members
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.quant.finetune.temperature import least_divergence, sharpness, some_rows

METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.3},
    "bbb": {"prior_sigma": 0.3},
    "sghmc": {"members": 3, "every": 1},
}


def clouds(**more: Any) -> qb.Task:
    """Three classes that overlap, so that a good network is unsure."""
    generator = torch.Generator().manual_seed(5)
    y = torch.arange(600) % 3
    x = torch.randn(600, 4, generator=generator) + 1.5 * F.one_hot(y, 4)
    share = {"validation": 0.3, **more}
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="clouds", **share)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def fitted(method: str, task: qb.Task) -> qb.NetworkPosterior:
    budget = qb.Budget(epochs=6, batch_size=32, learning_rate=0.01)
    how = qb.method(method, **METHODS[method])
    return qb.fit(net, task, how, budget, device="cpu", progress=False)


def calibrated(posterior: Any, task: qb.Task, bits: int = 2, **more: Any) -> qb.NetworkPosterior:
    """At two bits without training: what it says is far from the float network's."""
    steps, precision = tuning(epochs=0, batch_size=64, **more), qb.Precision(bits, bits)
    return qb.quantize(posterior, task, precision, steps, device="cpu", progress=False)


def log_mean(scores: Tensor) -> Tensor:
    return torch.logsumexp(F.log_softmax(scores, -1), 0) - math.log(len(scores))


def held_out(task: qb.Task) -> Tensor:
    return next(task.batches("validation", 10_000))[0]


def divergence(one: Any, other: Any, x: Tensor) -> float:
    """``KL(one ‖ other)`` of the predictions."""
    wanted, ours = (p.predict(x, 20, 0).log_mean.double() for p in (one, other))
    return float((wanted.exp() * (wanted - ours)).sum(-1).mean())


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 1.9), st.integers(1, 6), st.floats(0.3, 6), st.integers(0, 99))
def test_a_known_factor_is_found(octave: float, draws: int, spread: float, seed: int) -> None:
    """Scores that are 1/c of the wanted ones, whatever constant they are off by, have c as their factor."""
    generator = torch.Generator().manual_seed(seed)
    wanted = spread * torch.randn(draws, 200, 5, generator=generator, dtype=torch.float64)
    off = torch.randn(draws, 200, 1, generator=generator, dtype=torch.float64)
    found = least_divergence(log_mean(wanted), wanted / 2.0**octave + off)
    assert found == pytest.approx(2.0**octave, rel=1e-3)


def test_nothing_is_sharper_than_the_limit() -> None:
    """A network that is never wrong cannot be too sure: the factor ends at 4, and does not run away."""
    scores = torch.tensor([[[3.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).log()
    assert least_divergence(certain, scores) == pytest.approx(4.0, rel=1e-3)
    # one that is always wrong should hedge, but that is not for a factor to say.
    assert least_divergence(certain.flip(0), scores) == 1.0
    assert least_divergence(log_mean(scores / 2), scores) == 1.0


@pytest.mark.parametrize("gap", [0.0, 40.0, 400.0])
def test_where_any_factor_would_do_there_is_none(gap: float) -> None:
    """Scores that are all equal, or all certain beyond what float64 can tell, are left as they are."""
    scores = torch.tensor([gap, 0.0, 0.0], dtype=torch.float64).expand(2, 50, 3)
    assert least_divergence(log_mean(scores), scores) == 1.0


class Said:
    """A posterior that gives these scores, whatever it is asked."""

    is_stochastic = False
    networks = (None,)

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores

    def predict(self, x: Tensor, draws: int, seed: int) -> CategoricalPredictive:
        return CategoricalPredictive.from_logits(self.scores)


def test_rows_that_are_no_numbers_are_left_out_and_all_of_them_refused() -> None:
    wanted: Tensor = torch.randn(1, 180, 3, generator=torch.Generator().manual_seed(0))
    spoilt, half = wanted.clone(), wanted / 2
    spoilt[:, :90] = math.nan
    half[:, 100:120, 1] = math.nan
    both: list[Any] = [Said(half), Said(spoilt)]
    assert sharpness(both[0], both[1], clouds()) == pytest.approx(2, rel=1e-3)
    nothing: Any = Said(torch.full_like(wanted, math.nan))
    with pytest.raises(RunFailed, match="must be numbers"):
        sharpness(both[0], nothing, clouds())


def test_a_class_that_underflows_does_no_harm() -> None:
    scores = torch.tensor([[[0.0, -math.inf], [2.0, 0.0]]], dtype=torch.float64)
    found = least_divergence(log_mean(torch.tensor([[[0.0, -math.inf], [4.0, 0.0]]]).double()), scores)
    assert found == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_matched_posterior_is_nearer_to_the_float_one_and_has_the_same_codes(method: str) -> None:
    task = clouds()
    posterior = fitted(method, task)
    plain, matched = (calibrated(posterior, task, match_temperature=match) for match in (False, True))
    factor = matched.provenance["quantised"]["sharpness"]
    assert factor > 1.02
    assert plain.provenance["quantised"]["sharpness"] == 1.0
    x = held_out(task)
    assert divergence(posterior, matched, x) < divergence(posterior, plain, x)
    # all that differs is what a code of the answer is worth.
    one, two = qb.lower(plain), qb.lower(matched)
    head = one.outputs[""]
    assert one.ops == two.ops
    for mine, theirs in zip(one.members, two.members, strict=True):
        assert mine.zeros == theirs.zeros
        scales = {**mine.scales, head: mine.scales[head] * factor}
        assert theirs.scales == pytest.approx(scales, rel=1e-6)
        for op, constants in mine.constants.items():
            assert all(torch.equal(value, theirs.constants[op][name]) for name, value in constants.items())


@pytest.mark.parametrize("method", METHODS)
def test_the_program_answers_like_the_network(method: str, tmp_path: Path) -> None:
    task = clouds()
    matched = calibrated(fitted(method, task), task, match_temperature=True)
    assert matched.provenance["quantised"]["sharpness"] > 1.02
    x = held_out(task)
    program = qb.lower(matched)
    program.save(tmp_path / "p.qbayes")
    wanted = matched.predict(x, 7, seed=3).draws
    for deployed in (program, qb.Program.open(tmp_path / "p.qbayes")):
        assert torch.equal(qb.load(deployed, backend="reference").predict(x, 7, seed=3).draws, wanted)


def test_the_answer_is_the_softmax_of_the_factor_times_the_scores() -> None:
    task = clouds()
    posterior = fitted("mcd", task)
    plain, matched = (calibrated(posterior, task, match_temperature=match) for match in (False, True))
    x, factor = held_out(task), matched.provenance["quantised"]["sharpness"]
    scores = plain.predict(x, 5, seed=1)
    assert isinstance(scores, CategoricalPredictive)
    wanted = F.softmax(factor * scores.log_draws.double(), -1)
    torch.testing.assert_close(matched.predict(x, 5, seed=1).draws.double(), wanted, rtol=1e-4, atol=1e-6)


def test_the_noise_that_survives_is_the_same() -> None:
    """Weights that are worth more have deviations that are: their ratio to the wanted ones stays."""
    task = clouds()
    posterior = fitted("bbb", task)
    ratios = []
    for match in (False, True):
        made = calibrated(posterior, task, match_temperature=match)
        assert (made.provenance["quantised"]["sharpness"] > 1.02) == match
        program = qb.lower(made)
        last: Any = program.ops[-1]
        ratios.append(variance_ratio(program, program.members[0], last))
    assert ratios[0] is not None
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-5)


def test_it_is_saved_and_older_files_open(tmp_path: Path) -> None:
    task = clouds()
    posterior = fitted("mcd", task)
    matched = calibrated(posterior, task, match_temperature=True)
    qb.save_posterior(matched, tmp_path / "new")
    opened = qb.load_posterior(tmp_path / "new", network=net())
    x = held_out(task)
    assert torch.equal(opened.predict(x, 3).draws, matched.predict(x, 3).draws)

    plain = calibrated(posterior, task, match_temperature=False)
    for network in plain.networks:
        # as they were before there was such a buffer.
        del network_of(network).sharpness
    old = [dict(member) for member in plain.members]
    assert not any("sharpness" in name for member in old for name in member)
    qb.save_posterior(plain, tmp_path / "old")
    again = qb.load_posterior(tmp_path / "old", network=net())
    expected = calibrated(posterior, task, match_temperature=False)
    assert torch.equal(again.predict(x, 3).draws, expected.predict(x, 3).draws)


def test_rows_are_drawn_from_all_of_them() -> None:
    """From the held-out ones, each at most once, in order and from every part of them."""
    x = torch.arange(1000.0)[:, None].expand(-1, 4)
    y = (x[:, 0] >= 500).long()
    task = qb.Task.from_arrays(x, y, x_validation=-1 - x, y_validation=y, kind="classification")
    drawn = -1 - some_rows(task, 64)[:, 0]
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert set(drawn.tolist()) <= set(range(1000))
    assert 16 < int((drawn < 500).sum()) < 48
    assert torch.equal(some_rows(task, 64), some_rows(task, 64))
    assert len(some_rows(task, 5000)) == 1000
    bare = qb.Task.from_arrays(x, y, kind="classification")
    assert bool((some_rows(bare, 64) >= 0).all())


def test_training_rows_serve_where_there_are_no_others() -> None:
    task = clouds(validation=0.0)
    matched = calibrated(fitted("mcd", task), task, match_temperature=True)
    assert matched.provenance["quantised"]["sharpness"] > 1.02


def test_training_and_a_stack_match_too() -> None:
    task = clouds()
    posterior = fitted("mcd", task)
    budget = tuning(epochs=2, batch_size=64, learning_rate=5e-3, clip=1.0)
    asked = [
        plain_job(posterior, task, qb.Precision(2, 2), budget, seed, match_temperature=True)
        for seed in (0, 1)
    ]
    stacked = quantize_stacked(asked, device="cpu")
    for one, found in zip(asked, stacked, strict=True):
        assert isinstance(found, qb.NetworkPosterior)
        alone = quantize_members(one, device="cpu", progress=False)
        factors = [made.provenance["quantised"]["sharpness"] for made in (found, alone)]
        assert factors[0] == pytest.approx(factors[1], rel=1e-2)
        assert factors[0] > 1.01


def test_what_cannot_be_matched_is_refused() -> None:
    task = clouds()
    posterior = fitted("pointwise", task)
    with pytest.raises(BadInput, match="true or false"):
        calibrated(posterior, task, match_temperature=1)
    x = torch.linspace(-1, 1, 40)[:, None]
    line = qb.Task.from_arrays(x, x, x, x, kind="regression", name="line", validation=0.2)
    made = qb.fit(
        nn.Linear(1, 1), line, qb.method("pointwise"), qb.Budget(epochs=1), device="cpu", progress=False
    )
    with pytest.raises(BadInput, match="only class scores"):
        qb.quantize(
            made, line, qb.Precision(4, 4), qb.FineTuning(epochs=0, match_temperature=True), device="cpu"
        )
