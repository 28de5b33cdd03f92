"""Pooling and the ops that only move codes, against torch's own operations and slow windows."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.fixed_point import real, shared_shift
from qbayes.integer.ops import (
    AvgPool,
    Grids,
    MaxPool,
    Noise,
    Pad,
    Permute,
    Reshape,
    Slice,
    Upsample,
    Value,
)

QUIET = Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)
PLAIN = Grids((3,), 3, (8,), 8)


def codes(*shape: int, bits: int = 8) -> Tensor:
    return torch.randint(0, 2**bits, shape, dtype=torch.uint8)


@st.composite
def geometries(draw: st.DrawFn, dilated: bool) -> dict[str, Any]:
    axes = draw(st.integers(1, 2))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    dilation = tuple(draw(st.integers(1, 2 if dilated else 1)) for _ in range(axes))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    found = {
        "kernel": kernel,
        "stride": tuple(draw(st.integers(1, 3)) for _ in range(axes)),
        "padding": padding,
        "ceil_mode": draw(st.booleans()),
        "lengths": tuple(
            draw(st.integers(max(1, s - 2 * p), 9)) for s, p in zip(spans, padding, strict=True)
        ),
    }
    return found | ({"dilation": dilation} if dilated else {})


@given(geometries(dilated=True))
def test_max_pool_is_torchs_on_codes_padded_with_zero(geometry: dict[str, Any]) -> None:
    lengths = geometry.pop("lengths")
    op = MaxPool("pool", ("x",), "y", **geometry)
    x = codes(2, 3, *lengths)
    pool = F.max_pool1d if len(lengths) == 1 else F.max_pool2d
    order = ("kernel", "stride", "padding", "dilation", "ceil_mode")
    expected = pool(x.double(), *(geometry[name] for name in order)).clamp(min=0)
    got = op.run([x], PLAIN, {}, QUIET)
    assert got.dtype == torch.uint8
    assert torch.equal(got.double(), expected)
    assert op.out_shape([(3, *lengths)]) == tuple(got.shape[1:])


def test_max_pool_pads_with_code_zero_and_not_with_the_zero_point() -> None:
    """Every code is below the zero-point 200: a padding of 200 would win."""
    op = MaxPool("pool", ("x",), "y", kernel=(3,), stride=(1,), padding=(1,), dilation=(1,))
    x = torch.tensor([[[5, 1, 0, 2]]], dtype=torch.uint8)
    assert op.run([x], Grids((200,), 200, (8,), 8), {}, QUIET).tolist() == [[[5, 5, 2, 2]]]


def slow_average(op: AvgPool, x: Tensor, grids: Grids, constants: dict[str, Tensor]) -> list[int]:
    """Window by window on Python's integers, in the order of the output's elements."""
    windows = op.windows(x.shape[2:])
    positions = [()]
    for along in windows:
        positions = [(*before, window) for before in positions for window in along]
    multipliers = constants["multiplier"].tolist()
    multipliers = multipliers if len(multipliers) > 1 else multipliers * len(positions)
    out = []
    for row in x.flatten(0, 1):
        for m, position in zip(multipliers, positions, strict=True):
            window = row[tuple(slice(start, stop) for start, stop in position)].long()
            total = int(window.sum()) - grids.zeros[0] * window.numel()
            code = grids.zero + round(Fraction(total * m, 2 ** int(constants["shift"])))
            out.append(min(max(code, int(constants["low"])), int(constants["high"])))
    return out


def check_average(op: AvgPool, lengths: tuple[int, ...], float_average: Tensor, x: Tensor) -> None:
    """Against the slow sum exactly, and against torch's average of the real numbers to half a step."""
    grids = Grids((77,), 60, (8,), 8)
    values = {"x": Value("x", (3, *lengths), 8), "y": Value("y", op.out_shape([(3, *lengths)]), 8)}
    count = op.constants(values)[0].shape[0]
    scale = 0.9  # S / S_o
    divided_by = op.divisors(lengths).double().flatten()
    assert count in (1, divided_by.numel())
    multiplier, shift = shared_shift(scale / divided_by[:count])
    constants = {"multiplier": multiplier, "shift": torch.tensor([shift])}
    constants |= {"low": torch.tensor([0]), "high": torch.tensor([255])}
    got = op.run([x], grids, constants, QUIET)
    assert tuple(got.shape[1:]) == values["y"].shape
    assert got.flatten().tolist() == slow_average(op, x, grids, constants)
    steps = (60 + scale * float_average).clamp(0, 255)
    assert float((got.double() - steps).abs().max()) <= 0.5 + 1e-4
    assert float((real(multiplier, shift) / (scale / divided_by[:count]) - 1).abs().max()) < 1e-7


