"""The control: weight decay on weights alone, nothing stochastic, and an optimum known in closed form."""

from typing import Any

import pytest
import torch
from torch import nn

from qbayes import Budget, Task, fit
from qbayes.errors import BadInput
from qbayes.methods import make_method
from qbayes.posterior.likelihood import Categorical


def test_nothing_becomes_stochastic() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    module, attachment = make_method("pointwise").attach(network)
    assert attachment.sites == ()
    assert dict(attachment.left_alone) == {
        "0": "a point estimate",
        "2": "a point estimate",
        "1": "BatchNorm1d: deterministic",
    }
    assert module is not network
    assert str(module) == str(network)


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(BadInput, match="parameters"):
        make_method("pointwise").attach(nn.Flatten())


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_decay_acts_on_weights_only(name: str) -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    method = make_method("pointwise", optimizer=name, weight_decay=0.5)
    optimizer = method.make_optimizer(network, 0.1, rows=10, steps_per_epoch=1, epochs=1)
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: decays[id(parameter)] for name, parameter in network.named_parameters()}
    assert found == {"0.weight": 0.5, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0}


def test_frozen_parameters_stay_out_of_the_optimiser() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    network[0].requires_grad_(False)
    optimizer = make_method("pointwise").make_optimizer(network, 0.1, rows=10, steps_per_epoch=1, epochs=1)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(network[1].weight), id(network[1].bias)}


def test_loss_is_the_mean_over_rows_for_each_network_of_a_stack() -> None:
    logits, target = torch.randn(3, 8, 4), torch.randint(0, 4, (8,))
    method = make_method("pointwise")
    losses = method.loss(nn.Identity(), logits, target, Categorical(4), 100)
    expected = [nn.functional.cross_entropy(one, target) for one in logits]
    torch.testing.assert_close(losses, torch.stack(expected))


def test_only_the_last_state_is_kept() -> None:
    method = make_method("pointwise")
    assert [epoch for epoch in range(1, 11) if method.collect(epoch, 10)] == [10]


def test_linear_regression_reaches_ridge() -> None:
    """Adam's decay adds λw to the gradient of NLL: with the noise at its optimum v, w is a ridge solution."""
    torch.manual_seed(5)
    x = torch.randn(200, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.5 * torch.randn(200, 1)
    task = Task.from_arrays(x, y, kind="regression")
    decay = 0.2
    method = make_method("pointwise", weight_decay=decay)
    posterior = fit(nn.Linear(3, 1), task, method, Budget(epochs=1500, batch_size=200, learning_rate=0.02))
    state = posterior.members[0]
    z = task.signature.transform.apply(x).double()
    t = task.signature.target.apply(y).double()
    weight, bias = state["network.weight"].double(), state["network.bias"].double()
    v = posterior.network(task.example(2))["log_variance"][0].double().exp()
    residual = t - z @ weight.T - bias
    torch.testing.assert_close(v[0], (residual**2).mean(), rtol=1e-2, atol=0)
    ridge = torch.linalg.solve(z.T @ z / 200 + decay * v * torch.eye(3), z.T @ (t - bias) / 200)
    torch.testing.assert_close(weight.T, ridge, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_presets_by_task_and_kind(preset: str) -> None:
    kind: Any = type(make_method("pointwise"))
    assert kind.preset(preset, "uci/boston", "regression").budget["epochs"] > 0
    with pytest.raises(BadInput, match="did you mean 'paper'"):
        kind.preset("papr", "mnist", "classification")


def test_the_paper_has_no_preset_for_other_tasks() -> None:
    with pytest.raises(BadInput, match="cifar10, mnist, uci"):
        type(make_method("pointwise")).preset("paper", "digits", "classification")
