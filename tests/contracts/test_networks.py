"""What every registered network must do; a new one is tested by standing in the folder."""

import copy

import pytest
import torch
from torch import Tensor, fx, nn

from qbayes.networks import NETWORKS, Architecture, build_network

SMALL = {"resnet18": {"width": 2}}
KINDS = ["classification", "regression"]


def build(name: str, kind: str) -> nn.Module:
    torch.manual_seed(1)
    network = build_network(name, (2, 8, 8), 3, kind, **SMALL.get(name, {}))
    # batch statistics that differ from 0 and 1, as after training
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()


def heads(answer: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    return {"": answer} if isinstance(answer, Tensor) else answer


@pytest.fixture(params=[(name, kind) for name in NETWORKS for kind in KINDS], ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def test_heads(case: tuple[str, str]) -> None:
    name, kind = case
    answer = build(name, kind)(torch.randn(5, 2, 8, 8))
    assert isinstance(answer, Tensor) == (kind == "classification")
    assert set(heads(answer)) == ({""} if kind == "classification" else {"mean", "log_variance"})
    assert all(head.shape == (5, 3) for head in heads(answer).values())


def test_trace_equals_eager(case: tuple[str, str]) -> None:
    network = build(*case)
    traced = fx.symbolic_trace(network)
    x = torch.randn(4, 2, 8, 8)
    eager, graph = heads(network(x)), heads(traced(x))
    assert eager.keys() == graph.keys()
    assert all(torch.equal(eager[key], graph[key]) for key in eager)


def test_each_module_stands_once_in_the_graph(case: tuple[str, str]) -> None:
    """A module called twice would hide a place where a mask or a quantiser belongs."""
    calls = [node.target for node in fx.symbolic_trace(build(*case)).graph.nodes if node.op == "call_module"]
    assert len(calls) == len(set(calls))


def test_rows_do_not_see_each_other(case: tuple[str, str]) -> None:
    network = build(*case)
    x = torch.randn(6, 2, 8, 8)
    together = heads(network(x))
    for row in range(6):
        alone = heads(network(x[row : row + 1]))
        for key in together:
            torch.testing.assert_close(alone[key][0], together[key][row], rtol=1e-5, atol=1e-6)


def test_gradients_reach_every_parameter(case: tuple[str, str]) -> None:
    network = build(*case).train()
    sum(head.square().sum() for head in heads(network(torch.randn(8, 2, 8, 8))).values()).backward()
    silent = [n for n, p in network.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert silent == []


def test_copy_and_rebuild_have_the_same_structure(case: tuple[str, str]) -> None:
    network = build(*case)
    twin = copy.deepcopy(network)
    assert twin.architecture == network.architecture
    rebuilt = Architecture.from_json(network.architecture.to_json()).build().eval()
    assert str(rebuilt) == str(network)
    rebuilt.load_state_dict(network.state_dict())
    x = torch.randn(3, 2, 8, 8)
    expected = heads(network(x))
    for other in (twin, rebuilt):
        answer = heads(other(x))
        assert all(torch.equal(answer[key], expected[key]) for key in expected)


def test_paper_masks_name_modules_of_the_network(case: tuple[str, str]) -> None:
    network = build(*case)
    names = dict(network.named_modules())
    places = [mask.partition(":") for mask in network.paper_masks]
    assert places
    assert all(where in ("after", "before") and module in names for where, _, module in places)
    assert len(set(network.paper_masks)) == len(network.paper_masks)
