"""Affine arithmetic: the properties that every grid must have, on ordinary and on extreme numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import (
    EMPTY_SCALE,
    affine_grid,
    code_range,
    dequantize,
    fake_quantize,
    per_channel,
    quantize,
    scale_gradient,
)

KINDS = [(False, False), (False, True), (True, False), (True, True)]
EXTREMES = [0.0, 1e-45, 1e-40, 1.2e-38, 1e-20, 1.0, 1e20, 1e30, 3.4e38, math.inf]

kinds = st.sampled_from(KINDS)
widths = st.integers(2, 8)
wide = st.integers(2, 16)
sizes = st.sampled_from([1e-40, 1e-12, 1e-3, 1.0, 7.0, 1e5, 1e30])
ends = st.floats(0, 1, width=32)


@st.composite
def grids(draw: st.DrawFn) -> tuple[Tensor, Tensor, int, int, float]:
    """Scale, zero-point, code range and the size of the numbers of some grid."""
    signed, symmetric = draw(kinds)
    bits, size = draw(widths if signed else wide), draw(sizes)
    low, high = torch.tensor(-draw(ends) * size), torch.tensor(draw(ends) * size)
    scale, zero = affine_grid(low, high, bits, signed=signed, symmetric=symmetric)
    return scale, zero, *code_range(bits, signed, symmetric), size


def numbers(size: float) -> Tensor:
    torch.manual_seed(3)
    ordinary = torch.randn(400) * size
    return torch.cat([ordinary, torch.tensor([0.0, -0.0, size, -size, 3e38, -3e38, math.inf, -math.inf])])


@pytest.mark.parametrize("bits", range(2, 9))
def test_code_ranges(bits: int) -> None:
    assert code_range(bits, False, False) == code_range(bits, False, True) == (0, 2**bits - 1)
    assert code_range(bits, True, False) == (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert code_range(bits, True, True) == (-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1)


@pytest.mark.parametrize("bits", [-1, 0, 1, 9, 32, True, 4.0, "4", None])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(BadInput, match=r"signed codes must have 2 … 8 bits"):
        code_range(bits, True, True)


@pytest.mark.parametrize("symmetric", [False, True])
def test_unsigned_codes_may_be_as_wide_as_outputs(symmetric: bool) -> None:
    assert [code_range(bits, False, symmetric) for bits in (9, 16)] == [(0, 511), (0, 65535)]
    with pytest.raises(BadInput, match=r"unsigned codes must have 2 … 16 bits"):
        code_range(17, False, symmetric)


@given(grids())
def test_zero_is_exact(grid: tuple[Tensor, Tensor, int, int, float]) -> None:
    scale, zero, low, high, _ = grid
    assert quantize(torch.zeros(3), scale, zero, low, high).tolist() == [float(zero)] * 3
    assert fake_quantize(torch.zeros(3), scale, zero, low, high).tolist() == [0.0] * 3


@given(grids())
def test_codes_are_whole_and_inside(grid: tuple[Tensor, Tensor, int, int, float]) -> None:
    scale, zero, low, high, size = grid
    codes = quantize(numbers(size), scale, zero, low, high)
    assert torch.equal(codes, codes.round())
    assert low <= float(codes.min())
    assert float(codes.max()) <= high
    assert codes[-2:].tolist() == [high, low], "infinities must get the codes of the ends"


@given(grids())
def test_rounding_is_idempotent_and_monotone(grid: tuple[Tensor, Tensor, int, int, float]) -> None:
    scale, zero, low, high, size = grid
    x = numbers(size).sort().values
    once = fake_quantize(x, scale, zero, low, high)
    assert torch.equal(fake_quantize(once, scale, zero, low, high), once)
    assert bool((once.diff() >= 0).all())
    assert torch.equal(once, dequantize(quantize(x, scale, zero, low, high), scale, zero))
    every = torch.arange(low, high + 1).float()
    assert torch.equal(quantize(dequantize(every, scale, zero), scale, zero, low, high), every)


@given(grids())
def test_error_is_at_most_half_a_step_inside_the_range(grid: tuple[Tensor, Tensor, int, int, float]) -> None:
    scale, zero, low, high, size = grid
    x = numbers(size)[:-4].double()
    s, z = scale.double(), zero.double()
    inside = (x >= s * (low - z)) & (x <= s * (high - z))
    error = (fake_quantize(x, s, z, low, high) - x).abs()[inside]
    assert bool((error <= s / 2 * (1 + 1e-9)).all())


@given(grids())
def test_gradient_is_one_inside_and_zero_outside(grid: tuple[Tensor, Tensor, int, int, float]) -> None:
    scale, zero, low, high, size = grid
    x = numbers(size)[:-2].requires_grad_()
    fake_quantize(x, scale, zero, low, high).sum().backward()
    steps = x.detach() / scale
    inside = (steps >= low - zero) & (steps <= high - zero)
    assert x.grad is not None
    assert torch.equal(x.grad[~inside], torch.zeros(int((~inside).sum())))
    torch.testing.assert_close(x.grad[inside], torch.ones(int(inside.sum())), rtol=3e-7, atol=0)


@given(kinds, widths, st.sampled_from(EXTREMES), st.sampled_from(EXTREMES))
def test_any_range_gives_a_usable_grid(
    kind: tuple[bool, bool], bits: int, below: float, above: float
) -> None:
    low, high = code_range(bits, *kind)
    scale, zero = affine_grid(
        torch.tensor(-below), torch.tensor(above), bits, signed=kind[0], symmetric=kind[1]
    )
    assert scale.dtype == zero.dtype == torch.float32
    assert 2.0**-60 <= float(scale) < math.inf
    assert float(zero) == round(float(zero))
    assert low <= float(zero) <= high
    assert bool(torch.isfinite(dequantize(torch.tensor([low, high]).float(), scale, zero)).all())


@given(kinds, widths, sizes, ends, ends)
def test_grid_covers_its_range(
    kind: tuple[bool, bool], bits: int, size: float, below: float, above: float
) -> None:
    """Symmetric grids to the last digit; affine ones up to the rounding of the zero-point, half a step."""
    first, last = code_range(bits, *kind)
    ends = torch.tensor([-below * size, above * size])
    scale, zero = affine_grid(ends[0], ends[1], bits, signed=kind[0], symmetric=kind[1])
    covered = scale.double() * (torch.tensor([first, last]).double() - zero)
    spare = (1e-6 * (last - first) if kind[1] else 0.5 + 1e-4) * float(scale)
    assert float(covered[0]) <= float(ends[0]) + spare
    assert float(covered[1]) >= float(ends[1]) - spare


@pytest.mark.parametrize(("signed", "symmetric"), KINDS)
def test_empty_ranges_and_ranges_without_zero(signed: bool, symmetric: bool) -> None:
    """No data (low > high) and constant zeros give one grid; a range beside 0 is stretched to it."""

    def grid(low: float, high: float) -> list[float]:
        found = affine_grid(torch.tensor(low), torch.tensor(high), 5, signed=signed, symmetric=symmetric)
        return [float(value) for value in found]

    assert grid(math.inf, -math.inf) == grid(0, 0)
    assert grid(0, 0)[0] == EMPTY_SCALE
    assert grid(3, 7) == grid(0, 7)
    assert grid(-7, -3) == grid(-7, 0)


def test_grids_in_numbers() -> None:
    """Worked by hand, 3 bits: S and Z for the range [−1, 2.5] and for [0, 3.5]."""
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([2.5, 3.5])
    scale, zero = affine_grid(low, high, 3, signed=False, symmetric=False)
    assert (scale.tolist(), zero.tolist()) == ([0.5, 0.5], [2.0, 0.0])
    scale, zero = affine_grid(low, high, 3, signed=True, symmetric=False)
    assert (scale.tolist(), zero.tolist()) == ([0.5, 0.5], [-2.0, -4.0])
    scale, zero = affine_grid(low, high * 1.2, 3, signed=True, symmetric=True)
    assert (scale.tolist(), zero.tolist()) == ([1.0, pytest.approx(1.4)], [0.0, 0.0])
    scale, zero = affine_grid(low, high, 3, signed=False, symmetric=True)
    assert (scale.tolist(), zero.tolist()) == ([pytest.approx(2.5 / 3), 0.5], [4.0, 0.0])


def test_ties_go_to_even_before_the_zero_point() -> None:
    """As in the integer ops: Z + round(x / S). Rounding x / S + Z would turn the ties with an odd Z."""
    x = torch.tensor([-1.5, -0.5, 0.5, 1.5, 2.5])
    codes = quantize(x, torch.tensor(1.0), torch.tensor(3.0), 0, 7)
    assert codes.tolist() == [1, 3, 3, 5, 5]


@settings(max_examples=25)
@given(widths, kinds)
def test_per_channel_is_per_tensor_on_each_channel(bits: int, kind: tuple[bool, bool]) -> None:
    torch.manual_seed(bits)
    x = torch.randn(3, 4, 5) * torch.tensor([0.0, 1e-40, 1.0, 1e30])[:, None]
    low, high = x.amin((0, 2)), x.amax((0, 2))
    codes = code_range(bits, *kind)
    scale, zero = affine_grid(low, high, bits, signed=kind[0], symmetric=kind[1])
    whole = fake_quantize(x, per_channel(scale, 3, 1), per_channel(zero, 3, 1), *codes)
    for k in range(4):
        own = affine_grid(low[k], high[k], bits, signed=kind[0], symmetric=kind[1])
        assert (float(own[0]), float(own[1])) == (float(scale[k]), float(zero[k]))
        assert torch.equal(whole[:, k], fake_quantize(x[:, k], *own, *codes))


def test_per_channel_shapes() -> None:
    assert per_channel(torch.tensor(2.0), 4, 0).shape == ()
    assert per_channel(torch.ones(3), 4, 1).shape == (1, 3, 1, 1)
    assert per_channel(torch.ones(3), 2, -1).shape == (1, 3)


@given(grids())
def test_scale_gradient_is_that_of_learned_steps(grid: tuple[Tensor, Tensor, int, int, float]) -> None:
    """Equation 3 of the paper on learned step sizes (off the ends, where it counts them as outside)."""
    scale, zero, low, high, _ = grid
    scale = scale.double().clamp(1e-9, 1e9).requires_grad_()
    zero = zero.double()
    torch.manual_seed(8)
    v = low - zero - 3 + (high - low + 6) * torch.rand(97, dtype=torch.float64)
    x = v * scale.detach()
    upstream = torch.linspace(-1, 2, 97, dtype=torch.float64)
    fake_quantize(x, scale, zero, low, high).backward(upstream)
    a, b = low - zero, high - zero
    expected = torch.where(v <= a, a, torch.where(v >= b, b, v.round() - v))
    assert scale.grad is not None
    torch.testing.assert_close(scale.grad, (upstream * expected).sum(), rtol=1e-7, atol=1e-5)


def test_scale_gradient_multiplies_the_gradient_alone() -> None:
    scale = torch.tensor([0.1, 1e-30, 3e30], requires_grad=True)
    same = scale_gradient(scale, torch.tensor([0.25, 3.0, 0.5]))
    assert torch.equal(same, scale)
    same.backward(torch.tensor([4.0, 1.0, 2.0]))
    assert scale.grad is not None
    assert scale.grad.tolist() == [1.0, 3.0, 1.0]


@pytest.mark.parametrize(
    ("dtype", "steps", "code"), [(torch.bfloat16, 100.6, 101.0), (torch.float16, 201.49, 201.0)]
)
def test_half_precision_is_rounded_in_float32(dtype: torch.dtype, steps: float, code: float) -> None:
    """bfloat16 has 8 binary digits, float16 has 11: x / S would be 100.5 and 201.5, and round to even."""
    x = torch.tensor([0.703125], dtype=dtype, requires_grad=True)
    scale, zero = torch.tensor(0.703125 / steps), torch.tensor(0.0)
    assert quantize(x, scale, zero, 0, 255).tolist() == [code]
    y = fake_quantize(x, scale, zero, 0, 255)
    assert y.dtype == dtype
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0]
