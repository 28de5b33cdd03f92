"""Kernels of the backend ``triton``: the codes of ``Op.run`` and the bits of ``noise.keep_masks``.

They run on a GPU, or on any machine by Triton's interpreter: ``TRITON_INTERPRET=1``. What the kernels do not
serve is known without either.
"""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import needs
from handmade.programs import Maker
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from kernels import DEVICE
from qbayes import noise
from qbayes.errors import BadInput
from qbayes.integer.backends.triton import products
from qbayes.integer.ops import Conv, Grids, Linear, Mask, Noise, Weighted, Weights
from qbayes.integer.ops.base import Constants, type_of_codes

# seeds have 63 bits; a word of the generator's key has 32, and Triton has its own ways with 1.
SEEDS = st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1]) | st.integers(0, 2**63 - 1)
# counters have 32 bits and wrap.
COUNTERS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32 + 5]) | st.integers(0, 1000)
POINTS = [{}, {"per_channel": False}, {"affine": True}, {"affine": True, "per_channel": False}]
GAUSSIANS = [
    {"grids": 0},
    {"grids": 1},
    {"grids": 1, "per_channel": False, "bias_noise": True},
    {"grids": 2, "bias_noise": True},
]
# rows of features, and of feature maps.
MAPS = [(1,), (50,), (6, 4, 5), (1, 5, 6), (33, 1, 1)]


def moved(which: Noise) -> Noise:
    return replace(which, draws=which.draws.to(DEVICE))


def made(make: Maker, zeros: tuple[int, int]) -> tuple[Weighted, Grids, Constants]:
    """The only op of a program, with zero-points that the maker would not choose."""
    program = make.program(make.ops[0].output)
    (op,), (member,) = program.ops, program.members
    assert isinstance(op, Weighted)
    grids = replace(program.grids(op, member), zeros=zeros[:1], zero=zeros[1])
    return op, grids, member.constants[op.name]


def both(op: Weighted, grids: Grids, constants: Constants, x: Tensor, which: Noise) -> Tensor:
    """The codes by one kernel, of rows that draws share and of rows for each: those of the CPU's integers."""
    held = {name: constant.to(DEVICE) for name, constant in constants.items()}
    kernel = products.Products(op, grids, held)
    drawn = [kernel.draw(which.seed, draw) for draw in which.draws.tolist()] if op.is_stochastic else []
    for_each = torch.cat([x] * which.draws.numel()) if op.is_stochastic else x
    expected = op.run([for_each], grids, constants, which)
    lanes = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    for rows in (x, for_each.contiguous(memory_format=lanes))[: 1 + op.is_stochastic]:
        found = kernel([rows.to(DEVICE)], moved(which), drawn)
        assert found.dtype == expected.dtype == type_of_codes(grids.out_bits)
        assert torch.equal(found.cpu(), expected)
    return expected


def zero_points(bits: int, out_bits: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, (1 << bits) - 1), st.integers(0, (1 << min(out_bits, 8)) - 1))


def pairs(*numbers: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.sampled_from(numbers), st.sampled_from(numbers))


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    """Any geometry, uneven ones too, on an image that the kernel just fits into or a few pixels more."""
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (3, 1), (1, 5)]))
    padding, dilation = draw(pairs(0, 1, 2)), draw(pairs(1, 2))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    least = [max(1, span - 2 * pad) for span, pad in zip(spans, padding, strict=True)]
    bits, out_bits = draw(st.integers(2, 8)), draw(st.sampled_from([8, 16]))
    return {
        "shape": (draw(st.integers(1, 70)), *(length + draw(st.integers(0, 3)) for length in least)),
        "channels": draw(st.integers(1, 70)),
        "geometry": {"stride": draw(pairs(1, 2)), "padding": padding, "dilation": dilation},
        "kernel": kernel,
        "bits": bits,
        "zeros": draw(zero_points(bits, out_bits)),
        "options": {"w_bits": draw(st.integers(2, 8)), "out_bits": out_bits}
        | draw(st.sampled_from(POINTS + GAUSSIANS)),
    }


@needs.triton
@settings(max_examples=12)
@given(asked=convolutions(), seed=SEEDS)
def test_convolutions(asked: dict[str, Any], seed: int) -> None:
    make = Maker(asked["shape"], bits=asked["bits"], seed=seed % 1000)
    make.conv(make.input, asked["channels"], asked["kernel"], **asked["geometry"], **asked["options"])
    x = make.random(0, (1 << asked["bits"]) - 1, (2, *asked["shape"]), torch.uint8)
    found = both(*made(make, asked["zeros"]), x, Noise(seed, torch.tensor([3, 2**31]), 0, 2))
    rows = 4 if "grids" in asked["options"] else 2
    assert found.shape == (rows, *make.ops[0].out_shape([asked["shape"]]))


