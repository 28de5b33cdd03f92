"""Offsets that keep float32 off the edges between codes: against every whole number, and exact fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qbayes.integer.edges import Edges, edges
from qbayes.integer.join import Join
from qbayes.integer.ops.base import Constants, Grids
from qbayes.quant.fixed_point import fixed_point, real, rescale


def constants_of(multiplier: float, zero: int, bits: int, relu: bool) -> Constants:
    m, s = fixed_point(torch.tensor([multiplier], dtype=torch.float64))
    low, high = zero if relu else 0, (1 << bits) - 1
    return {"multiplier": m, "shift": s, "low": torch.tensor([low]), "high": torch.tensor([high])}


def scales_of(constants: Constants) -> torch.Tensor:
    return real(constants["multiplier"], constants["shift"]).float()


def worst_room(constants: Constants, zero: int, offset: Fraction) -> Fraction:
    """How far ``M̃ t + o`` keeps from every edge, on the side of the exact code; below 0 on the wrong side."""
    scale, low, high = Fraction(float(scales_of(constants))), int(constants["low"]), int(constants["high"])
    span = int(300 / scale) + 3
    t = torch.arange(-span, span + 1)
    codes = (zero + rescale(t, constants["multiplier"], constants["shift"])).clamp(low, high)
    rooms: list[Fraction] = []
    for at in (codes.diff() != 0).nonzero().flatten().tolist():
        for edge in range(int(codes[at]) + 1, int(codes[at + 1]) + 1):
            half = Fraction(2 * (edge - zero) - 1, 2)
            rooms += [
                half - scale * int(t[at]) - offset,
                scale * int(t[at + 1]) + offset - half,
            ]
    return min(rooms)


@given(
    # sums that come within a few parts of 2^24 of an edge, among them those that lie on it.
    total=st.integers(1, 400),
    half=st.integers(0, 30),
    nudge=st.integers(-40, 40),
    bits=st.integers(2, 5),
    share=st.floats(0, 1),
    relu=st.booleans(),
)
def test_the_room_is_that_of_every_whole_number(
    total: int, half: int, nudge: int, bits: int, share: float, relu: bool
) -> None:
    zero = int(share * ((1 << bits) - 2))
    constants = constants_of((half + 0.5) / total * (1 + nudge * 2.0**-26), zero, bits, relu)
    found = edges(constants, scales_of(constants), zero)
    offset, room = Fraction(float(found.offset)), Fraction(float(found.room))
    slack = Fraction(1, 1 << 40)  # of float64
    assert abs(worst_room(constants, zero, offset) - room) < slack
    for other in (offset - slack * 4, offset + slack * 4):
        assert worst_room(constants, zero, other) < room


def test_a_sum_that_float32_hardly_tells_from_a_half_gets_room() -> None:
    """38 M = 5.4999996, a spacing of float32 below 5.5."""
    constants = constants_of(0.1447368322405964, 0, 4, relu=True)
    assert worst_room(constants, 0, Fraction(0)) < Fraction(1, 1 << 20)
    found = edges(constants, scales_of(constants), 0)
    assert float(found.room) > 1e-3
    assert found.clear(torch.tensor(100.0))


@pytest.mark.parametrize("multiplier", [0.5, 0.25, 0.75])
def test_ties_to_even_on_both_sides_leave_no_room_and_no_offset(multiplier: float) -> None:
    constants = constants_of(multiplier, 3, 4, relu=False)
    found = edges(constants, scales_of(constants), 3)
    assert (float(found.offset), float(found.room)) == (0, 0)
    assert not found.clear(torch.tensor(0.0))


@pytest.mark.parametrize("multiplier", [0.0, -0.01, 2.0**-45])
def test_what_has_no_edges_to_keep_off_claims_nothing(multiplier: float) -> None:
    constants = constants_of(multiplier, 3, 4, relu=False)
    found = edges(constants, scales_of(constants), 3)
    assert (float(found.offset), float(found.room)) == (0, 0)


def test_channels_have_offsets_of_their_own() -> None:
    one, two = (constants_of(m, 2, 4, relu=False) for m in (0.0371, 0.0913))
    both = {name: torch.cat([one[name], two[name]]) for name in ("multiplier", "shift")}
    found = edges(one | both, scales_of(one | both), 2)
    alone = [edges(some, scales_of(some), 2) for some in (one, two)]
    assert torch.equal(found.offset, torch.cat([some.offset for some in alone]))
    assert torch.equal(found.room, torch.cat([some.room for some in alone]))


def test_the_room_must_hold_the_error_of_the_bias_too() -> None:
    found = Edges(torch.zeros(2), torch.tensor([1e-4, 1e-3], dtype=torch.float64), 15)
    assert found.clear(torch.tensor([190.0, 2000.0]))
    assert not found.clear(torch.tensor([200.0, 2000.0]))
    assert not found.clear(torch.tensor([190.0, 2100.0]))


@pytest.mark.parametrize(
    ("sums", "bias", "exact"), [(1 << 20, 1000, True), (1 << 23, 0, False), (900, 1 << 24, False)]
)
def test_sums_are_joined_exactly_as_long_as_floats_hold_them(sums: int, bias: int, exact: bool) -> None:
    """Two multipliers of 30 bits: with sums of 2^22 and more their products may leave float64."""
    scaling = {
        "multiplier": torch.tensor([(1 << 30) - 1]),
        "second_multiplier": torch.tensor([-(1 << 29) - 1]),
    }
    ends = {"low": torch.tensor([0]), "high": torch.tensor([15]), "shift": torch.tensor([40])}
    join = Join(1, Grids((0,), 0, (4,), 4), scaling | ends, sums, torch.tensor([float(bias)]))
    assert join.is_exact == exact