@given(geometries(dilated=False), st.booleans(), st.sampled_from([None, 3]))
def test_average_pool(geometry: dict[str, Any], include: bool, divisor: int | None) -> None:
    lengths = geometry.pop("lengths")
    divisor = divisor if len(lengths) == 2 else None  # torch's 1-D pooling has none
    op = AvgPool("pool", ("x",), "y", **geometry, count_include_pad=include, divisor=divisor)
    x = codes(2, 3, *lengths)
    centred = x.double() - 77
    if len(lengths) == 1:
        expected = F.avg_pool1d(centred, *geometry.values(), include)
    else:
        expected = F.avg_pool2d(centred, *geometry.values(), include, divisor)
    check_average(op, lengths, expected, x)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=2))
def test_adaptive_average_pool(axes: list[tuple[int, int]]) -> None:
    lengths, out = tuple(n for n, _ in axes), tuple(o for _, o in axes)
    ones = (1,) * len(axes)
    op = AvgPool("pool", ("x",), "y", ones, ones, (0,) * len(axes), adaptive=out)
    x = codes(2, 3, *lengths)
    pool = F.adaptive_avg_pool1d if len(axes) == 1 else F.adaptive_avg_pool2d
    check_average(op, lengths, pool(x.double() - 77, out), x)


def test_averages_round_halves_to_even() -> None:
    op = AvgPool("pool", ("x",), "y", (2,), (2,), (0,))
    x = torch.tensor([[[1, 2, 2, 3, 0, 1]]], dtype=torch.uint8)
    constants = {"multiplier": torch.tensor([1]), "shift": torch.tensor([1])}
    constants |= {"low": torch.tensor([0]), "high": torch.tensor([255])}
    assert op.run([x], Grids((0,), 0, (8,), 8), constants, QUIET).tolist() == [[[2, 2, 0]]]


def test_one_multiplier_where_all_windows_are_alike() -> None:
    values = {"x": Value("x", (3, 8, 8), 8), "y": Value("y", (3, 4, 4), 8)}
    regular = AvgPool("p", ("x",), "y", (2, 2), (2, 2), (0, 0))
    assert regular.constants(values)[0].shape == (1,)
    padded = AvgPool("p", ("x",), "y", (3, 3), (2, 2), (1, 1), count_include_pad=False)
    assert padded.constants(values)[0].shape == (16,)
    uneven = AvgPool("p", ("x",), "y", (1, 1), (1, 1), (0, 0), adaptive=(3, 3))
    assert uneven.constants(values)[0].shape == (9,)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_upsample_is_torchs_nearest(factors: list[int]) -> None:
    x = codes(2, 3, *(4, 5)[: len(factors)])
    op = Upsample("up", ("x",), "y", tuple(factors))
    got = op.run([x], PLAIN, {}, QUIET)
    expected = F.interpolate(x.double(), scale_factor=tuple(float(f) for f in factors), mode="nearest")
    assert torch.equal(got.double(), expected)
    assert op.out_shape([tuple(x.shape[1:])]) == tuple(got.shape[1:])


@given(
    amounts=st.tuples(*(st.tuples(st.integers(-1, 3), st.integers(-1, 3)) for _ in range(2))),
    mode=st.sampled_from(["constant", "reflect", "replicate"]),
)
def test_pad_is_torchs(amounts: tuple[tuple[int, int], ...], mode: Any) -> None:
    x = codes(2, 3, 4, 5)
    op = Pad("pad", ("x",), "y", ((0, 0), *amounts), mode)
    around = [n for pair in reversed(amounts) for n in pair]
    value = {"value": 9} if mode == "constant" else {}
    if mode != "constant" and min(around) < 0 < max(around):
        return  # torch mirrors what is left after cutting on one axis only; the lowering cuts first
    got = op.run([x], PLAIN, {"fill": torch.tensor([9])}, QUIET)
    assert got.dtype == torch.uint8
    assert torch.equal(got.double(), F.pad(x.double(), around, mode, **value))
    assert op.out_shape([(3, 4, 5)]) == tuple(got.shape[1:])
    assert [c.name for c in op.constants({})] == (["fill"] if mode == "constant" else [])