@needs.triton
@pytest.mark.parametrize("options", POINTS + GAUSSIANS, ids=str)
@pytest.mark.parametrize("zero", [0, 77, 255])
def test_convolutions_of_bytes_with_every_kind_of_weights(options: dict[str, Any], zero: int) -> None:
    """More channels than a step multiplies, or a program writes; a border that is all padding."""
    make = Maker((33, 4, 3), bits=8, seed=zero)
    make.conv(make.input, 66, padding=2, relu=False, **options)
    x = make.random(0, 255, (2, 33, 4, 3), torch.uint8)
    found = both(*made(make, (zero, 255 - zero)), x, Noise(5, torch.tensor([0, 7]), 0, 2))
    assert len(found.unique()) > 100


@needs.triton
@pytest.mark.parametrize(("code", "weight", "weight_zero"), [(0, -128, 5), (255, 127, -5)])
def test_the_largest_sums_do_not_overflow(code: int, weight: int, weight_zero: int) -> None:
    """Every product at its limit, and as many as the kernel takes: 2^15 − 1."""
    op = Linear("l", ("x",), "y", Weights("point", 8, affine=True, per_channel=False), 2**15 - 1, 2)
    grids = Grids((255 - code,), 0, (8,), 16)
    assert products.why_not(op, grids) is None
    constants = {
        "weight": torch.full(op.weight_shape, weight, dtype=torch.int8),
        "weight_zero": torch.tensor([weight_zero], dtype=torch.int8),
        "bias": torch.tensor([7, -900_000], dtype=torch.int32),
        "multiplier": torch.tensor([1], dtype=torch.int32),
        "shift": torch.tensor([16], dtype=torch.uint8),
        "low": torch.tensor([0]),
        "high": torch.tensor([65535]),
    }
    x = torch.full((3, op.features_in), code, dtype=torch.uint8)
    found = both(op, grids, constants, x, Noise(0, torch.tensor([0]), 0, 3))
    sums = (2 * code - 255) * (weight - weight_zero) * op.features_in
    assert found[0].tolist() == [round((sums + bias) / 2**16) for bias in (7, -900_000)]


@needs.triton
@settings(max_examples=12)
@given(
    features=st.tuples(st.integers(1, 150), st.integers(1, 70)),
    before=st.sampled_from([(), (3,), (2, 3)]),
    bits=st.integers(2, 8),
    out_bits=st.sampled_from([8, 16]),
    options=st.sampled_from(POINTS + GAUSSIANS),
    seed=SEEDS,
    data=st.data(),
)
def test_products_along_the_last_axis(
    features: tuple[int, int],
    before: tuple[int, ...],
    bits: int,
    out_bits: int,
    options: dict[str, Any],
    seed: int,
    data: st.DataObject,
) -> None:
    make = Maker((*before, features[0]), bits=bits, seed=seed % 1000)
    make.linear(make.input, features[1], out_bits=out_bits, **options)
    x = make.random(0, (1 << bits) - 1, (3, *before, features[0]), torch.uint8)
    zeros = data.draw(zero_points(bits, out_bits))
    found = both(*made(make, zeros), x, Noise(seed, torch.tensor([0, 1]), 0, 3))
    assert found.shape[1:] == (*before, features[1])


@needs.triton
def test_ties_go_to_even() -> None:
    """``q · 1 / 2``: odd codes lie between two whole numbers, and between two negative ones."""
    op = Linear("l", ("x",), "y", Weights("point", 2), 1, 2)
    constants = {
        "weight": torch.tensor([[1], [-1]], dtype=torch.int8),
        "bias": torch.zeros(2, dtype=torch.int32),
        "multiplier": torch.ones(2, dtype=torch.int32),
        "shift": torch.ones(2, dtype=torch.uint8),
        "low": torch.tensor([0]),
        "high": torch.tensor([255]),
    }
    x = torch.arange(8, dtype=torch.uint8).view(-1, 1)
    found = both(op, Grids((0,), 100, (8,), 8), constants, x, Noise(0, torch.tensor([0]), 0, 8))
    assert (found[:, 0].int() - 100).tolist() == [0, 0, 1, 2, 2, 2, 3, 4]
    assert (100 - found[:, 1].int()).tolist() == [0, 0, 1, 2, 2, 2, 3, 4]


@needs.triton
@settings(max_examples=25)
@given(
    site=COUNTERS,
    draws=st.lists(COUNTERS, min_size=1, max_size=4),
    rows=st.integers(1, 5),
    first_row=COUNTERS,
    elements=st.integers(1, 70),
    threshold=st.sampled_from([0, 1, 2**15, 2**16 - 1, 2**16]) | st.integers(0, 2**16),
    seed=SEEDS,
)
def test_bits_are_those_of_the_noise(
    site: int, draws: list[int], rows: int, first_row: int, elements: int, threshold: int, seed: int
) -> None:
    which = Noise(seed, torch.tensor(draws), first_row, rows)
    expected = noise.keep_masks(which.draws, seed, site, first_row, rows, elements, threshold)
    found = products.keep_bits(moved(which), site, elements, threshold)
    assert torch.equal(found.cpu(), expected.view(-1, elements).to(torch.int8))


