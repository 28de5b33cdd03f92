"""Add, Mul, Concat, Rescale, Affine, Lookup and Mask: element by element against Python's integers."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from qbayes import noise as noise_module
from qbayes.errors import BadInput
from qbayes.integer.arithmetic.fixed_point import fixed_point, shared_shift
from qbayes.integer.ops import OPS, Add, Affine, Concat, Grids, Lookup, Mask, Mul, Noise, Op, Rescale, Value
from qbayes.posterior.sites import Mask as FloatMask

QUIET = Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)
WIDTHS = st.integers(2, 8)
FACTORS = st.one_of(
    st.floats(-3, 3).filter(lambda m: abs(m) > 1e-4), st.sampled_from([0.5, -0.5, 0.25, 1.5, 1.0])
)


def half_even(numerator: int, shift: int) -> int:
    return round(Fraction(int(numerator), 2 ** int(shift)))


def clamped(code: int, constants: dict[str, Tensor]) -> int:
    return min(max(code, int(constants["low"])), int(constants["high"]))


def limits(out_bits: int, low: int = 0) -> dict[str, Tensor]:
    return {"low": torch.tensor([low]), "high": torch.tensor([2**out_bits - 1])}


@st.composite
def settings(draw: st.DrawFn, inputs: int) -> tuple[Grids, list[Tensor]]:
    bits = tuple(draw(WIDTHS) for _ in range(inputs))
    zeros = tuple(draw(st.integers(0, 2**b - 1)) for b in bits)
    out_bits = draw(WIDTHS)
    grids = Grids(zeros, draw(st.integers(0, 2**out_bits - 1)), bits, out_bits)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    shape = (2, 3, 4)
    return grids, [torch.randint(0, 2**b, shape, generator=generator, dtype=torch.uint8) for b in bits]


@given(settings(3), st.lists(FACTORS, min_size=3, max_size=3), st.integers(1, 3))
def test_add(setting: tuple[Grids, list[Tensor]], factors: list[float], count: int) -> None:
    everything, inputs = setting
    grids = Grids(everything.zeros[:count], everything.zero, everything.bits[:count], everything.out_bits)
    codes, shift = shared_shift(torch.tensor(factors[:count], dtype=torch.float64))
    constants = {"multipliers": codes, "shift": torch.tensor([shift]), **limits(grids.out_bits, low=1)}
    op = Add("add", tuple("abc"[:count]), "y")
    got = op.run(inputs[:count], grids, constants, QUIET)
    expected = [
        clamped(
            grids.zero
            + half_even(
                sum((q - z) * m for q, z, m in zip(qs, grids.zeros, codes.tolist(), strict=True)), shift
            ),
            constants,
        )
        for qs in zip(*(x.flatten().tolist() for x in inputs[:count]), strict=True)
    ]
    assert got.dtype == torch.uint8
    assert got.flatten().tolist() == expected


@given(settings(2), FACTORS)
def test_mul(setting: tuple[Grids, list[Tensor]], factor: float) -> None:
    grids, (a, b) = setting
    m, s = fixed_point(torch.tensor([factor / 50], dtype=torch.float64))
    constants = {"multiplier": m, "shift": s, **limits(grids.out_bits)}
    got = Mul("mul", ("a", "b"), "y").run([a, b], grids, constants, QUIET)
    pairs = zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)
    products = [(p - grids.zeros[0]) * (q - grids.zeros[1]) for p, q in pairs]
    expected = [clamped(grids.zero + half_even(p * int(m), int(s)), constants) for p in products]
    assert got.flatten().tolist() == expected


@given(settings(3), st.lists(FACTORS, min_size=3, max_size=3), st.integers(1, 2))
def test_concat(setting: tuple[Grids, list[Tensor]], factors: list[float], axis: int) -> None:
    grids, inputs = setting
    inputs[1] = inputs[1].narrow(axis, 0, 2)
    m, s = fixed_point(torch.tensor(factors, dtype=torch.float64))
    constants = {"multipliers": m, "shifts": s.to(torch.uint8), **limits(grids.out_bits)}
    op = Concat("cat", ("a", "b", "c"), "y", axis)
    got = op.run(inputs, grids, constants, QUIET)
    assert tuple(got.shape[1:]) == op.out_shape([tuple(x.shape[1:]) for x in inputs])
    first = 0
    for x, zero, code, shift in zip(inputs, grids.zeros, m.tolist(), s.tolist(), strict=True):
        part = got.narrow(axis, first, x.shape[axis])
        first += x.shape[axis]
        expected = [
            clamped(grids.zero + half_even((q - zero) * code, shift), constants) for q in x.flatten().tolist()
        ]
        assert part.flatten().tolist() == expected


@given(settings(1), FACTORS)
def test_rescale(setting: tuple[Grids, list[Tensor]], factor: float) -> None:
    grids, (x,) = setting
    m, s = fixed_point(torch.tensor([factor], dtype=torch.float64))
    constants = {"multiplier": m, "shift": s, **limits(grids.out_bits, low=grids.zero)}
    got = Rescale("relu", ("x",), "y").run([x], grids, constants, QUIET)
    centred = [q - grids.zeros[0] for q in x.flatten().tolist()]
    expected = [clamped(grids.zero + half_even(q * int(m), int(s)), constants) for q in centred]
    assert got.flatten().tolist() == expected
    assert int(got.min()) >= grids.zero


@given(
    settings(1),
    st.lists(FACTORS, min_size=3, max_size=3),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3),
)
def test_affine(setting: tuple[Grids, list[Tensor]], factors: list[float], offsets: list[int]) -> None:
    grids, (x,) = setting
    shift = 22
    m = (torch.tensor(factors, dtype=torch.float64) * 2**shift).round().to(torch.int32)
    constants = {
        "multiplier": m,
        "offset": torch.tensor(offsets, dtype=torch.int32),
        "shift": torch.tensor([shift]),
    }
    constants |= limits(grids.out_bits)
    got = Affine("bn", ("x",), "y", 3).run([x], grids, constants, QUIET)
    for channel in range(3):
        expected = [
            clamped(
                grids.zero + half_even((q - grids.zeros[0]) * int(m[channel]) + offsets[channel], shift),
                constants,
            )
            for q in x[:, channel].flatten().tolist()
        ]
        assert got[:, channel].flatten().tolist() == expected


@given(settings(1))
def test_lookup(setting: tuple[Grids, list[Tensor]]) -> None:
    grids, (x,) = setting
    op = Lookup("silu", ("x",), "y")
    values = {"x": Value("x", (3, 4), grids.bits[0]), "y": Value("y", (3, 4), grids.out_bits)}
    (declared,) = op.constants(values)
    assert (declared.shape, declared.bits, declared.signed) == ((2 ** grids.bits[0],), grids.out_bits, False)
    table = torch.randint(0, 2**grids.out_bits, declared.shape)
    got = op.run([x], grids, {"table": table}, QUIET)
    assert got.flatten().tolist() == [int(table[q]) for q in x.flatten().tolist()]


def test_ties_go_to_even() -> None:
    """Averages of two codes hit exact halves: (1 + 2) / 2 = 1.5 → 2, (2 + 3) / 2 = 2.5 → 2, −½ → 0."""
    codes, shift = shared_shift(torch.tensor([0.5, 0.5], dtype=torch.float64))
    constants = {"multipliers": codes, "shift": torch.tensor([shift]), **limits(8)}
    a = torch.tensor([[1, 2, 9, 11]], dtype=torch.uint8)
    b = torch.tensor([[2, 3, 10, 10]], dtype=torch.uint8)
    op = Add("a", ("p", "q"), "y")
    assert op.run([a, b], Grids((0, 0), 0, (8, 8), 8), constants, QUIET).tolist() == [[2, 2, 10, 10]]
    # around the zero-point 10: −8.5, −7.5, −0.5, 0.5 go to −8, −8, 0, 0.
    assert op.run([a, b], Grids((10, 10), 20, (8, 8), 8), constants, QUIET).tolist() == [[12, 12, 20, 20]]


@pytest.mark.parametrize("op", [Add("o", ("a", "b"), "y"), Mul("o", ("a", "b"), "y")])
def test_channels_are_broadcast(op: Op) -> None:
    """As in squeeze-and-excite: (C, 1, 1) with (C, H, W)."""
    assert op.out_shape([(3, 1, 1), (3, 4, 5)]) == (3, 4, 5)
    a = torch.randint(0, 16, (2, 3, 1, 1), dtype=torch.uint8)
    b = torch.randint(0, 16, (2, 3, 4, 5), dtype=torch.uint8)
    codes, shift = shared_shift(torch.tensor([0.3, 0.3], dtype=torch.float64))
    m, s = fixed_point(torch.tensor([0.3], dtype=torch.float64))
    constants = {"multipliers": codes, "multiplier": m, **limits(8)}
    constants["shift"] = torch.tensor([shift]) if isinstance(op, Add) else s
    grids = Grids((2, 3), 4, (4, 4), 8)
    repeated = op.run([a.expand_as(b), b], grids, constants, QUIET)
    assert torch.equal(op.run([a, b], grids, constants, QUIET), repeated)
    for shapes in ([(3, 2), (3, 4)], [(3,), (3, 4)]):
        with pytest.raises(BadInput, match="the rows must have"):
            op.out_shape(shapes)


@pytest.mark.parametrize("channelwise", [False, True])
def test_mask_keeps_what_the_float_mask_keeps(channelwise: bool) -> None:
    """The same (seed, draw, site, row) drops the same elements as the float network's layer."""
    rows, draws, first_row, seed = 3, torch.tensor([4, 0]), 5, 99
    op = Mask("drop", ("x",), "y", site=6, rate=0.4, channelwise=channelwise)
    codes = torch.randint(0, 16, (6, 8, 3, 2), dtype=torch.uint8)
    zero = 7
    got = op.run([codes], Grids((zero,), zero, (4,), 4), {}, Noise(seed, draws, first_row, rows))
    layer = FloatMask(0.4, 6, channelwise).eval()
    for i, draw in enumerate(draws):
        part = slice(i * rows, (i + 1) * rows)
        with noise_module.streaming(noise_module.Stream(seed, draw, first_row)):
            kept = layer(torch.ones(rows, 8, 3, 2)) > 0
        assert torch.equal(got[part], torch.where(kept, codes[part], zero))
    assert op.out_shape([(8, 3, 2)]) == (8, 3, 2)
    assert op.constants({}) == ()


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2, 0.5, 0.9])
def test_mask_drops_at_its_rate(rate: float) -> None:
    op = Mask("drop", ("x",), "y", site=1, rate=rate)
    codes = torch.full((40, 5000), 9, dtype=torch.uint8)
    out = op.run([codes], Grids((2,), 2, (4,), 4), {}, Noise(3, torch.arange(4), 0, 10))
    dropped = int((out == 2).sum())
    assert dropped + int((out == 9).sum()) == out.numel()
    # the rate that 16 bits hold
    held = round(rate * 2**16) / 2**16
    if held == 0:
        assert dropped == 0
    else:
        expected = [held * out.numel(), (1 - held) * out.numel()]
        assert stats.chisquare([dropped, out.numel() - dropped], expected).pvalue > 1e-3