@given(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 3))
def test_slice(axis: int, start: int, length: int, step: int) -> None:
    stop = min(start + length, 4)
    x = codes(2, 4, 4, 4)
    op = Slice("cut", ("x",), "y", axis, start, stop, step)
    got = op.run([x], PLAIN, {}, QUIET)
    index = [slice(None)] * 4
    index[axis] = slice(start, stop, step)
    assert torch.equal(got, x[tuple(index)])
    assert op.out_shape([(4, 4, 4)]) == tuple(got.shape[1:])


@given(st.permutations([1, 2, 3]))
def test_permute_and_reshape(order: list[int]) -> None:
    x = codes(2, 3, 4, 5)
    turn = Permute("turn", ("x",), "y", (0, *order))
    turned = turn.run([x], PLAIN, {}, QUIET)
    assert torch.equal(turned, x.permute(0, *order))
    assert turn.out_shape([(3, 4, 5)]) == tuple(turned.shape[1:])
    flat = Reshape("flat", ("x",), "y", (60,))
    assert torch.equal(flat.run([turned], PLAIN, {}, QUIET), turned.flatten(1))
    assert flat.out_shape([tuple(turned.shape[1:])]) == (60,)


BAD: list[tuple[Any, str]] = [
    (lambda: MaxPool("p", ("x",), "y", (2, 2), (1, 1), (2, 0), (1, 1)).out_shape([(1, 4, 4)]), "half"),
    (lambda: MaxPool("p", ("x",), "y", (3,), (1,), (3,), (3,)).out_shape([(1, 20)]), "half"),
    (lambda: MaxPool("p", ("x",), "y", (5,), (1,), (0,), (1,)).out_shape([(1, 4)]), "fit into"),
    (lambda: MaxPool("p", ("x",), "y", (2,), (1,), (0,), (1,)).out_shape([(1, 4, 4)]), "axes"),
    (lambda: AvgPool("p", ("x",), "y", (2,), (1,), (0,), divisor=0), "divisor"),
    (lambda: AvgPool("p", ("x",), "y", (2,), (1, 1), (0,)), "stride"),
    (lambda: AvgPool("p", ("x",), "y", (1,), (1,), (0,), adaptive=(0,)), "adaptive"),
    (lambda: Pad("p", ("x",), "y", ((0, 4),), "reflect").out_shape([(4,)]), "shorter"),
    (lambda: Pad("p", ("x",), "y", ((-2, -2),)).out_shape([(4,)]), "left"),
    (lambda: Pad("p", ("x",), "y", ((0, 1),), "circular"), "mode"),  # pyright: ignore[reportArgumentType]
    (lambda: Pad("p", ("x",), "y", (1, 2)), "amounts"),  # pyright: ignore[reportArgumentType]
    (lambda: Slice("s", ("x",), "y", 0, 0, 1), "axis"),
    (lambda: Slice("s", ("x",), "y", 1, 2, 2), "stop"),
    (lambda: Slice("s", ("x",), "y", 1, 0, 5).out_shape([(4,)]), "reach"),
    (lambda: Reshape("r", ("x",), "y", (5,)).out_shape([(2, 3)]), "elements"),
    (lambda: Permute("r", ("x",), "y", (1, 0)), "batch first"),
    (lambda: Permute("r", ("x",), "y", (0, 1, 1)), "batch first"),
    (lambda: Permute("r", ("x",), "y", (0, 2, 1)).out_shape([(2,)]), "fit"),
    (lambda: Upsample("u", ("x",), "y", (0,)), "factors"),
    (lambda: Upsample("u", ("x",), "y", (2, 2)).out_shape([(2, 2)]), "axes"),
]


@pytest.mark.parametrize(("make", "says"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_what_does_not_fit_is_refused(make: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()
