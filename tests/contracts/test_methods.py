"""What every registered method must do; a new one is tested by standing in the folder."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qbayes import Budget, Task, fit, save_posterior
from qbayes.errors import BadInput
from qbayes.methods import METHODS, Method, make_method
from qbayes.posterior.sites import point_state, sites_of, stochastic_layers
from qbayes.posterior.storage.save import load_posterior

NAMES = list(METHODS)
PRESETS = [(name, key) for name in NAMES for key in METHODS[name].all_presets()]


def short(name: str) -> Method:
    """The method, fit for a few epochs."""
    fields = {field.name for field in dataclasses.fields(METHODS[name])}
    return make_method(name, **({"members": 3, "every": 1} if "members" in fields else {}))


class Convolutional(nn.Module):
    """All that a method must take: grouped and depthwise convolutions, norms, a skip, its own Dropout."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode="reflect")
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.series = nn.Conv1d(4, 4, 3, dilation=2, padding="same")
        self.drop = nn.Dropout(0.05)
        self.head = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.norm(self.stem(x)))
        z = z + self.grouped(torch.relu(self.depthwise(z)))
        z = torch.relu(self.series(z.flatten(2))).mean(2)
        return self.head(self.drop(z))


def images(kind: str) -> Task:
    torch.manual_seed(2)
    y = torch.arange(160) % 2
    x = 0.5 * torch.randn(160, 1, 5, 5)
    x[y == 1, :, :, 2] += 1.5
    target = y if kind == "classification" else y.float() * 3 - 1
    return Task.from_arrays(x[:120], target[:120], x[120:], target[120:], kind=kind)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_attach_returns_a_new_module_and_leaves_the_original(name: str) -> None:
    network = Convolutional().train()
    before, text = copy.deepcopy(network.state_dict()), str(network)
    example = torch.randn(2, 1, 5, 5)
    for given in (example, None):
        module, attachment = short(name).attach(network, given)
        assert module is not network
        assert not {id(p) for p in module.parameters()} & {id(p) for p in network.parameters()}
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0)
        assert str(network) == text
        assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
        assert sites_of(module) == tuple(sorted(attachment.sites, key=lambda site: site.number))


def test_every_layer_with_weights_is_accounted_for(name: str) -> None:
    _, attachment = short(name).attach(Convolutional(), torch.randn(2, 1, 5, 5))
    named = {site.module for site in attachment.sites} | {module for module, _ in attachment.left_alone}
    assert {"stem", "norm", "depthwise", "grouped", "series"} <= named
    assert "head" in named or "drop" in named
    assert len(attachment.summary().splitlines()) == len(attachment.sites) + len(attachment.left_alone)


def test_site_numbers_are_distinct_and_stable(name: str) -> None:
    numbers = []
    for _ in range(2):
        _, attachment = short(name).attach(Convolutional(), torch.randn(2, 1, 5, 5))
        numbers.append(
            [(site.number, site.bias_number, site.module, site.place) for site in attachment.sites]
        )
    assert numbers[0] == numbers[1]
    used = [n for site in attachment.sites for n in (site.number, site.bias_number) if n is not None]
    assert sorted(used) == list(range(len(used)))


def test_without_noise_the_attached_network_is_the_plain_one(name: str) -> None:
    network = Convolutional().eval()
    module, _ = short(name).attach(network, torch.randn(2, 1, 5, 5))
    x = torch.randn(3, 1, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), network(x), rtol=1e-5, atol=1e-5)
    plain = point_state(module, module.state_dict())
    assert plain.keys() == network.state_dict().keys()


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_fit_beats_chance_predicts_and_is_kept(name: str, kind: str, tmp_path: Path) -> None:
    task = images(kind)
    outputs = 2 if kind == "classification" else 1
    torch.manual_seed(0)
    network = Convolutional(outputs)
    # a constant rate suits an optimiser as well as a sampler.
    budget = Budget(epochs=40, batch_size=30, learning_rate=2e-2, schedule="constant")
    posterior = fit(network, task, short(name), budget, seed=1)
    x, y = next(task.batches("test", 40))
    predictive = posterior.predict(x, draws=6, seed=3)
    for numbers in (predictive.draws, predictive.mean, predictive.variance, predictive.mutual_information):
        assert bool(torch.isfinite(numbers).all())
    if kind == "classification":
        assert float((predictive.mean.argmax(1) == y).float().mean()) > 0.8
    else:
        residual = float(((predictive.mean - y) ** 2).mean())
        assert residual < 0.6 * float(y.var())
    spread = float(predictive.draws.std(0).max())
    random = posterior.is_stochastic or len(posterior.members) > 1
    assert (spread > 0) == random == (name != "pointwise")
    again = load_posterior(save_posterior(posterior, tmp_path / "p"), Convolutional(outputs))
    assert torch.equal(again.predict(x, draws=6, seed=3).draws, predictive.draws)
    losses = posterior.provenance["losses"][0]
    assert losses[-1] < losses[0]


