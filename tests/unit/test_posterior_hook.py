"""A method may make its posterior of trained states: here a Gaussian of their mean and their spread.

(That is SWAG with a diagonal covariance: Maddox et al., NeurIPS 2019.) It lives in this file alone, and goes
through fit, a stack, save, load, quantize and lower.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from qbayes.methods import Descent
from qbayes.methods.base import State
from qbayes.methods.placement import survey
from qbayes.posterior.gaussian import WEIGHTED_TYPES
from qbayes.posterior.sites import Attachment, Site, gaussian_layers, place_sites
from qbayes.training.stacked.fit import StackJob, fit_stacked

BUDGET = qb.Budget(epochs=8, batch_size=128, learning_rate=1e-2, schedule="constant")
LEAST = 1e-4


@dataclass(frozen=True, kw_only=True)
class States(Descent):
    """The states of the last half of the epochs, as they are."""

    name: ClassVar[str] = "states"

    def plan(self, network: nn.Module, example: Tensor | None) -> Attachment:
        return Attachment((), survey(network, example).left_alone)

    def collect(self, epoch: int, epochs: int) -> bool:
        return 2 * epoch > epochs


@dataclass(frozen=True, kw_only=True)
class Spread(States):
    """One Gaussian a weight: the mean of the states, and their deviation."""

    name: ClassVar[str] = "spread"

    def count_members(self, epochs: int) -> int:
        return 1

    def to_posterior(
        self, module: nn.Module, states: list[State], task: qb.Task
    ) -> tuple[nn.Module, list[State]]:
        layers = [name for name, layer in module.named_modules() if isinstance(layer, WEIGHTED_TYPES)]
        sites = [Site(number, "gaussian", name, "replace") for number, name in enumerate(layers)]
        made: State = {}
        for name in states[0]:
            mean, deviation = of(states, name)
            owner, _, leaf = name.rpartition(".")
            if owner not in layers:
                made[name] = mean
                continue
            made[f"{name}_mean"] = mean
            if leaf == "weight":
                made[f"{name}_rho"] = deviation.clamp_min(LEAST).expm1().log()
        return place_sites(module, sites), [made]


def of(states: list[State], name: str) -> tuple[Tensor, Tensor]:
    values = torch.stack([state[name].float() for state in states])
    return values.mean(0), values.std(0)


def trained(method: qb.Method, seed: int = 0, chains: int = 1) -> qb.NetworkPosterior:
    network = {"name": "mlp", "hidden": [16]}
    how = {"seed": seed, "chains": chains, "device": "cpu", "progress": False}
    return qb.fit(network, qb.load_task("digits"), method, BUDGET, **how)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def posterior() -> qb.NetworkPosterior:
    return trained(Spread())


def test_the_posterior_is_the_mean_of_the_states_with_their_spread(posterior: qb.NetworkPosterior) -> None:
    states = trained(States()).members
    assert len(states) == 4
    assert len(posterior.members) == 1
    assert posterior.is_stochastic
    found = posterior.members[0]
    for name in (name for name in states[0] if name.endswith("weight")):
        mean, deviation = of(states, name)
        torch.testing.assert_close(found[f"{name}_mean"], mean)
        torch.testing.assert_close(F.softplus(found[f"{name}_rho"]), deviation.clamp_min(LEAST))


def test_every_chain_has_its_own_gaussian() -> None:
    both = trained(Spread(), chains=2)
    assert len(both.members) == 2
    first, second = (next(iter(gaussian_layers(one))).weight_mean for one in both.networks)
    assert not torch.equal(first, second)


def test_a_stack_gives_what_each_gives_alone(posterior: qb.NetworkPosterior) -> None:
    task = qb.load_task("digits")
    jobs = [
        StackJob(lambda: qb.network("mlp", task, hidden=[16]), task, Spread(), BUDGET, seed)
        for seed in range(2)
    ]
    found = fit_stacked(jobs, device="cpu", progress=False)[0]
    assert isinstance(found, qb.NetworkPosterior)
    for name, value in posterior.members[0].items():
        torch.testing.assert_close(found.members[0][name], value, rtol=1e-2, atol=1e-2)


def test_it_is_saved_quantised_and_run_on_integers(posterior: qb.NetworkPosterior, tmp_path: Path) -> None:
    task = qb.load_task("digits")
    x, _ = next(task.batches("test", 64))
    read = qb.load_posterior(qb.save_posterior(posterior, tmp_path / "spread"))
    assert torch.equal(read.predict(x, 4).draws, posterior.predict(x, 4).draws)  # type: ignore[attr-defined]
    quantised = qb.quantize(read, task, "W8A8", qb.FineTuning(epochs=0), device="cpu", progress=False)
    deployed = qb.load(qb.lower(quantised), "reference")
    scores = [qb.evaluate(one, task, 10, shifts=False).flat() for one in (posterior, deployed)]
    assert scores[0]["mutual_information"] > 1e-4
    assert scores[1]["error"] == pytest.approx(scores[0]["error"], abs=0.02)
    assert scores[1]["mutual_information"] == pytest.approx(scores[0]["mutual_information"], rel=0.3)


def test_a_method_without_presets_has_the_defaults_of_its_fields() -> None:
    task = qb.load_task("digits")
    assert Spread.preset("default", task.name, task.kind).budget == {}
    with pytest.raises(qb.BadInput, match="preset of spread"):
        Spread.preset("paper", task.name, task.kind)
