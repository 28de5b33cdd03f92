"""Bits of what no layer multiplies: who reads a value decides, and products see the bits of activations."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from fine_tuned import tuning
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import BadInput
from qbayes.integer.ops import Mul, Op, Rescale, Weighted
from qbayes.integer.ops.base import Value
from qbayes.integer.structure.cost import cost
from zoo.tasks import TASKS, ZOO, trained

MOVES = ("mask", "max_pool", "reshape", "permute", "slice", "pad", "upsample")


class Residual(nn.Module):
    """A block with the identity, a block with a projection, an average, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.project = nn.Conv2d(6, 8, 1)
        self.twice = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.one(x))
        x = F.relu(self.project(x) + self.two(x))
        x = F.relu(x + self.twice(x))
        x = F.relu(x + self.twice(x))
        return self.head(x.mean((2, 3)))


def stripes() -> qb.Task:
    generator = torch.Generator().manual_seed(2)
    y = torch.arange(240) % 3
    x = torch.randn(240, 1, 6, 6, generator=generator)
    x[:, 0, :, :] += 1.5 * torch.sin(torch.arange(6) * (1 + y[:, None]))[:, None, :]
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="stripes", validation=0.2)


def fitted(task: qb.Task, network: Callable[[], nn.Module]) -> qb.NetworkPosterior:
    """From weights of the same seed: ``fit`` makes the network."""
    budget = qb.Budget(epochs=4, batch_size=32, learning_rate=0.01)
    return qb.fit(network, task, qb.method("pointwise"), budget, device="cpu", progress=False)


def program_of(posterior: Any, task: qb.Task, precision: qb.Precision) -> qb.Program:
    budget = tuning(epochs=0, batch_size=256)
    return qb.lower(qb.quantize(posterior, task, precision, budget, device="cpu", progress=False))


def readers(program: qb.Program, value: str) -> list[Op]:
    """The ops that compute with the codes of a value, behind all that only moves them."""
    found: list[Op] = []
    for op in program.ops:
        if value in op.inputs:
            found += readers(program, op.output) if op.kind in MOVES else [op]
    return found


def multiplies(op: Op) -> bool:
    return isinstance(op, Weighted | Mul)


def narrows(program: qb.Program) -> list[str]:
    return [op.name for op in program.ops if isinstance(op, Rescale)]


def computed(program: qb.Program) -> dict[str, Value]:
    """The values that ops computed, but not the answers."""
    ends = set(program.outputs.values())
    found = {op.output: program.values[op.output] for op in program.ops if op.kind not in MOVES}
    answers = {name for name in found if name in ends or not readers(program, name)}
    return {name: value for name, value in found.items() if name not in answers}


@pytest.fixture(scope="module")
def residual() -> tuple[qb.NetworkPosterior, qb.Task]:
    task = stripes()
    return fitted(task, Residual), task


@pytest.mark.parametrize("bits", [3, *(pytest.param(bits, marks=pytest.mark.full) for bits in (2, 4))])
@pytest.mark.parametrize("name", ZOO)
def test_few_bits_are_where_layers_multiply_and_nowhere_else(name: str, bits: int) -> None:
    program = program_of(
        trained(name, "pointwise"), TASKS[ZOO[name].task](), qb.Precision(weight=8, activation=bits)
    )
    values = computed(program)
    assert values
    for value in values:
        read_by = [multiplies(op) for op in readers(program, value)]
        wanted = bits if all(read_by) else 8
        # what is read by both is narrowed on its way to those that multiply.
        assert not any(read_by) or all(read_by)
        assert values[value].bits == wanted, value


