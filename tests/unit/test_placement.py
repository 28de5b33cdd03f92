"""Which layers a method finds, in which order, and what already has a mask."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.methods.placement import refuse_functional_dropout, survey
from qbayes.networks.base import run_example


class Backwards(nn.Module):
    """Registered last to first, with one layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 4)
        self.body = nn.Linear(4, 4)
        self.stem = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(torch.relu(self.stem(x)))))


def masked_names(network: nn.Module, example: Tensor | None) -> set[str]:
    return {layer.name for layer in survey(network, example).layers if layer.masked}


def test_order_is_that_of_execution_with_an_example() -> None:
    seen = survey(Backwards(), torch.randn(2, 2))
    assert [layer.name for layer in seen.layers] == ["stem", "body", "head"]
    assert ("unused", "never ran on the example") in seen.left_alone


def test_order_is_that_of_registration_without_one() -> None:
    seen = survey(Backwards(), None)
    assert [layer.name for layer in seen.layers] == ["head", "unused", "body", "stem"]


BETWEEN = {
    "nothing": [],
    "relu": [nn.ReLU()],
    "relu in place": [nn.ReLU(inplace=True)],
    "flatten": [nn.Flatten()],
    "relu and flatten": [nn.ReLU(), nn.Flatten()],
    "identity": [nn.Identity()],
    "layer norm": [nn.LayerNorm(4)],
    "prelu": [nn.PReLU()],
}


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize("between", BETWEEN)
def test_a_layer_behind_a_dropout_is_masked(between: str, with_example: bool) -> None:
    network = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.3), *BETWEEN[between], nn.Linear(4, 4), nn.Linear(4, 2)
    )
    first, behind, last = (name for name, module in network.named_children() if isinstance(module, nn.Linear))
    assert masked_names(network, torch.randn(2, 4) if with_example else None) == {behind}
    assert {first, last}.isdisjoint({behind})


@pytest.mark.parametrize("with_example", [True, False])
def test_feature_maps_behind_a_dropout(with_example: bool) -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Dropout2d(0.1),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 2),
    )
    assert masked_names(network, torch.randn(2, 1, 4, 4) if with_example else None) == {"4"}


def test_functional_ops_pass_the_mask_on() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(2, 4), nn.Linear(8, 2)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            z = self.drop(self.a(x))
            z = F.max_pool1d(F.gelu(z * 2 + 1)[:, None], 2).view(len(x), -1)
            y = self.b(z)
            return self.c(torch.cat([y, y.sin()], 1))

    assert masked_names(Own(), torch.randn(3, 4)) == {"b"}


def test_a_sum_with_something_unmasked_is_not_masked() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(x + self.drop(self.a(x)))

    assert masked_names(Skip(), torch.randn(3, 4)) == set()


def test_a_dropout_that_feeds_only_another_branch_masks_nothing_else() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            z = self.a(x)
            return self.left(self.drop(z)) + self.right(z)

    assert masked_names(Branches(), torch.randn(3, 4)) == {"left"}


class OwnLinear(nn.Linear):
    pass


def test_what_is_left_alone_is_named_with_its_reason() -> None:
    network = nn.ModuleDict(
        {
            "attention": nn.MultiheadAttention(4, 2),
            "own": OwnLinear(4, 4),
            "norm": nn.LayerNorm(4),
            "transposed": nn.ConvTranspose2d(2, 2, 3),
            "volume": nn.Conv3d(1, 1, 3),
            "linear": nn.Linear(4, 4),
        }
    )
    seen = survey(network, None)
    assert [layer.name for layer in seen.layers] == ["linear"]
    left = dict(seen.left_alone)
    assert set(left) == {"attention", "attention.out_proj", "own", "norm", "transposed", "volume"}
    assert "OwnLinear is a subclass" in left["own"]


def test_the_network_is_looked_at_not_touched() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    generator = torch.get_rng_state()
    survey(network, torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    refuse_functional_dropout(network, torch.ones(2, 4))
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in network.modules())
    assert all(module.training for module in network.modules())
    assert torch.equal(torch.get_rng_state(), generator)


class Functional(nn.Module):
    def __init__(self, drop: Any, guarded: bool = False) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 2), nn.BatchNorm1d(4)
        self.drop, self.guarded = drop, guarded

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.a(x))
        if self.guarded and not self.training:
            return self.b(z)
        return self.b(self.drop(z, self.training))


DROPS = {
    "dropout": lambda z, training: F.dropout(z, 0.5, training),
    "dropout1d": lambda z, training: F.dropout1d(z[:, :, None], 0.5, training)[:, :, 0],
    "alpha_dropout": lambda z, training: F.alpha_dropout(z, 0.5, training),
    "torch.dropout": lambda z, training: torch.dropout(z, 0.5, training),
}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("drop", DROPS)
def test_functional_dropout_is_refused(drop: str, guarded: bool) -> None:
    network = Functional(DROPS[drop], guarded)
    with pytest.raises(BadInput, match="a call of torch"):
        refuse_functional_dropout(network, torch.randn(1, 4))


def test_dropout_layers_are_not_functional_dropout() -> None:
    refuse_functional_dropout(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout1d(0.1)), torch.ones(1, 4)
    )


def test_a_failing_network_names_the_shape() -> None:
    with pytest.raises(BadInput, match=r"\(rows, 5\)"):
        run_example(nn.Linear(4, 2), torch.ones(2, 5))
