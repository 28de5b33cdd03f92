"""Bits of what no layer multiplies: who reads a value decides, and products see the bits of activations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer.ops import Mul, Op, Weighted
from qbayes.integer.ops.base import Value
from qbayes.quant.between import is_narrow
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


def fitted(task: qb.Task, network: nn.Module) -> qb.NetworkPosterior:
    torch.manual_seed(0)
    budget = qb.Budget(epochs=4, batch_size=32, learning_rate=0.01)
    return qb.fit(network, task, qb.method("pointwise"), budget, device="cpu", progress=False)


def program_of(posterior: Any, task: qb.Task, precision: qb.Precision) -> qb.Program:
    budget = qb.Budget(epochs=0, batch_size=256)
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


def computed(program: qb.Program) -> dict[str, Value]:
    """The values that ops computed, but not the answers."""
    ends = set(program.outputs.values())
    found = {op.output: program.values[op.output] for op in program.ops if op.kind not in MOVES}
    answers = {name for name in found if name in ends or not readers(program, name)}
    return {name: value for name, value in found.items() if name not in answers}


@pytest.fixture(scope="module")
def residual() -> tuple[qb.NetworkPosterior, qb.Task]:
    task = stripes()
    return fitted(task, Residual()), task


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
    narrow = [op.name for op in program.ops if is_narrow(op.name.partition("@")[0])]
    assert narrow == ["stem.narrow", "add_1.narrow", "add_2.narrow"]
    assert [bits[name] for name in ("stem", "one", "project", "two", "add_1", "twice", "twice@2")] == [8] * 7
    # of the first sum layers alone read; the last one is only averaged, and the average multiplied.
    assert (bits["add"], bits["add_3"], bits["mean"]) == (3, 8, 3)


def test_without_it_all_values_have_the_bits_of_activations(residual: Any) -> None:
    program = program_of(*residual, qb.Precision(3, 3, between=None))
    assert {value.bits for value in computed(program).values()} == {3}
    assert not any(is_narrow(op.name) for op in program.ops)


@pytest.mark.parametrize(("activation", "between"), [(8, 8), (5, 8), (4, 7), (2, 3), (6, 4)])
def test_a_value_is_split_only_where_its_bits_are_halved(
    activation: int, between: int, residual: Any
) -> None:
    program = program_of(*residual, qb.Precision(8, activation, between=between))
    bits = {name: value.bits for name, value in program.values.items()}
    assert not any(is_narrow(op.name) for op in program.ops)
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


@pytest.mark.parametrize("bits", [2, 3])
def test_nearer_to_float(bits: int, residual: Any) -> None:
    """Calibrated alike, the prediction diverges less from float where sums have their bits."""
    posterior, task = residual
    x = next(task.batches("test", 1000))[0]
    wanted = posterior.predict(x, 1).log_mean.double()

    def lost(between: int | None) -> float:
        program = program_of(posterior, task, qb.Precision(8, bits, between=between))
        got = qb.load(program, backend="reference").predict(x, 1).log_mean.double()
        return float((wanted.exp() * (wanted - got)).sum(-1).mean())

    assert lost(8) < 0.8 * lost(None)


def test_networks_of_layers_and_relus_alone_are_as_they_were() -> None:
    task = qb.load_task("digits")
    for name in ("lenet", "mlp"):
        posterior = fitted(task, qb.network(name, task))
        one, two = (program_of(posterior, task, qb.Precision(3, 3, between=b)) for b in (8, None))
        for mine, theirs in zip(one.members, two.members, strict=True):
            assert mine.scales == theirs.scales
        assert one.ops == two.ops


def test_precisions_from_before_say_nothing_of_it() -> None:
    held = qb.Precision(3, 3).to_json()
    assert qb.Precision.from_json(held) == qb.Precision(3, 3)
    held.pop("between")
    assert qb.Precision.from_json(held) == qb.Precision(3, 3, between=None)
    assert qb.Precision.preset("paper").between is None
