"""SGHMC against the closed-form posterior of linear regression, and its parts against their definitions."""

import math

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.methods.sghmc import SGHMC, SGHMCMethod

PRECISION = 0.25


def regression() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    mixing = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.3], [0.0, 0.0, 0.9]])
    x = torch.randn(100, 3, generator=generator) @ mixing
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + torch.randn(100, generator=generator)


def sample_chains(chains: int, steps: int, batch: int | None = None, temperature: float = 1.0) -> Tensor:
    """States of ``chains`` stacked chains, kept every 100 steps after burn-in: ``(kept, chains, 3)``."""
    torch.manual_seed(1)
    x, y = regression()
    # from the mode, as after training a point network: far from it V̂ would average the way there.
    theta = nn.Parameter(analytic()[0].repeat(chains, 1))
    sampler = SGHMC(
        [theta],
        lr=2e-2,
        rows=len(x),
        burn_in=500,
        friction=0.1,
        resample_momentum=0,
        resample_prior=0,
        prior_precision=PRECISION,
        temperature=temperature,
        stacked=True,
    )
    kept: list[Tensor] = []
    for step in range(steps):
        chosen = slice(None) if batch is None else torch.randperm(len(x))[:batch]
        sampler.zero_grad()
        # ½ (y − xθ)²: unit noise; the mean over the batch, one loss a chain.
        losses = 0.5 * (y[chosen] - theta @ x[chosen].T).square().mean(-1)
        losses.sum().backward()
        sampler.step()
        if step >= 1000 and step % 100 == 0:
            kept.append(theta.detach().clone())
    return torch.stack(kept)


def analytic() -> tuple[Tensor, Tensor]:
    x, y = regression()
    covariance = torch.linalg.inv(x.T @ x + PRECISION * torch.eye(3))
    return covariance @ x.T @ y, covariance


def test_chain_has_the_analytic_mean_and_full_covariance() -> None:
    mean, covariance = analytic()
    samples = sample_chains(chains=300, steps=4000).flatten(0, 1)
    scale = covariance.diagonal().sqrt()
    assert ((samples.mean(0) - mean) / scale).abs().max() < 0.05
    error = (torch.cov(samples.T) - covariance) / torch.outer(scale, scale)
    assert error.abs().max() < 0.06
    assert torch.corrcoef(samples.T)[0, 1] < -0.7  # what a factorised posterior could not show


def test_temperature_scales_the_covariance() -> None:
    _, covariance = analytic()
    cold = sample_chains(chains=300, steps=3000, temperature=0.25).flatten(0, 1)
    ratio = torch.cov(cold.T).diagonal() / covariance.diagonal()
    assert ((ratio / 0.25) - 1).abs().max() < 0.15


def test_the_method_samples_through_fit() -> None:
    """One chain of the whole pipeline: mean within half a deviation, variances within a factor of 1.5."""

    class KnownNoise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Linear(3, 1, bias=False)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            mean = self.weights(x)
            return {"mean": mean, "log_variance": torch.zeros_like(mean)}

    x, y = regression()
    task = qb.Task.from_arrays(x, y[:, None], kind="regression", standardize=False)
    method = qb.method(
        "sghmc", members=500, every=10, resample_prior=0, prior_precision=PRECISION, friction=0.1
    )
    budget = qb.Budget(epochs=6000, batch_size=100, learning_rate=2e-2, schedule="constant")
    posterior = qb.fit(KnownNoise(), task, method, budget, device="cpu")
    assert len(posterior.members) == 500
    samples = torch.stack([member["weights.weight"][0] for member in posterior.members])
    mean, covariance = analytic()
    assert ((samples.mean(0) - mean) / covariance.diagonal().sqrt()).abs().max() < 0.5
    ratio = torch.cov(samples.T).diagonal() / covariance.diagonal()
    assert ((ratio > 1 / 1.5) & (ratio < 1.5)).all()


def test_stacked_networks_move_as_each_alone() -> None:
    """Without noise and with a fixed prior, stacked networks take exactly the steps of single ones."""
    start = torch.randn(3, 4, 2)
    targets = torch.randn(3, 4, 2)

    def run(value: Tensor, goal: Tensor, stacked: bool) -> Tensor:
        parameter = nn.Parameter(value.clone())
        options = {"rows": 10, "burn_in": 5, "resample_momentum": 0, "resample_prior": 0, "temperature": 0.0}
        sampler = SGHMC([parameter], lr=1e-2, stacked=stacked, **options)
        for _ in range(12):
            sampler.zero_grad()
            (parameter - goal).square().sum().backward()
            sampler.step()
        return parameter.detach()

    together = run(start, targets, stacked=True)
    alone = torch.stack([run(start[i], targets[i], stacked=False) for i in range(3)])
    assert torch.equal(together, alone)


