"""Moments in integers: rounded as their equations say, close to the real numbers, nothing leaves int64."""

from fractions import Fraction
from math import floor, log
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from handmade.programs import Maker
from qbayes.integer.statistics import moments
from qbayes.integer.statistics.softmax import ONE
from qbayes.integer.statistics.summary import answer, units

NUMBERS = st.lists(st.integers(-(1 << 24), 1 << 24), min_size=1, max_size=40)


def half_up(value: Fraction) -> int:
    return floor(value + Fraction(1, 2))


@given(numbers=NUMBERS)
def test_a_mean_is_the_nearest_whole_number(numbers: list[int]) -> None:
    assert int(moments.mean(torch.tensor(numbers))) == half_up(Fraction(sum(numbers), len(numbers)))


@given(numbers=NUMBERS, places=st.integers(0, 20))
def test_a_variance_is_within_one_of_the_exact_one(numbers: list[int], places: int) -> None:
    found = int(moments.variance(torch.tensor(numbers), places))
    if len(numbers) == 1:
        assert found == 0
        return
    mean = Fraction(sum(numbers), len(numbers))
    exact = sum((n - mean) ** 2 for n in numbers) / (len(numbers) - 1) / (1 << places)
    assert found >= 0
    assert abs(found - exact) <= 1


def test_the_largest_numbers_and_draws_stay_in_int64() -> None:
    ends = torch.tensor([ONE, 0]).repeat(moments.MOST_DRAWS // 2)
    assert int(moments.variance(ends)) == round(ONE**2 / 4 * moments.MOST_DRAWS / (moments.MOST_DRAWS - 1))
    assert int(moments.variance(torch.full((moments.MOST_DRAWS,), ONE))) == 0


@given(exponent=st.integers(0, moments.MOST_VARIANCE_BITS * ONE))
def test_powers_are_close(exponent: int) -> None:
    exact = 2.0 ** (exponent / ONE)
    assert abs(int(moments.powers(torch.tensor(exponent))) - exact) <= 0.5 + 2e-6 * exact


@pytest.mark.parametrize(("exponent", "power"), [(-5, 1), (0, 1), (46 * ONE, 1 << 46), (99 * ONE, 1 << 46)])
def test_powers_end_at_their_limits(exponent: int, power: int) -> None:
    assert int(moments.powers(torch.tensor(exponent))) == power


@given(number=st.integers(1, (1 << 62) - 1))
def test_logarithms_are_close(number: int) -> None:
    exact = float(torch.tensor(number, dtype=torch.float64).log())
    assert abs(int(moments.logarithm(torch.tensor(number))) / ONE - exact) <= 5e-6


def test_the_entropy_is_that_of_a_gaussian() -> None:
    variances = torch.tensor([[1 << 30, 3 << 40], [5, 1]])
    real = torch.distributions.Normal(0.0, (variances.double() / 2.0**40).sqrt()).entropy().sum(-1)
    assert torch.allclose(moments.gaussian_entropy(variances, 20).double() / ONE, real, atol=1e-5)


def test_a_regression_uses_the_grid_and_the_noise_of_each_member() -> None:
    make = Maker((4,), bits=8, members=2)
    program = make.program(
        make.linear(make.input, 2, relu=False, out_bits=12), heads=["mean"], noise=[0.0, 1.0, 2.0, 3.0]
    )
    numbers = units(program)
    codes = torch.tensor([[[5, 4000]], [[7, 2]]])
    told = answer(program, {"mean": codes})
    name = program.outputs["mean"]
    real = torch.stack([(codes[i] - m.zeros[name]) * m.scales[name] for i, m in enumerate(program.members)])
    assert torch.allclose(told.mean / 2.0**numbers.fraction, real.mean(0), atol=1e-4)
    noise = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).exp().mean(0)
    assert torch.allclose(told.variance / 4.0**numbers.fraction, real.var(0) + noise, rtol=1e-4)
    assert max(abs(scaling.multiplier) for scaling in numbers.means) < 1 << 31


@pytest.mark.parametrize("scales", [(2e-3, 1e-3), (1e-3, 2e-3), (1.0, 64.0), (64.0, 1.0)])
@pytest.mark.parametrize("noise", [[-3.0, 5.0, 30.0, 1.0], [5.0, -3.0, 1.0, -8.0], [-9.0, -9.0, -9.0, 12.0]])
def test_a_regression_has_all_the_places_that_its_members_and_targets_leave(
    scales: tuple[float, float], noise: list[float]
) -> None:
    """The largest f at which no mean reaches 2^23 and no noise 2^46, which costs at most 10 places."""
    make = Maker((4,), bits=8, members=2)
    program = make.program(
        make.linear(make.input, 2, relu=False, out_bits=12), heads=["mean"], noise=[*noise]
    )
    name, most = program.outputs["mean"], Fraction(0)
    for member, scale in zip(program.members, scales, strict=True):
        cast(dict[str, float], member.scales)[name] = scale
        most = max(most, *(abs(code - member.zeros[name]) * Fraction(scale) for code in range(1 << 12)))
    places = range(-60, 60)
    of_mean = max(f for f in places if most * Fraction(2) ** f < 1 << 23)
    of_noise = max(f for f in places if max(noise) / log(2) + 2 * f <= 46)
    assert units(program).fraction == max(min(of_mean, of_noise), of_mean - 10)