def test_two_chains_make_an_ensemble_of_any_method(name: str) -> None:
    budget = Budget(epochs=3, batch_size=60)
    one, two = (fit(Convolutional, images("classification"), short(name), budget, chains=n) for n in (1, 2))
    assert len(two.members) == 2 * len(one.members)


@pytest.mark.parametrize(("name", "key"), PRESETS)
def test_presets_build(name: str, key: str) -> None:
    preset = METHODS[name].all_presets()[key]
    budget = Budget.from_options(preset.budget)
    method = make_method(name, **preset.method)
    # the plan of members and burn-in must fit the epochs of its own preset.
    method.make_optimizer(
        Convolutional(), budget.learning_rate, rows=1000, steps_per_epoch=5, epochs=budget.epochs
    )
    assert any(method.collect(epoch, budget.epochs) for epoch in range(1, budget.epochs + 1))


def test_every_method_has_defaults_for_both_kinds_and_the_papers_values(name: str) -> None:
    kind = METHODS[name]
    assert {
        "default/classification",
        "default/regression",
        "paper/uci",
        "paper/mnist",
        "paper/cifar10",
    } <= set(kind.all_presets())
    for task, form in [("digits", "classification"), ("uci/yacht", "regression"), ("own", "regression")]:
        assert kind.preset("default", task, form).budget["epochs"] >= 1


def test_json_holds_every_option_and_makes_the_method_again(name: str) -> None:
    method = make_method(name)
    said = json.loads(json.dumps(method.to_json()))
    assert said.pop("name") == name
    assert set(said) == {field.name for field in dataclasses.fields(method)}
    again = make_method(name, **said)
    assert json.loads(json.dumps(again.to_json())) == {"name": name, **said}


def test_the_last_state_is_always_kept(name: str) -> None:
    assert all(short(name).collect(epochs, epochs) for epochs in (1, 7, 40))


def test_a_network_with_nothing_to_change_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        short(name).attach(nn.Sequential(nn.Flatten(), nn.ReLU()), torch.ones(2, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adm"},
        {"weight_decay": -1.0},
        {"weight_decay": float("nan")},
        {"weight_decay": "1"},
        {"momentum": 1.5},
        {"not_an_option": 1},
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        make_method(name, **options)


def test_options_are_frozen_and_documented(name: str) -> None:
    method = make_method(name)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.weight_decay = 0.1  # pyright: ignore[reportAttributeAccessIssue]
    module = __import__(type(method).__module__, fromlist=["x"])
    assert ".. math::" in module.__doc__, "a method's file gives its equation"
    assert any(char.isdigit() for char in module.__doc__), "and its paper with the year"


def test_stochastic_layers_are_those_of_the_sites(name: str) -> None:
    module, attachment = short(name).attach(Convolutional(), torch.randn(2, 1, 5, 5))
    found = sorted(layer.site for layer in stochastic_layers(module))
    assert found == sorted(
        site.number for site in attachment.sites if site.kind == "gaussian" or site.rate > 0
    )


def test_unknown_method() -> None:
    with pytest.raises(BadInput, match="did you mean 'mcd'"):
        make_method("mcdd")


@pytest.mark.parametrize("name", NAMES)
def test_the_optimiser_takes_a_stack_of_networks(name: str) -> None:
    stack = nn.ParameterList([torch.ones(3, 4, 2), torch.ones(3, 4)])
    options = {"rows": 10, "steps_per_epoch": 1, "epochs": 100}
    optimizer = make_method(name).make_optimizer(stack, 1e-3, stacked=True, **options)
    optimised = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert optimised == {id(parameter) for parameter in stack}
    assert all(group.get("stacked", True) for group in optimizer.param_groups)
