"""How sums become codes, and what oneDNN may claim: by whole numbers, brute force and exact fractions."""

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import fixed_point, real, rescale
from qbayes.integer.backends.onednn.float_rounding import Edges, Join, edges, rounding
from qbayes.integer.ops import Constants, Grids, Linear, Weights

FAN_IN = 3


# ---- offsets that keep float32 off the edges between codes


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


# ---- when oneDNN rounds by itself: β and the sums by brute force


def scaling(multiplier: float, channels: int) -> dict[str, Tensor]:
    code, shift = fixed_point(torch.full((channels,), multiplier, dtype=torch.float64))
    return {"multiplier": code, "shift": shift}


def clamped(bits: int) -> dict[str, Tensor]:
    return {"low": torch.tensor([0]), "high": torch.tensor([(1 << bits) - 1])}


def point(weight: list[list[int]], bias: list[int], zeros: list[int] | None, m: float) -> tuple[Linear, Any]:
    op = Linear("y", ("x",), "y", Weights("point", 8, affine=zeros is not None), FAN_IN, len(weight))
    constants = {"weight": torch.tensor(weight, dtype=torch.int8), "bias": torch.tensor(bias)}
    if zeros is not None:
        constants["weight_zero"] = torch.tensor(zeros, dtype=torch.int8)
    return op, constants | scaling(m, len(weight)) | clamped(4)


def claimed(monkeypatch: pytest.MonkeyPatch, op: Linear, constants: Constants, in_bias: int) -> Tensor:
    """The β, in steps of the output, for which room is asked; without the offset that oneDNN adds too."""
    asked: list[Tensor] = []
    monkeypatch.setattr(
        Edges, "clear", lambda found, beta: bool(asked.append(beta - found.offset.abs())) or True
    )
    rounding(op, Grids((in_bias,), 7, (8,), 4), constants, in_bias, 127)
    (beta,) = asked
    return beta.expand(op.features_out)


@pytest.mark.parametrize("in_bias", [0, 3, 255])
@pytest.mark.parametrize("zeros", [None, [-128, 5], [127, -90]])
def test_what_onednn_adds_to_sums_of_points_has_its_zero_points_in_it(
    zeros: list[int] | None, in_bias: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``b − Z Σ (q_w − Z_w)`` of each channel, whatever its sign."""
    weight, bias, m = [[100, -3, 50], [-120, -1, -2]], [-90_000, 1234], 0.0123
    op, constants = point(weight, bias, zeros, m)
    added = [
        b - in_bias * sum(w - z for w in row) for row, b, z in zip(weight, bias, zeros or [0, 0], strict=True)
    ]
    scale = float(real(constants["multiplier"], constants["shift"])[0])
    wanted = torch.tensor([abs(number) * scale for number in added], dtype=torch.float64)
    torch.testing.assert_close(claimed(monkeypatch, op, constants, in_bias), wanted, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("in_bias", [0, 200])
def test_what_it_adds_to_sums_of_draws_is_bounded_by_the_clamp(
    in_bias: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of 2 bits are drawn to −1, 0 and 1: all of them are tried."""
    op = Linear("y", ("x",), "y", Weights("gaussian", 2, site=0), FAN_IN, 1)
    constants = {"bias": torch.tensor([-5000])} | scaling(0.0123, 1) | clamped(4)
    monkeypatch.setattr(Edges, "clear", lambda found, beta: bool(asked.append(beta)) or True)
    asked: list[Tensor] = []
    rounding(op, Grids((in_bias,), 7, (8,), 4), constants, in_bias, 1)
    scale = real(constants["multiplier"], constants["shift"])
    worst = max(abs(-5000 - in_bias * sum(drawn)) for drawn in itertools.product((-1, 0, 1), repeat=FAN_IN))
    offset = edges(constants, scale.float(), 7).offset.abs()
    torch.testing.assert_close(asked[0], worst * scale + offset, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("fan_in", [100, 259, 260, 2000])
def test_exact_codes_are_claimed_only_where_floats_hold_the_sums(fan_in: int) -> None:
    """M = ½ has a tie at every other sum, which no offset keeps off. Its 31 bits leave 2^23 to sums."""
    op = Linear("y", ("x",), "y", Weights("point", 8), fan_in, 1)
    weight, bias = torch.full((1, fan_in), 127, dtype=torch.int8), torch.tensor([9])
    constants = {"weight": weight, "bias": bias} | scaling(0.5, 1) | clamped(4)
    found = rounding(op, Grids((0,), 7, (8,), 4), constants, 0, 127)
    held = 255 * 127 * fan_in + 9 <= 1 << 23
    assert found.is_exact == held
    assert (found.join is not None) == held


@pytest.mark.parametrize(
    ("sums", "bias", "held"),
    [((1 << 24) - 9, 9, True), ((1 << 24) - 9, 10, False), (0, 1 << 24, True), (1 << 24, 1, False)],
)
def test_a_sum_and_its_bias_are_held_together(sums: int, bias: int, held: bool) -> None:
    constants = {"multiplier": torch.tensor([1 << 20]), "shift": torch.tensor([40])} | clamped(4)
    join = Join(1, Grids((0,), 0, (8,), 4), constants, sums, torch.tensor([float(bias)]))
    assert join.is_exact == held


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("shift", "held"), [(0, False), (1, True)])
def test_what_is_rounded_stays_where_adding_rounds_to_whole_numbers(
    shift: int, held: bool, sign: int
) -> None:
    """2^23 times 2^29 is 2^52, a float64; adding 1.5 · 2^52 to it gives no whole number but an even one."""
    constants = {"multiplier": torch.tensor([sign << 29]), "shift": torch.tensor([shift])} | clamped(4)
    join = Join(1, Grids((0,), 0, (8,), 4), constants, 1 << 23, torch.zeros(1))
    assert join.is_exact == held


@pytest.mark.parametrize("which", ["multiplier", "second_multiplier"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_both_products_must_be_held(which: str, sign: int) -> None:
    """2^23 times 2^30 is 2^53, beside one that is next to nothing."""
    multipliers = {"multiplier": torch.tensor([1]), "second_multiplier": torch.tensor([1])}
    ends = {"shift": torch.tensor([40])} | clamped(4)
    for size, held in ((1 << 29, True), (1 << 30, False)):
        constants = {**multipliers, which: torch.tensor([sign * size]), **ends}
        join = Join(1, Grids((0,), 0, (8,), 4), constants, 1 << 23, torch.zeros(1))
        assert join.is_exact == held


@pytest.mark.parametrize("zero", [0, 3, 90, 255])
def test_the_largest_magnitude_is_that_of_a_code_with_or_without_its_zero_point(zero: int) -> None:
    for low, high in ((0, 255), (zero, 255), (0, zero), (0, 40)):
        ends = {"low": torch.tensor([low]), "high": torch.tensor([max(high, 1)])}
        constants = scaling(0.37, 1) | ends
        found = edges(constants, real(constants["multiplier"], constants["shift"]).float(), zero)
        assert found.top >= max(max(abs(q), abs(q - zero)) for q in range(low, max(high, 1) + 1))
        assert found.top <= 255
