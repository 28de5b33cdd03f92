"""Stacked training gives what ``fit`` gives for each network, and the trouble of one stays its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.errors import BadInput, RunFailed
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Mask
from qbayes.training.stacked.fit import StackJob, fit_stacked, stack_key
from qbayes.training.stacked.loop import StackLoop
from qbayes.training.stacked.noise import TrainingNoise
from qbayes.training.stacked.rows import StackedRows

METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {},
    "sghmc": {"members": 2, "every": 1, "resample_momentum": 4, "resample_prior": 3},
}
# largest difference of a tensor over its largest entry: float32 sums are taken in another order, and Adam
# divides by the root of a second moment that may be as small as their rounding.
TOLERANCE = {"pointwise": 2e-5, "mcd": 1e-4, "bbb": 1e-4, "sghmc": 1e-5}
TOLERANCE_LENET = {"pointwise": 1e-4, "mcd": 1e-4, "bbb": 1e-4, "sghmc": 1e-5}


def folds(count: int = 3) -> list[qb.Task]:
    return [qb.load_task("diabetes", split=split) for split in range(count)]


def small_folds(count: int = 3) -> list[qb.Task]:
    generator = torch.Generator().manual_seed(5)
    made: list[qb.Task] = []
    for _ in range(count):
        x = torch.randn(30, 4, generator=generator)
        made.append(
            qb.Task.from_arrays(x, x.sum(1) + torch.randn(30, generator=generator), kind="regression")
        )
    return made


def jobs_for(
    tasks: list[qb.Task], network: Callable[[qb.Task], nn.Module], method: str, budget: qb.Budget
) -> list[StackJob]:
    how = qb.method(method, **METHODS[method])
    return [
        StackJob(lambda task=task: network(task), task, how, budget, seed) for seed, task in enumerate(tasks)
    ]


def small_jobs(method: str, tasks: list[qb.Task] | None = None) -> list[StackJob]:
    """Three steps an epoch, the last of 6 rows, for 4 epochs."""
    budget = qb.Budget(epochs=4, batch_size=12, learning_rate=1e-2, clip=1.0)
    return jobs_for(tasks or small_folds(), lambda task: qb.network("mlp", task, hidden=(8,)), method, budget)


def alone(job: StackJob) -> NetworkPosterior:
    return qb.fit(job.network, job.task, job.method, job.budget, seed=job.seed, device="cpu")


def together(jobs: list[StackJob], **options: Any) -> list[NetworkPosterior]:
    posteriors: list[NetworkPosterior] = []
    for found in fit_stacked(jobs, device="cpu", **options):
        assert isinstance(found, NetworkPosterior), found
        posteriors.append(found)
    return posteriors


def assert_close(one: NetworkPosterior, other: NetworkPosterior, tolerance: float) -> None:
    assert len(one.members) == len(other.members) > 0
    for mine, theirs in zip(one.members, other.members, strict=True):
        assert list(mine) == list(theirs)
        for name, expected in theirs.items():
            difference = (mine[name] - expected).abs().max() / expected.abs().max()
            assert float(difference) <= tolerance, name


def assert_same_bits(one: NetworkPosterior, other: NetworkPosterior) -> None:
    assert one.provenance["losses"] == other.provenance["losses"]
    assert len(one.members) == len(other.members) > 0
    for mine, theirs in zip(one.members, other.members, strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("method", METHODS)
def test_folds_of_an_mlp_are_as_fitted_one_by_one_after_20_steps(method: str) -> None:
    budget = qb.Budget(epochs=4, batch_size=80, learning_rate=1e-3)
    jobs = jobs_for(folds(), lambda task: qb.network("mlp", task), method, budget)
    for posterior, job in zip(together(jobs), jobs, strict=True):
        assert_close(posterior, alone(job), TOLERANCE[method])


@pytest.mark.parametrize("method", METHODS)
def test_seeds_of_a_lenet_are_as_fitted_one_by_one_after_20_steps(method: str) -> None:
    budget = qb.Budget(epochs=2, batch_size=128, learning_rate=1e-3)
    jobs = jobs_for([qb.load_task("digits")] * 2, lambda task: qb.network("lenet", task), method, budget)
    for posterior, job in zip(together(jobs), jobs, strict=True):
        assert_close(posterior, alone(job), TOLERANCE_LENET[method])


def test_provenance_is_that_of_fit_and_says_how_many_were_stacked() -> None:
    jobs = small_jobs("mcd")
    for posterior, job in zip(together(jobs), jobs, strict=True):
        single, stacked = alone(job).provenance, dict(posterior.provenance)
        assert stacked.pop("stacked") == 3
        assert stacked.keys() == single.keys()
        assert all(stacked[key] == single[key] for key in single.keys() - {"losses", "seconds"})
        assert stacked["losses"] == [pytest.approx(single["losses"][0], rel=1e-5)]
        assert posterior.architecture == alone(job).architecture


def test_noise_has_the_bits_that_each_network_draws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for method, kind, name in (("mcd", Mask, "training_mask"), ("bbb", GaussianLayer, "training_noise")):
        jobs = small_jobs(method)
        stacked: list[Tensor] = []
        draw = TrainingNoise.draw
        with monkeypatch.context() as patch:

            def noted(noise: TrainingNoise, x: Tensor, draw: Any = draw) -> list[Tensor]:
                drawn = draw(noise, x)
                stacked.extend(tensor.clone() for tensor in drawn)  # noqa: B023
                return drawn

            patch.setattr(TrainingNoise, "draw", noted)
            together(jobs)
        # what the probe of two rows drew comes first.
        stacked = [tensor for tensor in stacked if tensor.shape[:2] != (2, 2)]
        for index, job in enumerate(jobs):
            single: list[Tensor] = []
            own = getattr(kind, name)
            with monkeypatch.context() as patch:

                def kept(layer: Any, *given: Any, own: Any = own) -> Tensor:
                    single.append(own(layer, *given))  # noqa: B023
                    return single[-1]  # noqa: B023

                patch.setattr(kind, name, kept)
                alone(job)
            assert len(single) == len(stacked) > 0
            assert all(torch.equal(a, b[index]) for a, b in zip(single, stacked, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_poisoned_network_fails_alone_and_the_others_keep_their_bits(method: str) -> None:
    healthy = together(small_jobs(method))
    tasks = small_folds()
    next(tasks[1].batches("train", 30))[0][7, 2] = float("nan")
    jobs = small_jobs(method, tasks)
    found = fit_stacked(jobs, device="cpu")
    assert isinstance(found[1], RunFailed)
    with pytest.raises(RunFailed) as single:
        alone(jobs[1])
    assert str(found[1]) == str(single.value)
    for index in (0, 2):
        survivor = found[index]
        assert isinstance(survivor, NetworkPosterior)
        assert_same_bits(survivor, healthy[index])


def test_a_stack_of_failures_ends_early_and_leaves_no_checkpoint(tmp_path: Any) -> None:
    tasks = small_folds()
    for task in tasks:
        next(task.batches("train", 30))[0][0] = float("inf")
    found = fit_stacked(small_jobs("pointwise", tasks), device="cpu", checkpoint=tmp_path)
    assert all(isinstance(one, RunFailed) for one in found)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_network_whose_member_lies_in_a_spike_fails_alone(
    epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In epoch 3 or 4 the loss of the second network is 1e4 times what it is; the state of 4 is kept."""
    inner = StackLoop._loss_of

    def spiking(loop: StackLoop, x: Tensor, y: Tensor) -> Tensor:
        factors = torch.tensor([1.0, 1e4, 1.0]) if loop.state.epoch == epoch else torch.ones(3)
        return inner(loop, x, y) * factors

    monkeypatch.setattr(StackLoop, "_loss_of", spiking)
    found = fit_stacked(small_jobs("pointwise"), device="cpu")
    assert [isinstance(one, RunFailed) for one in found] == [False, epoch == 3, False]
    if epoch == 3:
        assert "in epoch 4 the loss is over 100 times" in str(found[1])


