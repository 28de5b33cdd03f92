"""Fixed point: multipliers to 31 bits, and rounding shifts against Python's exact fractions."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.fixed_point import (
    fixed_point,
    real,
    rescale,
    round_shift,
    shared_shift,
    shared_shifts,
)

MAGNITUDES = st.floats(2.0**-31, 2.0**30, allow_nan=False)
REALS = st.one_of(MAGNITUDES, MAGNITUDES.map(lambda m: -m))
INT62 = st.integers(-(2**62) + 1, 2**62 - 1)


def half_even(v: int, shift: int) -> int:
    return round(Fraction(v, 2**shift))  # Python rounds fractions half to even


@given(st.lists(REALS, min_size=1, max_size=6))
def test_multiplier_has_31_bits(values: list[float]) -> None:
    wanted = torch.tensor(values, dtype=torch.float64)
    code, shift = fixed_point(wanted)
    assert code.dtype == shift.dtype == torch.int32
    assert bool((code.long().abs() >= 2**30).all())
    assert bool((code.long().abs() < 2**31).all())
    assert bool(((shift >= 0) & (shift <= 62)).all())
    assert bool(((real(code, shift) - wanted).abs() <= wanted.abs() * 2.0**-31).all())
    assert bool((torch.sign(code) == torch.sign(wanted)).all())


@given(st.integers(-60, 29), st.integers(2**30, 2**31 - 1))
def test_what_has_31_bits_is_kept_exactly(exponent: int, mantissa: int) -> None:
    value = float(Fraction(mantissa) * Fraction(2) ** (exponent - 30))
    if exponent - 30 < -62:
        return
    code, shift = fixed_point(torch.tensor([value], dtype=torch.float64))
    assert float(real(code, shift)) == value


def test_edges_of_the_range() -> None:
    wanted = torch.tensor([0.0, 2.0**-62, 3 * 2.0**-62, 2.0**-70, 5e-324, 1.0, 2.0**30], dtype=torch.float64)
    code, shift = fixed_point(wanted)
    assert code.tolist() == [0, 1, 3, 0, 0, 2**30, 2**30]
    assert shift.tolist() == [0, 62, 62, 0, 0, 30, 0]
    # a mantissa that rounds up to 2^31 is halved.
    code, shift = fixed_point(torch.tensor([1 - 2.0**-40], dtype=torch.float64))
    assert (code.tolist(), shift.tolist()) == ([2**30], [30])


@pytest.mark.parametrize("bad", [2.0**31, -(2.0**31), 1e300, 2.0**31 - 2.0**-20])
def test_what_does_not_fit_is_refused(bad: float) -> None:
    values = torch.tensor([0.5, bad], dtype=torch.float64)
    for function in (fixed_point, shared_shift):
        with pytest.raises(BadInput, match=r"multiplier must be smaller than 2\^31"):
            function(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_as_that(bad: float) -> None:
    values = torch.tensor([0.5, bad], dtype=torch.float64)
    for function in (fixed_point, shared_shift):
        with pytest.raises(BadInput, match="multiplier must be finite") as told:
            function(values)
        assert told.value.got == f"{bad}"


@given(st.lists(REALS, min_size=1, max_size=5))
def test_shared_shift_gives_the_largest_30_bits(values: list[float]) -> None:
    wanted = torch.tensor(values, dtype=torch.float64)
    code, shift = shared_shift(wanted)
    largest = int(code.long().abs().max())
    assert largest <= 2**30
    assert largest >= 2**29
    # one step is at most 2^−29 of the largest: all are within half a step.
    assert bool(((real(code, shift) - wanted).abs() <= 2.0 ** (-shift - 1)).all())


def test_shared_shift_of_large_tiny_and_no_multipliers() -> None:
    code, shift = shared_shift(torch.tensor([2.0**30 + 1, 1.0, -3.0], dtype=torch.float64))
    assert (code.tolist(), shift) == ([2**30 + 1, 1, -3], 0)
    code, shift = shared_shift(torch.tensor([2.0**-62, -(2.0**-61)], dtype=torch.float64))
    assert (code.tolist(), shift) == ([1, -2], 62)
    code, shift = shared_shift(torch.zeros(2, 2, dtype=torch.float64))
    assert (code.tolist(), shift) == ([[0, 0], [0, 0]], 0)


@given(st.lists(st.tuples(REALS, REALS), min_size=1, max_size=4))
def test_shared_shifts_are_those_of_each_column(pairs: list[tuple[float, float]]) -> None:
    wanted = torch.tensor(pairs, dtype=torch.float64).T
    code, shift = shared_shifts(wanted)
    for column in range(len(pairs)):
        alone, its_shift = shared_shift(wanted[:, column])
        assert code[:, column].tolist() == alone.tolist()
        assert int(shift[column]) == its_shift


@given(st.lists(INT62, min_size=1, max_size=8), st.integers(0, 62))
def test_rounded_shift_is_half_to_even(values: list[int], shift: int) -> None:
    got = round_shift(torch.tensor(values), shift)
    assert got.dtype == torch.int64
    assert got.tolist() == [half_even(v, shift) for v in values]


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(1, 50)), min_size=1, max_size=8))
def test_exact_halves_go_to_even(pairs: list[tuple[int, int]]) -> None:
    """``(2k + 1) 2^(s−1) / 2^s = k + ½``, with a shift for each element."""
    halves = torch.tensor([(2 * k + 1) << (s - 1) for k, s in pairs])
    shifts = torch.tensor([s for _, s in pairs], dtype=torch.uint8)
    got = round_shift(halves, shifts)
    assert got.tolist() == [k if k % 2 == 0 else k + 1 for k, _ in pairs]


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31) + 1, 2**31 - 1), st.integers(0, 62))
def test_rescale_is_the_exact_product(v: int, m: int, s: int) -> None:
    expected = half_even(v * m, s)
    assert int(rescale(torch.tensor(v), torch.tensor([m], dtype=torch.int32), torch.tensor([s]))) == expected
    assert int(rescale(torch.tensor(v, dtype=torch.int32), m, s)) == expected
