"""Fake-quantised layers in evaluation against slow arithmetic in whole numbers and fractions."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from qbayes.quant.layers.base import Coded, Constants, Requantised
from qbayes.quant.layers.elementwise import (
    QuantAdd,
    QuantAffine,
    QuantConcat,
    QuantInput,
    QuantLookup,
    QuantMaskProduct,
    QuantMul,
    QuantRescale,
)
from qbayes.quant.layers.movement import QuantAverage, QuantMaxPool
from qbayes.quant.layers.weighted import Geometry, PointWeights, QuantWeighted
from qbayes.quant.quantizer import Quantizer

LIMITS = [(-float("inf"), float("inf")), (0.0, float("inf")), (-0.3, 0.8)]


def quantizer(low: float, high: float, bits: int = 5) -> Quantizer:
    made = Quantizer(bits, rule="minmax", signed=False, symmetric=False)
    made.calibrate(torch.tensor([low, high]))
    return made


def coded(shape: tuple[int, ...], scale: float, zero: int, bits: int = 5, seed: int = 0) -> Coded:
    codes = torch.randint(0, 1 << bits, shape, generator=torch.Generator().manual_seed(seed)).float()
    return Coded(codes, torch.tensor(scale), torch.tensor(float(zero)), bits)


def whole(tensor: Tensor) -> list[int]:
    return [int(value) for value in tensor.flatten()]


def oracle(
    layer: Requantised, totals: list[list[tuple[int, int]]], constants: Constants, shift: int
) -> list[int]:
    """``clamp(Z + round(Σ v m / 2^s))`` with Python's whole numbers; Fraction rounds ties to even."""
    zero = int(layer.out.zero_point)
    low, high = int(constants["low"]), int(constants["high"])
    steps = [round(Fraction(sum(v * m for v, m in parts), 1 << shift)) for parts in totals]
    return [min(max(zero + step, low), high) for step in steps]


@pytest.mark.parametrize("limits", LIMITS)
def test_a_sum(limits: tuple[float, float]) -> None:
    layer = QuantAdd((1.0, -0.5), quantizer(-1.0, 1.5), limits).eval()
    a, b = coded((4, 6), 0.07, 11), coded((4, 6), 0.11, 3, seed=1)
    constants = layer.constants(a, b)
    factors = whole(constants["multipliers"])
    totals = [
        list(zip(pair, factors, strict=True)) for pair in zip(whole(a.offsets), whole(b.offsets), strict=True)
    ]
    assert whole(layer.compute(a, b).codes) == oracle(layer, totals, constants, int(constants["shift"]))


@pytest.mark.parametrize("limits", LIMITS)
def test_a_product_that_repeats(limits: tuple[float, float]) -> None:
    layer = QuantMul(quantizer(-1.0, 1.5), limits).eval()
    a, b = coded((4, 3, 2), 0.07, 11), coded((4, 3, 1), 0.11, 3, seed=1)
    constants = layer.constants(a, b)
    products = whole(a.offsets * b.offsets)
    totals = [[(value, int(constants["multiplier"]))] for value in products]
    assert whole(layer.compute(a, b).codes) == oracle(layer, totals, constants, int(constants["shift"]))


def test_a_concatenation() -> None:
    layer = QuantConcat(1, quantizer(-1.0, 1.5)).eval()
    inputs = [coded((1, 5), 0.07, 11), coded((1, 4), 0.11, 3, seed=1)]
    constants = layer.constants(*inputs)
    wanted: list[int] = []
    for x, m, s in zip(inputs, whole(constants["multipliers"]), whole(constants["shifts"]), strict=True):
        wanted += oracle(layer, [[(value, m)] for value in whole(x.offsets)], constants, s)
    assert whole(layer.compute(*inputs).codes) == wanted


@pytest.mark.parametrize("limits", LIMITS)
def test_an_affine_map_of_channels(limits: tuple[float, float]) -> None:
    gain, offset = torch.tensor([1.0, -2.0, 0.0]), torch.tensor([0.1, 0.4, -0.2])
    layer = QuantAffine(gain, offset, quantizer(-1.0, 1.5), limits).eval()
    x = coded((4, 3, 5), 0.07, 11)
    constants = layer.constants(x)
    channels = [index // 5 % 3 for index in range(60)]
    factors, offsets = whole(constants["multiplier"]), whole(constants["offset"])
    totals = [
        [(value, factors[c]), (offsets[c], 1)] for value, c in zip(whole(x.offsets), channels, strict=True)
    ]
    assert whole(layer.compute(x).codes) == oracle(layer, totals, constants, int(constants["shift"]))


@pytest.mark.parametrize("limits", LIMITS)
def test_limits_of_their_own(limits: tuple[float, float]) -> None:
    layer = QuantRescale(quantizer(-1.0, 1.5), limits).eval()
    x = coded((4, 6), 0.07, 11)
    constants = layer.constants(x)
    totals = [[(value, int(constants["multiplier"]))] for value in whole(x.offsets)]
    assert whole(layer.compute(x).codes) == oracle(layer, totals, constants, int(constants["shift"]))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.5), (-0.1, 3.0), (-4.0, 0.2), (0.0, 6.3)])
