"""Tracing: what forward does is what the graph holds, or it is refused."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.posterior.sites import Mask
from qbayes.quant.graph.trace import EXAMPLE_ROWS, is_leaf, torch_type, trace
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import quant_network


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


def in_a_thread(run: Callable[[], Any]) -> Any:
    """What ``run`` gives in another thread, while this one waits."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(30)


def test_another_threads_calls_are_not_traced() -> None:
    """fx puts its own call in the place of every module's, in all threads."""
    other, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(5, 4)
    wanted = other(x).detach()
    seen: list[Tensor] = []

    def asks_meanwhile(net: nn.Module, y: Tensor) -> Tensor:
        seen.append(in_a_thread(lambda: other(x).detach()))
        return torch.relu(y)

    traced = trace(Of(asks_meanwhile), example())
    assert [node.op for node in traced.nodes] == ["placeholder", "call_module", "call_function", "output"]
    assert seen
    assert all(torch.equal(found, wanted) for found in seen)


def test_networks_are_traced_one_at_a_time() -> None:
    """Two that overlap would leave fx's call in the place of every module's for ever."""
    inside, most = [0], [0]

    def counted(net: nn.Module, y: Tensor) -> Tensor:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return torch.relu(y)

    call = nn.Module.__call__
    with ThreadPoolExecutor(4) as pool:
        graphs = pool.map(lambda _: str(trace(Of(counted), example()).module.graph), range(4))
        assert len(set(graphs)) == 1
    assert most == [1]
    assert nn.Module.__call__ is call


def test_random_numbers_of_another_thread_are_not_the_networks() -> None:
    """They are drawn meanwhile, and not every time."""
    times = [0]

    def accompanied(net: nn.Module, y: Tensor) -> Tensor:
        times[0] += 1
        if times[0] == 2:  # while the generators are watched
            in_a_thread(lambda: torch.rand(3))
        return torch.relu(y)

    traced = trace(Of(accompanied), example())
    assert len(traced.nodes) == 4
    assert times[0] == 4
