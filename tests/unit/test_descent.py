"""The optimisers that methods of gradient descent share."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from qbayes import BadInput
from qbayes.methods import make_method
from qbayes.methods.base import decay_groups

RUN = {"rows": 10, "steps_per_epoch": 1, "epochs": 1}


def test_only_weights_decay() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    weights, rest = decay_groups(network.parameters(), 0.1)
    assert (weights["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert [tuple(p.shape) for p in weights["params"]] == [(2, 1, 3, 3), (2, 2)]
    assert [tuple(p.shape) for p in rest["params"]] == [(2,), (2,), (2,), (2,)]


def test_biases_of_a_stack_have_two_axes_and_do_not_decay() -> None:
    weight, bias = nn.Parameter(torch.ones(3, 4, 2)), nn.Parameter(torch.ones(3, 4))
    weights, rest = decay_groups([weight, bias], 0.1, stacked=True)
    assert weights["params"] == [weight]
    assert rest["params"] == [bias]


def test_frozen_parameters_are_left_out() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad_(False)
    (only,) = decay_groups(layer.parameters(), 0.1)
    assert only["params"] == [layer.bias]


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_the_optimiser_is_the_one_named(name: str, kind: type) -> None:
    found = make_method("pointwise", optimizer=name, momentum=0.8).make_optimizer(nn.Linear(2, 2), 0.5, **RUN)
    assert type(found) is kind
    assert found.defaults["lr"] == 0.5
    if name == "sgd":
        assert found.defaults["momentum"] == 0.8
        assert found.defaults["nesterov"]


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adan"},
        {"weight_decay": -1.0},
        {"momentum": 1.0},
        {"momentum": "high"},
        {"weight_decay": float("inf")},
    ],
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        make_method("pointwise", **options)


@pytest.mark.parametrize("name", ["pointwise", "mcd", "bbb", "sghmc"])
def test_a_frozen_network_is_refused(name: str) -> None:
    frozen = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)
    with pytest.raises(BadInput):
        make_method(name).attach(frozen, torch.ones(2, 2))
    with pytest.raises(BadInput, match="frozen"):
        make_method(name).make_optimizer(frozen, 0.1, **(RUN | {"epochs": 100}))


def test_the_fused_step_is_the_plain_one_to_rounding() -> None:
    """The same rule in one kernel; complex numbers, for which there is none, still train."""
    torch.manual_seed(0)
    start, gradients = torch.randn(7, 5), torch.randn(20, 7, 5)
    found: list[torch.Tensor] = []
    for fused in (True, False):
        layer = nn.Linear(5, 7, bias=False)
        layer.weight.data.copy_(start)
        ours = make_method("pointwise", weight_decay=0.1).make_optimizer(layer, 0.01, **RUN)
        assert ours.defaults["fused"]
        plain = torch.optim.Adam(layer.parameters(), 0.01, weight_decay=0.1, foreach=False)
        for gradient in gradients:
            layer.weight.grad = gradient.clone()
            (ours if fused else plain).step()
        found.append(layer.weight.detach().clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    wave = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    wave[0].grad = torch.ones(2, dtype=torch.complex64)
    make_method("pointwise").make_optimizer(wave, 0.1, **RUN).step()
    assert bool((wave[0].real < 1).all())


def test_numbers_of_numpy_become_pythons() -> None:
    found = make_method("sghmc", members=np.int64(2), friction=np.float32(0.25)).to_json()
    assert json.loads(json.dumps(found))["members"] == 2
    assert found["friction"] == 0.25
    with pytest.raises(BadInput, match="members must be of type int"):
        make_method("sghmc", members=np.float64(2))


def test_sghmc_has_no_optimiser_to_choose() -> None:
    with pytest.raises(BadInput, match="optimizer"):
        make_method("sghmc", optimizer="sgd")