BAD: list[tuple[Any, str]] = [
    (lambda: Mask("m", ("x",), "y", 1, 1.0), "dropout rate"),
    (lambda: Mask("m", ("x",), "y", 1, math.nan), "dropout rate"),
    (lambda: Mask("m", ("x",), "y", -1, 0.5), "site"),
    (lambda: Mask("m", ("x",), "y", 1, "a"), "number"),  # pyright: ignore[reportArgumentType]
    (lambda: Mul("m", ("x",), "y"), "read 2"),
    (lambda: Add("m", (), "y"), "at least 1"),
    (lambda: Concat("m", ("x",), "y", 0), "axis"),
    (lambda: Concat("m", ("a", "b"), "y", 1).out_shape([(1, 2), (1, 3)]), "agree"),
    (lambda: Concat("m", ("a", "b"), "y", 3).out_shape([(1, 2), (1, 2)]), "agree"),
    (lambda: Affine("m", ("x",), "y", 3).out_shape([(4, 2)]), "channels"),
]


@pytest.mark.parametrize(("make", "says"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_what_does_not_fit_is_refused(make: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()


def test_a_mask_needs_draws_times_rows() -> None:
    op = Mask("drop", ("x",), "y", site=1, rate=0.5)
    with pytest.raises(BadInput, match="draws × rows"):
        op.run(
            [torch.zeros(5, 2, dtype=torch.uint8)],
            Grids((0,), 0, (8,), 8),
            {},
            Noise(0, torch.arange(2), 0, 2),
        )


def test_every_op_is_found_by_its_kind() -> None:
    assert all(OPS[kind].kind == kind for kind in OPS)
    assert len(OPS) == 16