def test_each_stacked_network_has_its_own_prior_precision() -> None:
    parameter = nn.Parameter(torch.cat([torch.full((1, 4000), 0.1), torch.full((1, 4000), 2.0)]))
    sampler = SGHMC([parameter], lr=1e-6, rows=1, resample_prior=1, resample_momentum=0, stacked=True)
    parameter.grad = torch.zeros_like(parameter)
    sampler.step()
    precision = sampler.state[parameter]["precision"].flatten()
    # E λ = (10 + n/2) / (10 + ‖θ‖²/2)
    expected = torch.tensor([2010 / (10 + 20), 2010 / (10 + 8000)])
    assert ((precision / expected - 1).abs() < 5 / math.sqrt(2010)).all()


def test_second_moment_is_frozen_after_burn_in() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    sampler = SGHMC([parameter], rows=1, burn_in=4, resample_prior=0)
    seen = []
    for step in range(8):
        parameter.grad = torch.full((3,), float(step + 1))
        sampler.step()
        seen.append(sampler.state[parameter]["second_moment"].clone())
    assert not torch.equal(seen[2], seen[3])
    assert all(torch.equal(seen[3], later) for later in seen[4:])


def test_noise_variance_is_clamped_where_gradients_are_huge() -> None:
    """For ``V̂^(−1/2) < ε²/(2C)`` the variance would be negative: nothing may become NaN."""
    parameter = nn.Parameter(torch.zeros(5))
    sampler = SGHMC([parameter], lr=0.5, rows=1, burn_in=100, resample_momentum=0, resample_prior=0)
    for _ in range(20):
        parameter.grad = torch.full((5,), 1e6)
        sampler.step()
    assert torch.isfinite(parameter).all()


def test_momentum_is_resampled_from_its_stationary_distribution() -> None:
    parameter = nn.Parameter(torch.zeros(40000))
    sampler = SGHMC(
        [parameter], lr=0.1, rows=1, burn_in=0, friction=0.05, resample_momentum=1, resample_prior=0
    )
    parameter.grad = torch.zeros_like(parameter)
    sampler.step()
    # fresh v ~ N(0, ε²), then (1 − C) v + N(0, 2 C ε² − ε⁴) with V̂ = 1
    expected = 0.95**2 * 0.01 + 2 * 0.05 * 0.01 - 1e-4
    variance = float(sampler.state[parameter]["velocity"].var())
    assert abs(variance / expected - 1) < 5 * math.sqrt(2 / 40000)


def test_step_takes_a_closure_as_every_optimiser_does() -> None:
    parameter = nn.Parameter(torch.ones(2))
    sampler = SGHMC([parameter], rows=1)

    def closure() -> Tensor:
        sampler.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    loss = sampler.step(closure)
    assert loss is not None
    assert float(loss.detach()) == 2.0
    assert not torch.equal(parameter.detach(), torch.ones(2))


@pytest.mark.parametrize(("members", "every", "epochs"), [(20, 2, 100), (1, 1, 1), (3, 5, 11), (7, 3, 40)])
def test_members_end_with_the_last_epoch(members: int, every: int, epochs: int) -> None:
    method = SGHMCMethod(members=members, every=every)
    kept = [epoch for epoch in range(1, epochs + 1) if method.collect(epoch, epochs)]
    assert kept == [epochs - every * k for k in reversed(range(members))]


def test_too_few_epochs_are_refused_with_the_number_needed() -> None:
    with pytest.raises(qb.BadInput, match="at least 59 epochs"):
        SGHMCMethod(burn_in=20).make_optimizer(nn.Linear(2, 2), 1e-2, rows=10, steps_per_epoch=1, epochs=50)


@pytest.mark.parametrize("option", ["resample_momentum", "resample_prior"])
def test_steps_between_resamplings_are_not_negative(option: str) -> None:
    with pytest.raises(qb.BadInput, match=option):
        qb.method("sghmc", **{option: -1})
    assert qb.method("sghmc", **{option: 0}).to_json()[option] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.0},
        {"friction": 1.0},
        {"rows": 0},
        {"temperature": -1.0},
        {"prior_precision": -1.0},
        {"resample_momentum": -1},
        {"resample_prior": -1},
    ],
)
def test_bad_sampler_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(qb.BadInput, match="SGHMC needs"):
        SGHMC([nn.Parameter(torch.zeros(1))], **{"rows": 1, **options})