class WithStatistics(nn.Module):
    """Batch normalisation, a convolution of reflected edges, tied weights and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.second = nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect")
        self.square = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.square.weight
        self.logits = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        z = self.second(self.norm(self.first(x)).relu()).mean((2, 3))
        return self.logits(self.again(self.square(z).tanh()).tanh())


@pytest.mark.parametrize("method", METHODS)
def test_statistics_tied_weights_and_buffers_are_each_networks_own(method: str) -> None:
    generator = torch.Generator().manual_seed(3)
    tasks = []
    for _ in range(3):
        x = torch.randn(40, 1, 6, 6, generator=generator)
        tasks.append(qb.Task.from_arrays(x, torch.arange(40) % 3, kind="classification"))
    budget = qb.Budget(epochs=4, batch_size=16, learning_rate=1e-3)
    jobs = jobs_for(tasks, lambda task: WithStatistics(), method, budget)
    posteriors = together(jobs)
    for posterior, job in zip(posteriors, jobs, strict=True):
        assert_close(posterior, alone(job), 1e-4)
        state = posterior.members[-1]
        key = next(name for name in state if name.endswith("num_batches_tracked"))
        assert int(state[key]) == 12
    means = [p.members[-1]["norm.running_mean"] for p in posteriors]
    assert not torch.equal(means[0], means[1])


def test_equal_tasks_are_held_once() -> None:
    task, other = small_folds(2)
    again = small_folds(2)[0]
    device = torch.device("cpu")
    assert len(StackedRows([task] * 5 + [again], device).x) == 30
    assert len(StackedRows([task, other, task], device).x) == 60


def test_the_callers_generator_neither_matters_nor_moves() -> None:
    torch.manual_seed(1)
    one = together(small_jobs("sghmc"))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    stack_key(small_jobs("mcd")[0])
    two = together(small_jobs("sghmc"))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one, two, strict=True):
        assert_same_bits(a, b)


def test_jobs_of_different_keys_are_refused_and_none_are_nothing() -> None:
    assert fit_stacked([]) == []
    with pytest.raises(BadInput, match="job 1 differs from job 0"):
        fit_stacked([small_jobs("mcd")[0], small_jobs("bbb")[0]], device="cpu")