def test_a_limit_is_the_code_nearest_to_it(low: float, high: float) -> None:
    """Of the codes that there are: a limit beyond the range is its end. Ties go to the even step."""
    out = quantizer(low, high)
    scale, zero = (Fraction(float(number)) for number in out.grid())
    for limit in torch.linspace(-5, 7, 241).tolist():
        wanted = min(max(zero + round(Fraction(limit) / scale), 0), 31)
        layer = QuantRescale(out, (limit, math.inf))
        assert whole(layer.clamp_constants()["low"]) == [wanted]
        layer = QuantRescale(out, (-math.inf, limit))
        assert whole(layer.clamp_constants()["high"]) == [wanted]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("channels", [3, None])
def test_a_linear_layer(symmetric: bool, channels: int | None) -> None:
    grid = Quantizer(4, rule="minmax", signed=True, symmetric=symmetric, channels=channels)
    weights = PointWeights(torch.randn(3, 6) + 0.3, torch.randn(3), grid, None)
    weights.calibrate("fc")
    layer = QuantWeighted(weights, quantizer(-2.0, 2.5), (0.0, float("inf"))).eval()
    x = coded((4, 6), 0.07, 11)
    constants = layer.constants(x)
    zeros = whole(constants["weight_zero"]) if "weight_zero" in constants else [0]
    wanted: list[int] = []
    for row, c in itertools.product(range(4), range(3)):
        codes = [w - zeros[c % len(zeros)] for w in whole(constants["weight"][c])]
        total = sum(a * w for a, w in zip(whole(x.offsets[row]), codes, strict=True))
        at = c % constants["multiplier"].numel()
        total += int(constants["bias"][c])
        m, s = int(constants["multiplier"][at]), int(constants["shift"][at])
        wanted += oracle(layer, [[(total, m)]], constants, s)
    assert whole(layer.compute(x).codes) == wanted


def test_a_convolution_of_groups_pads_with_zero_and_not_with_code_zero() -> None:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    grid = Quantizer(8, rule="minmax", signed=True, symmetric=True, channels=6)
    weights = PointWeights(conv.weight, conv.bias, grid, Geometry((2, 2), (1, 1), (1, 1), 2))
    weights.calibrate("conv")
    layer = QuantWeighted(weights, quantizer(-2.0, 2.5, 8)).eval()
    x = coded((3, 4, 5, 5), 0.02, 100, bits=8)
    scale, _ = grid.grid()
    with torch.no_grad():
        conv.weight.copy_(grid.codes(conv.weight) * scale[:, None, None, None])
        wanted = conv(x.real)
    got = layer.compute(x)
    assert float((got.real - wanted.clamp(-2.0, 2.5)).abs().max()) <= 0.51 * float(got.scale)


def test_means_over_windows_divide_by_what_they_hold() -> None:
    options = {
        "kernel": (3,), "stride": (2,), "padding": (1,), "ceil_mode": False, "count_include_pad": False,
        "divisor": None, "adaptive": None,
    }  # fmt: skip
    layer = QuantAverage(options, quantizer(-4.0, 4.0, 8)).eval()
    x = coded((2, 3, 7), 0.02, 100, bits=8)
    wanted = torch.nn.functional.avg_pool1d(x.real, 3, 2, 1, count_include_pad=False)
    got = layer.compute(x)
    assert float((got.real - wanted).abs().max()) <= 0.51 * float(got.scale)
    assert torch.equal(got.codes, got.codes.round())


def test_a_table_is_the_function_at_every_code_and_holds_where_it_is_not_defined() -> None:
    layer = QuantLookup(torch.sqrt, "sqrt", quantizer(0.0, 1.0, 8)).eval()
    x = Coded(torch.arange(256.0)[None], torch.tensor(1 / 200), torch.tensor(50.0), 8)
    got = layer.compute(x)
    assert torch.allclose(got.real[0, 50:], x.real[0, 50:].sqrt().clamp(max=1.0), atol=0.51 / 255)
    assert bool((got.codes[0, :50] == got.codes[0, 50]).all())


def test_the_papers_mask_product_vanishes_once_a_step_is_larger_than_two() -> None:
    for high, kept in ((31.0, 1.0), (31 * 0.7, 0.7), (31 * 2.5, 0.0)):
        layer = QuantMaskProduct(quantizer(0.0, high)).eval()
        assert float(layer.gain()) == pytest.approx(kept, abs=1e-6)


def test_codes_of_the_input_are_the_nearest() -> None:
    layer = QuantInput(quantizer(-1.0, 2.0, 8)).eval()
    x = torch.linspace(-1, 2, 500)[:, None]
    got = layer.compute(x)
    assert float((got.real - x).abs().max()) <= 0.501 * float(got.scale)
    assert float(layer.compute(torch.zeros(1, 1)).real) == 0.0


def test_a_maximum_never_takes_the_padding() -> None:
    options = {"kernel": (3,), "stride": (1,), "padding": (1,), "dilation": (1,), "ceil_mode": False}
    layer = QuantMaxPool(options).eval()
    x = Coded(torch.full((1, 1, 4), 3.0), torch.tensor(0.1), torch.tensor(20.0), 5)
    assert whole(layer.compute(x).codes) == [3, 3, 3, 3]
