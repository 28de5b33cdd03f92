"""Bits by layer: what is counted is what programs cost, and what is measured is what rounding does."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import qbayes as qb
from fine_tuned import tuning
from parity.subjects import float_posterior, task_of
from qbayes.errors import BadInput
from qbayes.integer.structure.cost import cost
from qbayes.posterior.storage.save import state_hash
from qbayes.quant.mixed.assign import with_bits
from qbayes.quant.mixed.measurement import Measurement
from qbayes.quant.mixed.places import ACTIVATION, WEIGHT, Place
from qbayes.quant.mixed.sensitivity import pool_losses

CPU = torch.device("cpu")
FEW: dict[str, Any] = {"widths": (2, 4, 8), "rows": 64, "draws": 4, "device": "cpu"}
METHODS = ("pointwise", "mcd", "bbb", "sghmc")
# ranges are set batch by batch: few large ones are quicker.
FEW_BATCHES = tuning(epochs=0, batch_size=512)


def measured(network: str, method: str, base: qb.Precision | None = None, **options: Any) -> Measurement:
    made = Measurement(
        float_posterior(network, method), task_of(network), base or qb.Precision(), (2, 4, 8), True, CPU
    )
    made.measure(**{"rows": 64, "draws": 4, "seed": 0, **options})
    return made


def calibrated(network: str, method: str, precision: qb.Precision) -> qb.Program:
    posterior = float_posterior(network, method)
    made = qb.quantize(posterior, task_of(network), precision, FEW_BATCHES, device="cpu")
    return qb.lower(made)


SUBJECTS = [
    *(("mlp", method) for method in METHODS),
    ("resnet18", "bbb"),
    *(pytest.param("resnet18", method, marks=pytest.mark.full) for method in METHODS if method != "bbb"),
]


@pytest.mark.parametrize(("network", "method"), SUBJECTS)
def test_the_costs_are_those_of_the_program(network: str, method: str) -> None:
    # what bits cost does not depend on what they do.
    made = measured(network, method, rows=8, draws=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        drawn = torch.randint(3, (len(made.places),), generator=generator).tolist()
        bits = {place: (2, 4, 8)[index] for place, index in zip(made.places, drawn, strict=True)}
        program = calibrated(network, method, with_bits(qb.Precision(), bits))
        real, counted = cost(program, variance=False), made.costs.total(bits)
        assert counted == {"bytes": real.bytes, "bit_operations": real.bit_operations()}


def test_a_place_is_a_layer_that_has_weights_or_feeds_one() -> None:
    places = measured("mlp", "mcd").places
    assert Place(WEIGHT, "hidden.0") in places
    assert Place(ACTIVATION, "hidden.0") in places
    # the answers have bits of their own.
    assert {place.layer for place in places if place.part == WEIGHT} - {
        place.layer for place in places if place.part == ACTIVATION
    } == {"mean", "log_variance"}


@pytest.mark.parametrize("method", METHODS)
def test_fewer_bits_do_more_and_draws_only_matter_where_there_are_some(method: str) -> None:
    found = {(one.place, one.bits): one for one in measured("lenet_relu", method).sensitivities}
    places = {place for place, _ in found}
    assert len(found) == 3 * len(places)
    for place in places:
        coarse, fine = found[place, 2], found[place, 8]
        assert coarse.answer > 4 * fine.answer >= 0
        assert (coarse.doubt > 0) == (method != "pointwise")


class _Coarse(nn.Module):
    """Two layers; the weights of the first are −1, 0 and 1 times a scale for each channel."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Linear(5, 16), nn.Linear(16, 1)
        codes = torch.randint(-1, 2, (16, 5), generator=generator).float()
        codes[:, 0] = 1
        with torch.no_grad():
            self.first.weight.copy_(codes * (0.1 + torch.rand(16, 1, generator=generator)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def coarse_posterior() -> tuple[qb.NetworkPosterior, qb.Task]:
    task = task_of("mlp")
    posterior = qb.fit(
        _Coarse, task, qb.method("pointwise"), qb.Budget(epochs=1, learning_rate=1e-12), seed=0, device="cpu",
        progress=False,
    )  # fmt: skip
    return posterior, task


def test_weights_that_are_on_a_grid_already_need_no_more_bits() -> None:
    posterior, task = coarse_posterior()
    # largest weight / 1: the rule that finds the very grid.
    base = qb.Precision(weight_range="minmax")
    found = qb.assign_bits(posterior, task, qb.BitBudget(bytes=10_000), base, **FEW)
    first = {one.bits: one for one in found.sensitivities if one.place == Place(WEIGHT, "first")}
    second = {one.bits: one for one in found.sensitivities if one.place == Place(WEIGHT, "second")}
    assert first[2].answer == pytest.approx(0, abs=1e-6)
    assert second[2].answer > 1e-3
    spent = found.cost["bytes"]
    tight = qb.assign_bits(posterior, task, qb.BitBudget(bytes=spent - 1), base, **FEW)
    assert tight.bits[Place(WEIGHT, "first")] < 8
    assert tight.bits[Place(WEIGHT, "second")] == 8


@pytest.mark.parametrize("kind", ["bytes", "bit_operations"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["mlp", pytest.param("lenet_relu", marks=pytest.mark.full)])
def test_an_assignment_fits_and_is_quantised_as_said(network: str, method: str, kind: str) -> None:
    posterior = float_posterior(network, method)
    before = [state_hash(one) for one in posterior.networks]
    budget = qb.BitBudget(**{kind: qb.Precision(4, 4)})
    found = qb.assign_bits(posterior, task_of(network), budget, **FEW)
    again = qb.assign_bits(posterior, task_of(network), budget, **FEW)
    assert found == again
    assert [state_hash(one) for one in posterior.networks] == before
    assert found.cost[kind] <= found.limits[kind]
    uniform = cost(calibrated(network, method, qb.Precision(4, 4)), variance=False)
    expected = {"bytes": uniform.bytes, "bit_operations": uniform.bit_operations()}
    assert found.limits == {kind: expected[kind]}
    real = cost(calibrated(network, method, found.precision), variance=False)
    assert (real.bytes, real.bit_operations()) == (found.cost["bytes"], found.cost["bit_operations"])
    assert ({place.part for place in found.bits} == {WEIGHT}) == (kind == "bytes")
    for place, bits in found.bits.items():
        assert f"{place.layer} " in str(found)
        assert getattr(found.precision.for_layer(place.layer), place.part) == bits


def test_what_an_override_says_stays() -> None:
    base = dataclasses.replace(qb.Precision(4, 4), overrides={"logits": {"weight": 8}})
    task, posterior = task_of("lenet_relu"), float_posterior("lenet_relu", "mcd")
    found = qb.assign_bits(posterior, task, qb.BitBudget(bytes=base), base, **FEW)
    assert Place(WEIGHT, "logits") not in found.bits
    assert found.precision.for_layer("logits").weight == 8
    real = cost(calibrated("lenet_relu", "mcd", found.precision), variance=False)
    assert real.bytes == found.cost["bytes"] <= found.limits["bytes"]


class _Odd(nn.Module):
    """Names of layers that a pattern would read as signs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("a[0]*", nn.Linear(5, 8))
        self.add_module("a0", nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a0(torch.relu(getattr(self, "a[0]*")(x)))


def test_odd_names_of_layers_are_meant_as_they_are() -> None:
    task = task_of("mlp")
    posterior = qb.fit(
        _Odd, task, qb.method("pointwise"), qb.Budget(epochs=1), seed=0, device="cpu", progress=False
    )
    found = qb.assign_bits(posterior, task, qb.BitBudget(bytes=qb.Precision(4, 4)), **FEW)
    for place, bits in found.bits.items():
        assert found.precision.for_layer(place.layer).weight == bits


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: qb.BitBudget(), "must limit something"),
        (lambda: qb.BitBudget(bytes=0), "above 0"),
        (lambda: qb.BitBudget(bytes=float("nan")), "above 0"),
        (lambda: qb.BitBudget(bit_operations=True), "above 0"),
        (lambda: qb.BitBudget(bytes="W4A4"), "a Precision whose cost is meant"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_budget_checks_itself(make: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make()


@pytest.mark.parametrize(
    ("budget", "options", "message"),
    [
        (100, {}, "must be a BitBudget"),
        (qb.BitBudget(bytes=10), {}, "must allow 2 bits everywhere"),
        (qb.BitBudget(bytes=qb.Precision(3, 3)), {}, "name bits that can be assigned"),
        (qb.BitBudget(bytes=1e6), {"widths": ()}, "different numbers of bits"),
        (qb.BitBudget(bytes=1e6), {"widths": (1, 9)}, "different numbers of bits"),
        (qb.BitBudget(bytes=1e6), {"rows": 0}, "rows must be a whole number"),
        (qb.BitBudget(bytes=1e6), {"draws": 1.5}, "draws must be a whole number"),
        (qb.BitBudget(bytes=1e6), {"doubt": -1}, "doubt must be a weight"),
    ],
)
def test_bad_input_is_refused(budget: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        qb.assign_bits(float_posterior("mlp", "mcd"), task_of("mlp"), budget, **{**FEW, **options})


def test_only_a_float_posterior_has_bits_to_assign() -> None:
    task = task_of("mlp")
    posterior = float_posterior("mlp", "mcd")
    quantised = qb.quantize(posterior, task, qb.Precision(), qb.FineTuning(epochs=0), device="cpu")
    with pytest.raises(BadInput, match="float posterior"):
        qb.assign_bits(quantised, task, qb.BitBudget(bytes=1e6), **FEW)


def test_losses_are_drawn_half_way_to_the_law_of_rounding() -> None:
    law = {bits: 3.0 * 4.0**-bits for bits in (2, 3, 4, 8)}
    assert pool_losses(law) == pytest.approx(law)
    # one accident: what is left of it is its root, less what it moves the law by.
    lucky = {**law, 3: law[3] / 16}
    found = pool_losses(lucky)
    assert found[3] == pytest.approx(law[3] / 16**0.5 / 16 ** (1 / 8))
    assert found[2] == pytest.approx(law[2] / 16 ** (1 / 8))
    assert pool_losses({4: 0.0}) == pytest.approx({4: 1e-12})