def test_the_stream_of_a_residual_network_is_rounded_once_a_sum(residual: Any) -> None:
    program = program_of(*residual, qb.Precision(3, 3))
    bits = {name: value.bits for name, value in program.values.items()}
    assert narrows(program) == ["stem.narrow", "add_1.narrow", "add_2.narrow"]
    assert [bits[name] for name in ("stem", "one", "project", "two", "add_1", "twice", "twice@2")] == [8] * 7
    # of the first sum layers alone read; the last one is only averaged, and the average multiplied.
    assert (bits["add"], bits["add_3"], bits["mean"]) == (3, 8, 3)


def test_without_it_all_values_have_the_bits_of_activations(residual: Any) -> None:
    program = program_of(*residual, qb.Precision(3, 3, elementwise_bits=None))
    assert {value.bits for value in computed(program).values()} == {3}
    assert not narrows(program)


@pytest.mark.parametrize(("activation", "between"), [(8, 8), (5, 8), (4, 7), (2, 3), (6, 4), (8, 2)])
def test_a_value_is_split_only_where_its_bits_are_halved(
    activation: int, between: int, residual: Any
) -> None:
    program = program_of(*residual, qb.Precision(8, activation, elementwise_bits=between))
    bits = {name: value.bits for name, value in program.values.items()}
    assert not narrows(program)
    # what is only added has the more bits even so; the stream, which layers multiply too, has not.
    assert bits["one"] == max(activation, between)
    assert bits["add_1"] == activation


def test_what_is_said_by_name_comes_first(residual: Any) -> None:
    said = {"one": {"activation": 4}, "add_1": {"activation": 5}, "add_2.narrow": {"activation": 6}}
    program = program_of(*residual, qb.Precision(3, 3, overrides=said))
    bits = {name: value.bits for name, value in program.values.items()}
    assert (bits["one"], bits["add_1"], bits["add_2"], bits["add_2.narrow"]) == (4, 5, 8, 6)
    assert "add_1.narrow" not in bits
    # also where the rule would not split.
    wide = program_of(*residual, qb.Precision(8, 8, overrides={"add_2.narrow": {"activation": 6}}))
    assert wide.values["add_2.narrow"].bits == 6


def test_a_layer_that_narrows_has_the_range_rule_of_its_layer(residual: Any) -> None:
    posterior, task = residual
    said = {"stem": {"activation_range": "minmax"}, "add_1.narrow": {"activation_range": "mse"}}
    budget = tuning(epochs=0, batch_size=256)
    made = qb.quantize(
        posterior, task, qb.Precision(3, 3, overrides=said), budget, device="cpu", progress=False
    )
    network: Any = made.network
    rules = {name: quantizer.rule.name for name, quantizer in network.quantizers()}
    assert [rules[f"{name}.out"] for name in ("stem", "stem.narrow", "add_1", "add_1.narrow")] == [
        "minmax", "minmax", "lsq", "mse",
    ]  # fmt: skip


class Pooled(nn.Module):
    """What is pooled is added and multiplied; what is not pooled is only multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.beside, self.one = nn.Conv2d(6, 6, 2, stride=2), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        small = F.max_pool2d(x, 2)
        return self.head((F.relu(small + self.one(small)) + self.beside(x)).mean((2, 3)))


class CalledTwice(nn.Module):
    """The answer of a layer's first call is added and multiplied, that of its second only multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.one, self.two = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(F.relu(self.stem(x))))
        x = F.relu(self.one(x + self.two(x)))
        return self.head(self.two(x).mean((2, 3)))


