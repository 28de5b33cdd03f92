"""What a program costs, against closed forms; and the variance that integer weights keep, against draws."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from qbayes.integer.arithmetic.epsilon_table import epsilon_scale
from qbayes.integer.arithmetic.fixed_point import fixed_point
from qbayes.integer.ops import Linear, Weighted, Weights
from qbayes.integer.program import Program
from qbayes.integer.structure.cost import cost
from qbayes.integer.structure.noise_variance import variance_ratio
from qbayes.integer.structure.op_record import bytes_packed

Make = Callable[..., Program]


def test_costs_of_a_classifier(make_program: Make) -> None:
    program = make_program()
    found = {op.name: op for op in cost(program).ops}
    conv, noisy, hidden = found["conv"], found["noisy"], found["hidden"]
    # outputs · inputs of one output; the noise of two grids has a sum of its own
    assert (conv.macs, noisy.macs, hidden.macs) == (4 * 8 * 8 * 2 * 9, 2 * 4 * 4 * 4 * 2 * 9, 168 * 6)
    assert (conv.bit_operations, noisy.bit_operations) == (conv.macs * 4 * 8, noisy.macs * 3 * 7)
    assert (noisy.weight_bits, conv.weight_bits, found["add"].weight_bits) == ((3, 5), (4,), ())
    # 72 codes of μ at 3 bits and of σ at 5; 4 channels of bias, three multipliers and two shifts; the clamp
    assert noisy.bytes == 27 + 45 + 4 * 4 * 4 + 2 * bytes_packed(4, 6) + 2
    assert found["drop"].bytes == found["drop"].macs == 0
    assert {name for name, op in found.items() if op.once} == {"conv"}


def test_totals(make_program: Make) -> None:
    program = make_program(members=3)
    total = cost(program, variance=False)
    once, each = total.ops[0].macs, sum(op.macs for op in total.ops[1:])
    assert total.weights == 72 + 72 + 168 * 6 + 30 + 15
    assert total.bytes == 3 * sum(op.bytes for op in total.ops)
    # draws 0, 1, 2 use three members, draws 3 … 19 use them again
    assert total.macs(1) == once + each
    assert total.macs(2) == 2 * once + 2 * each
    assert total.macs(20) == 3 * once + 20 * each
    assert total.bit_operations(20) == 3 * total.ops[0].bit_operations + 20 * sum(
        op.bit_operations for op in total.ops[1:]
    )
    assert all(op.variance_ratio is None for op in total.ops)


def test_members_without_noise_run_once_each(make_program: Make) -> None:
    total = cost(make_program("heads", members=4))
    assert all(op.once for op in total.ops)
    assert total.macs(20) == 4 * (4 * 5 + 5 * 2 * 2)


def gaussian_program(build: Make, grids: int, bits: int, sigma_steps: float, seed: int = 0) -> Program:
    """One Gaussian layer of 64 × 5 weights; the largest σ is ``sigma_steps`` steps of the noise's grid."""
    weights = Weights("gaussian", bits, affine=grids == 0, per_channel=grids > 0, grids=grids, noise_bits=7)
    program = build([Linear("y", ("x",), "y", weights, 64, 5)], {"x": 8, "y": 8}, (64,), 5, seed=seed)
    held = program.members[0].constants["y"]
    multiplier, shift = fixed_point(
        torch.full((5,), sigma_steps / 255 * epsilon_scale(7), dtype=torch.float64)
    )
    assert isinstance(held, dict)
    held |= {"noise_multiplier": multiplier, "noise_shift": shift.to(torch.uint8)}
    held["mean"] = held["mean"] // 2
    return replace(program, members=[replace(program.members[0], deviations={})])


def ratio(program: Program) -> float | None:
    op = program.ops[0]
    assert isinstance(op, Weighted)
    return variance_ratio(program, program.members[0], op)


def test_a_fine_grid_keeps_the_variance(build_classifier: Make) -> None:
    """Rounding adds 1/12 of a step's square, clamping at 127 does nothing: 1 + (1/12) / mean(σ²)."""
    program = gaussian_program(build_classifier, 2, 8, sigma_steps=20.0)
    sigma = program.members[0].constants["y"]["sigma"].double() * 20 / 255
    assert ratio(program) == pytest.approx(1 + 1 / 12 / float(sigma.square().mean()), abs=2e-3)


