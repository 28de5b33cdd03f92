"""Tracing: what forward does is what the graph holds, or it is refused."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.posterior.mask import Mask
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import quant_network
from qbayes.quant.trace import EXAMPLE_ROWS, is_leaf, torch_type, trace


class Of(nn.Module):
    """A forward pass around a linear layer, some others, and a buffer."""

    def __init__(self, run: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.register_buffer("count", torch.zeros(4))
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, self.layer(x))


class Renamed(nn.Linear):
    """Another name for a layer of torch."""


class Changed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, gate: Tensor | None = None, twice: bool = False) -> Tensor:
        x = self.layer(x)
        x = x if gate is None else x * gate
        return self.layer(x) if twice else x


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def example(rows: int = EXAMPLE_ROWS) -> Tensor:
    return torch.randn(rows, 4)


def test_every_node_has_the_value_that_it_had() -> None:
    network = Of(lambda net, x: torch.relu(x).flatten(1) + x.shape[1])
    x = example()
    traced = trace(network, x)
    last = list(traced.nodes)[-2]
    with torch.no_grad():
        assert torch.equal(traced.values[last], network(x))
    assert traced.rows == EXAMPLE_ROWS
    assert {traced.values[node] for node in traced.nodes if not traced.is_tensor(node)} >= {4}


def test_the_network_itself_is_not_touched() -> None:
    network = Of(lambda net, x: x * torch.tensor(2.0) + net.count).train()
    before, names = {k: v.clone() for k, v in network.state_dict().items()}, set(dir(network))
    x, generator = example(), torch.get_rng_state()
    trace(network, x)
    assert network.training
    assert set(dir(network)) == names
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())


def test_leaves_are_layers_of_torch_whatever_they_are_called_and_our_own() -> None:
    assert torch_type(Renamed(2, 2)) is nn.Linear
    assert torch_type(Changed(2, 2)) is Changed
    assert is_leaf(Renamed(2, 2))
    assert is_leaf(Mask(0.5, 0))
    assert not is_leaf(Changed(2, 2))
    assert not is_leaf(nn.Sequential())
    assert not is_leaf(Of(lambda net, x: x))


def test_optional_arguments_are_at_their_defaults() -> None:
    targets = [node.target for node in trace(Optional(), example()).nodes if node.op.startswith("call")]
    assert targets == ["layer"]


def counts(net: Any, x: Tensor) -> Tensor:
    net.count += 1
    return x + net.count


def aliased(net: Any, x: Tensor) -> Tensor:
    kept = x
    x += torch.tanh(x)
    return x * kept


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "control flow": (lambda net, x: x if x.sum() > 0 else -x, "control flow"),
    "a loop over rows": (lambda net, x: torch.stack(list(x)), "Proxy"),
    "torch.rand": (lambda net, x: x + torch.rand(4), "random"),
    "randn_like": (lambda net, x: x + torch.randn_like(x), "randn_like"),
    "numpy's random": (lambda net, x: x * float(np.random.rand()), "random"),
    "Python's random": (lambda net, x: x * random.random(), "random"),
    "a second name for what changes": (aliased, "head"),
    "a state": (counts, "'count'"),
    "the number of rows": (lambda net, x: x * x.shape[0], "head"),
    "two answers": (lambda net, x: (x, x), "output"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_trace_would_get_wrong_is_refused(name: str) -> None:
    run, says = REFUSED[name]
    with pytest.raises(BadInput) as told:
        quant_network(Of(run).eval(), (4,), Precision())
    assert says in told.value.got
    assert told.value.do


def test_a_second_input_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="'y'"):
        trace(Two(), example())
