"""The zoo in float: every network learns its task by every method, and Bayesian draws differ."""

import functools
import math
from pathlib import Path

import pytest
import torch
from torch import fx

import qbayes as qb
from qbayes.training.fit import prepare
from zoo import tasks
from zoo.refused import REFUSED
from zoo.tasks import BAYESIAN, CASES, TASKS, ZOO, held_out, keep_in, score, trained

LARGEST = 20_000  # weights of a network
# what the networks together must use: functions by their names, methods with a dot, modules of torch.nn.
FAMILIES = {
    "weights": {"Linear", "Conv1d", "Conv2d", "BatchNorm1d", "BatchNorm2d"},
    "add": {"operator.add", "add"},
    "sub": {"operator.sub", "sub", "operator.neg"},
    "mul": {"operator.mul", "mul", "operator.truediv"},
    "concat": {"cat"},
    "max_pool": {"MaxPool2d", "max_pool2d", "max_pool1d", "adaptive_max_pool1d"},
    "average_pool": {"AvgPool2d", "avg_pool2d", "avg_pool1d", ".mean", "mean"},
    "adaptive_pool": {"AdaptiveAvgPool2d", "adaptive_avg_pool2d"},
    "reshape": {"Flatten", "flatten", ".flatten", ".view", ".reshape", ".squeeze", "Unflatten"},
    "permute": {".permute", ".transpose", "transpose", ".contiguous"},
    "slice": {"operator.getitem", "chunk", ".chunk"},
    "pad": {"pad", "ReflectionPad2d"},
    "upsample": {"Upsample", "interpolate"},
    "clamp": {"ReLU", "relu", "ReLU6", ".clamp", "clamp"},
    "sigmoid": {"sigmoid", ".sigmoid", "hardsigmoid", "softplus"},
    "tanh": {"Tanh", ".tanh"},
    "gated": {"silu", "Hardswish", "hardswish", "gelu"},
    "other": {"elu", "leaky_relu", ".abs", "Dropout"},
}


def spelling(node: fx.Node, network: fx.GraphModule) -> str:
    if node.op == "call_module":
        return type(network.get_submodule(str(node.target))).__name__
    if node.op == "call_method":
        return f".{node.target}"
    module = getattr(node.target, "__module__", "")
    name = getattr(node.target, "__name__", "")
    return f"operator.{name}" if module == "_operator" else name


@functools.cache
def used() -> set[str]:
    found: set[str] = set()
    for entry in ZOO.values():
        network = fx.symbolic_trace(entry.build())
        found |= {spelling(node, network) for node in network.graph.nodes}
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_the_zoo_uses_every_family_in_its_spellings(family: str) -> None:
    assert FAMILIES[family] - used() == set()


@pytest.mark.parametrize("name", ZOO)
def test_networks_are_small_and_plain(name: str) -> None:
    network = ZOO[name].build()
    assert 1000 < sum(parameter.numel() for parameter in network.parameters()) <= LARGEST
    assert {type(module).__module__.partition(".")[0] for module in network.modules()} <= {"torch", "zoo"}


@pytest.mark.parametrize(("name", "method"), CASES)
def test_the_network_learns_its_task(name: str, method: str) -> None:
    assert score(trained(name, method), name) >= ZOO[name].floors[method]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_draws_differ_where_the_method_is_bayesian(name: str, method: str) -> None:
    """No row of a Bayesian answer is the same in all draws; a point's draws are all equal."""
    x, _ = held_out(name)
    draws = trained(name, method).predict(x[:100], draws=4, seed=0).draws
    apart = (draws[1:] - draws[:1]).abs().flatten(2).amax((0, 2))
    assert bool((apart > 0).all()) if method in BAYESIAN else bool((apart == 0).all())


@pytest.mark.parametrize("name", ZOO)
def test_floors_are_beyond_what_comes_without_learning(name: str) -> None:
    entry = ZOO[name]
    task = TASKS[entry.task]()
    untrained, _ = prepare(entry.build, task, qb.method("mcd"), seed=0, chain=0, start=None)
    assert score(qb.Posterior.from_trained(untrained, task.signature), name) < 0.4
    assert min(entry.floors.values()) >= 0.85


def test_processes_share_what_one_of_them_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_shared_folder", [])
    keep_in(tmp_path / "zoo")
    learn = trained.__wrapped__
    first = learn("mlp_tanh", "mcd")
    monkeypatch.setattr(tasks, "_fit", lambda *_: pytest.fail("learnt a second time"))
    second = learn("mlp_tanh", "mcd")
    x, _ = held_out("mlp_tanh")
    assert torch.equal(first.predict(x, draws=3).draws, second.predict(x, draws=3).draws)


@pytest.mark.parametrize("name", REFUSED)
def test_networks_to_be_refused_are_sound_in_pytorch(name: str) -> None:
    """They run, answer for each class and have a gradient: only integers stand in their way."""
    case = REFUSED[name]
    task = TASKS[case.task]()
    network = case.build()
    outputs = network(x := task.example(16))
    task.signature.likelihood.check(outputs, len(x))
    task.signature.likelihood.nll(outputs, torch.zeros(16)).sum().backward()
    assert all(p.grad is not None and math.isfinite(p.grad.sum()) for p in network.parameters())