@pytest.mark.parametrize("grids", [0, 1, 2])
def test_a_coarse_grid_loses_all_of_it(grids: int, build_classifier: Make) -> None:
    # the largest |ε| of the table is below 4: nothing reaches half a step.
    assert ratio(gaussian_program(build_classifier, grids, 4, sigma_steps=0.12)) == 0.0


@pytest.mark.parametrize("bits", [3, 5, 8])
@pytest.mark.parametrize("grids", [0, 1, 2])
def test_ratio_is_that_of_the_draws(grids: int, bits: int, build_classifier: Make) -> None:
    """Exact over the table of ε against 3,000 draws of the op's own weights."""
    program = gaussian_program(build_classifier, grids, bits, sigma_steps=1.5)
    op, held = program.ops[0], program.members[0].constants["y"]
    assert isinstance(op, Weighted)
    name = "noise" if grids == 2 else "weight"
    draws = torch.stack([op.weights.draw(held, 0, d)[name] for d in range(3000)]).double()
    step = held["second_multiplier" if grids == 2 else "multiplier"].double() * 2.0 ** -held["shift"].double()
    wanted = held["sigma"].double() / 255 * 1.5
    if grids == 0:
        wanted = wanted * float(held["mix"][1]) * 2.0 ** -int(held["mix_shift"])
    squares = step.expand(5)[:, None] ** 2
    expected = float((draws.var(0) * squares).sum() / (wanted**2 * squares).sum())
    assert ratio(program) == pytest.approx(expected, rel=0.02)


def test_recorded_deviations_count(build_classifier: Make) -> None:
    """Var(w_q S_w) is absolute: twice the recorded σ makes a quarter of the ratio, like half the S_o."""
    program = gaussian_program(build_classifier, 2, 6, sigma_steps=3.0)
    member = program.members[0]
    held = member.constants["y"]
    unit = held["second_multiplier"].double() * 2.0 ** -held["shift"].double()
    unit = unit * member.scales["y"] / member.scales["x"]
    rms = float(((held["sigma"].double() * 3 / 255) ** 2 * unit[:, None] ** 2).mean().sqrt())
    by_codes = ratio(program)
    assert by_codes is not None
    for factor in (1.0, 2.0):
        recorded = replace(program, members=[replace(member, deviations={"y": factor * rms})])
        assert ratio(recorded) == pytest.approx(by_codes / factor**2, rel=1e-5)
    halved = replace(member, deviations={"y": rms}, scales={**member.scales, "y": member.scales["y"] / 2})
    assert ratio(replace(program, members=[halved])) == pytest.approx(by_codes / 4, rel=1e-5)


def test_no_noise_wanted_is_no_ratio(build_classifier: Make) -> None:
    program = gaussian_program(build_classifier, 1, 4, 1.0)
    program.members[0].constants["y"]["sigma"].zero_()
    assert ratio(program) is None
    assert cost(program).ops[0].variance_ratio is None


def test_the_worst_member_is_reported(build_classifier: Make) -> None:
    good, bad = (gaussian_program(build_classifier, 1, 8, steps) for steps in (8.0, 0.3))
    both = replace(good, members=[good.members[0], bad.members[0]])
    assert cost(both).ops[0].variance_ratio == ratio(bad) != ratio(good)


def test_large_layers_are_sampled_evenly(build_classifier: Make) -> None:
    """400,000 weights whose σ grows along the row: the sample's ratio is the layer's."""
    weights = Weights("gaussian", 5, grids=2)
    program = build_classifier([Linear("y", ("x",), "y", weights, 4000, 100)], {"x": 8, "y": 8}, (4000,), 100)
    held = program.members[0].constants["y"]
    held["sigma"].copy_(torch.arange(4000).div(16, rounding_mode="floor").to(torch.uint8))
    member = replace(program.members[0], deviations={})
    sampled = ratio(replace(program, members=[member]))
    # exactly: all weights of a channel have the same 250 values of σ, so a narrow layer of them is the whole.
    small = build_classifier([Linear("y", ("x",), "y", weights, 250, 100)], {"x": 8, "y": 8}, (250,), 100)
    few = {
        **held,
        "sigma": torch.arange(250, dtype=torch.uint8).expand(100, 250),
        "mean": held["mean"][:, :250],
    }
    exact = ratio(replace(small, members=[replace(member, constants={"y": few})]))
    assert exact is not None
    assert not math.isclose(exact, 1.0, abs_tol=0.01)
    assert sampled == pytest.approx(exact, rel=0.01)