@needs.triton
@pytest.mark.parametrize(("shape", "channelwise"), [*product(MAPS, [False, True]), ((3, 7), False)])
@settings(max_examples=4)
@given(
    rate=st.sampled_from([0.05, 0.5, 0.9]),
    draws=st.lists(COUNTERS, min_size=1, max_size=3),
    first_row=COUNTERS,
    zero=st.integers(0, 255),
    seed=SEEDS,
)
def test_masks(
    shape: tuple[int, ...],
    channelwise: bool,
    rate: float,
    draws: list[int],
    first_row: int,
    zero: int,
    seed: int,
) -> None:
    """Of elements or of channels, on features and on maps, whatever the layout of these in memory."""
    op = Mask("m", ("x",), "y", 4, rate, channelwise)
    which, grids = Noise(seed, torch.tensor(draws), first_row, 3), Grids((zero,), zero, (8,), 8)
    generator = torch.Generator().manual_seed(zero)
    x = torch.randint(0, 256, (3 * len(draws), *shape), generator=generator).to(torch.uint8)
    expected = op.run([x], grids, {}, which)
    layouts = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 3 else [])]
    for layout in layouts:
        codes = x.contiguous(memory_format=layout).to(DEVICE)
        found = products.Masked(op, grids, {})([codes], moved(which), ())
        assert found.dtype == expected.dtype
        assert torch.equal(found.cpu(), expected)


@needs.triton
def test_a_mask_refuses_a_batch_that_is_not_draws_times_rows() -> None:
    x = torch.zeros(5, 4, dtype=torch.uint8, device=DEVICE)
    kernel = products.Masked(Mask("m", ("x",), "y", 0, 0.5), Grids((0,), 0, (8,), 8), {})
    with pytest.raises(BadInput, match="draws × rows"):
        kernel([x], moved(Noise(0, torch.tensor([0, 1]), 0, 2)), ())


def conv(channels: int = 4, kernel: tuple[int, ...] = (3, 3), groups: int = 1) -> Conv:
    once = (1,) * len(kernel)
    return Conv("c", ("x",), "y", Weights("point", 8), channels, 4, kernel, once, once, once, groups)


@pytest.mark.parametrize(
    ("op", "bits", "reason"),
    [
        (conv(), 8, None),
        (conv(), 9, "its input has 9 bits, not bytes"),
        (Linear("l", ("x",), "y", Weights("point", 8), 6, 3), 16, "its input has 16 bits, not bytes"),
        (conv(groups=2), 8, "it is no plain 2-D convolution"),
        (conv(kernel=(3,)), 8, "it is no plain 2-D convolution"),
        (conv(2**12, (4, 2)), 8, "its sums may not fit 32 bits"),
        (conv(2**12 - 1, (4, 2)), 8, None),
        (Linear("l", ("x",), "y", Weights("gaussian", 8), 2**15, 3), 8, "its sums may not fit 32 bits"),
        (Linear("l", ("x",), "y", Weights("gaussian", 8), 2**15 - 1, 3), 8, None),
    ],
)
def test_what_the_kernel_of_products_does_not_serve(op: Weighted, bits: int, reason: str | None) -> None:
    assert products.why_not(op, Grids((0,), 0, (bits,), 8)) == reason


def test_a_mask_of_channels_is_served_on_features_and_on_maps() -> None:
    elements, channels = (Mask("m", ("x",), "y", 0, 0.5, channelwise) for channelwise in (False, True))
    shapes = [(5,), (5, 6), (5, 6, 7), (5, 6, 7, 8)]
    assert [products.serves_mask(channels, shape) for shape in shapes] == [True, False, True, False]
    assert all(products.serves_mask(elements, shape) for shape in shapes)


@given(st.integers(1, 600), st.integers(1, 600))
def test_channels_are_held_in_whole_steps(channels: int, out_channels: int) -> None:
    """The tensor cores take 32 bytes or more a step and 16 columns or more, in powers of 2."""
    shape = products.Geometry(channels, out_channels)
    assert shape.channels_held % shape.depth == 0
    assert 0 <= shape.channels_held - channels < shape.depth
    assert shape.columns_held % shape.columns == 0
    assert 0 <= shape.columns_held - out_channels < shape.columns
    assert shape.depth in (32, 64)
    assert shape.columns in (16, 32, 64)


@given(convolutions())
def test_the_output_is_as_large_as_the_ops(asked: dict[str, Any]) -> None:
    make = Maker(asked["shape"], bits=asked["bits"])
    make.conv(make.input, asked["channels"], asked["kernel"], **asked["geometry"])
    op = make.ops[0]
    assert isinstance(op, Conv)
    lengths = products.Geometry.of(op).out_lengths(asked["shape"][1:])
    assert (asked["channels"], *lengths) == op.out_shape([asked["shape"]])
    assert math.prod(lengths) > 0