class OwnName(nn.Module):
    """Layers of the network are called as those that narrow would be."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.ModuleDict({"narrow": nn.Conv2d(6, 6, 1)})
        self.stem = nn.ModuleDict({"narrow": nn.Conv2d(1, 6, 3, padding=1)})
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem["narrow"](x))
        x = F.relu(x + self.narrow["narrow"](x))
        return self.head((x + self.narrow["narrow"](x)).mean((2, 3)))


@pytest.mark.parametrize(
    "base", [qb.Precision(3, 3), qb.Precision(8, 8), qb.Precision(8, 8, elementwise_bits=4)]
)
@pytest.mark.parametrize("widths", [(2, 3, 5, 8), (5, 8), (3,)])
@pytest.mark.parametrize("network", [Residual, Pooled, CalledTwice, OwnName])
def test_bits_by_layer_are_those_that_the_program_has(
    network: type[nn.Module], widths: tuple[int, ...], base: qb.Precision
) -> None:
    """What is assigned can be quantised, and costs what was said."""
    task = stripes()
    posterior = fitted(task, network)
    limit = qb.BitBudget(bit_operations=qb.Precision(widths[-1], widths[0]))
    found = qb.assign_bits(posterior, task, limit, base, widths=widths, rows=16, device="cpu")
    program = program_of(posterior, task, found.precision)
    assert cost(program).bit_operations() == found.cost["bit_operations"] <= found.limits["bit_operations"]
    for op in program.ops:
        if isinstance(op, Rescale):
            assert program.values[op.output].bits < program.values[op.inputs[0]].bits


def test_bits_that_are_said_of_a_layer_that_narrows_are_kept_and_counted(residual: Any) -> None:
    posterior, task = residual
    base = qb.Precision(8, 8, overrides={"stem.narrow": {"activation": 4}})
    limit = qb.BitBudget(bit_operations=1e9)
    found = qb.assign_bits(posterior, task, limit, base, widths=(2, 8), rows=16, device="cpu")
    program = program_of(posterior, task, found.precision)
    assert program.values["stem.narrow"].bits == 4
    assert cost(program).bit_operations() == found.cost["bit_operations"]


@pytest.mark.parametrize("network", [Pooled, CalledTwice, OwnName])
def test_where_a_value_parts_behind_a_move(network: type[nn.Module]) -> None:
    task = stripes()
    posterior = fitted(task, network)
    budget = tuning(epochs=0, batch_size=256)
    quantised = qb.quantize(posterior, task, qb.Precision(3, 3), budget, device="cpu", progress=False)
    program = qb.lower(quantised)
    for op in program.ops:
        if multiplies(op) and op.inputs[0] != program.input:
            assert program.values[op.inputs[0]].bits == 3
    assert narrows(program)
    x = next(task.batches("test", 100))[0]
    answers = qb.load(program, backend="reference").predict(x, 1).draws
    assert torch.equal(answers, quantised.predict(x, 1).draws)


@pytest.mark.parametrize("bits", [2, 3])
def test_nearer_to_float(bits: int, residual: Any) -> None:
    """Calibrated alike, the prediction diverges less from float where sums have their bits."""
    posterior, task = residual
    x = next(task.batches("test", 1000))[0]
    wanted = posterior.predict(x, 1).log_mean.double()

    def lost(between: int | None) -> float:
        program = program_of(posterior, task, qb.Precision(8, bits, elementwise_bits=between))
        got = qb.load(program, backend="reference").predict(x, 1).log_mean.double()
        return float((wanted.exp() * (wanted - got)).sum(-1).mean())

    assert lost(8) < 0.8 * lost(None)


def test_networks_of_layers_and_relus_alone_are_as_they_were() -> None:
    task = qb.load_task("digits")
    for name in ("lenet", "mlp"):
        posterior = fitted(task, functools.partial(qb.network, name, task))
        one, two = (program_of(posterior, task, qb.Precision(3, 3, elementwise_bits=b)) for b in (8, None))
        for mine, theirs in zip(one.members, two.members, strict=True):
            assert mine.scales == theirs.scales
        assert one.ops == two.ops


def test_a_precision_that_says_nothing_of_it_is_refused() -> None:
    held = qb.Precision(3, 3).to_json()
    assert qb.Precision.from_json(held) == qb.Precision(3, 3)
    held.pop("elementwise_bits")
    with pytest.raises(BadInput, match="exactly the fields"):
        qb.Precision.from_json(held)
    assert qb.Precision.preset("paper").elementwise_bits is None
