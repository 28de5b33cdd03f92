"""How large sums can become: the proof's numbers against the worst of all codes, tried one by one.

The oracles know the equations of the ops and nothing of ``bounds``: they try every code of the inputs, every
code that a weight can be drawn to, and every entry of the table of ε.
"""

from fractions import Fraction
from typing import Literal

import pytest
import torch
from torch import Tensor

from qbayes.integer.arithmetic.epsilon_table import epsilon_table
from qbayes.integer.backends.onednn.conv_linear import int8_form
from qbayes.integer.ops import Add, Affine, Concat, Conv, Grids, Linear, Mul, Op, Rescale, Weights
from qbayes.integer.ops.base import Bound, reach

BITS = 3
# a zero-point at each end, so that all codes lie on one side of it, and one between.
ZEROS = [0, 7, 2]


def furthest(zero: int, bits: int = BITS) -> int:
    return max(abs(code - zero) for code in range(1 << bits))


def grids(*zeros: int) -> Grids:
    return Grids(zeros, 0, (BITS,) * len(zeros), 8)


def bound(op: Op, constants: dict[str, Tensor], held: Grids) -> Bound:
    return op.bound(constants, held, [(4, 1)] * len(held.zeros))


@pytest.mark.parametrize("zero", ZEROS)
def test_the_reach_is_that_of_the_furthest_code(zero: int) -> None:
    assert reach(BITS, zero) == furthest(zero)


@pytest.mark.parametrize("one", ZEROS)
@pytest.mark.parametrize("two", ZEROS)
@pytest.mark.parametrize("multipliers", [(1000, 700), (1000, -700), (-1000, -700)])
def test_ops_of_two_inputs(one: int, two: int, multipliers: tuple[int, int]) -> None:
    held, ms = grids(one, two), {"multipliers": torch.tensor(multipliers)}
    products = [abs(m) * furthest(zero) for m, zero in zip(multipliers, (one, two), strict=True)]
    assert bound(Add("y", ("a", "b"), "y"), ms, held) == Bound(0, sum(products))
    assert bound(Concat("y", ("a", "b"), "y", axis=1), ms, held) == Bound(0, max(products))
    total = furthest(one) * furthest(two)
    scaled = {"multiplier": torch.tensor(multipliers[1:])}
    assert bound(Mul("y", ("a", "b"), "y"), scaled, held) == Bound(total, 700 * total)


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_ops_of_one_input(zero: int, sign: int) -> None:
    far = furthest(zero)
    scaled = {"multiplier": torch.tensor([sign * 900])}
    assert bound(Rescale("y", ("x",), "y"), scaled, grids(zero)) == Bound(0, 900 * far)
    multiplier, offset = sign * torch.tensor([900, 5, -900, 5]), sign * torch.tensor([-50, 8000, 60, -9000])
    # the largest of every channel: with each sign of both, and with offsets far above the products.
    worst = max(abs(m) * far + abs(o) for m, o in zip(multiplier.tolist(), offset.tolist(), strict=True))
    constants = {"multiplier": multiplier, "offset": offset}
    assert bound(Affine("y", ("x",), "y", channels=4), constants, grids(zero)) == Bound(0, worst)
    quiet = constants | {"offset": torch.zeros(4, dtype=torch.int64)}
    assert bound(Affine("y", ("x",), "y", channels=4), quiet, grids(zero)) == Bound(0, 900 * far)


FAN_IN = 6


def gaussian(grids: int, **more: object) -> Linear:
    weights = Weights("gaussian", 3, affine=grids == 0, per_channel=grids != 0, grids=grids, **more)  # type: ignore[arg-type]
    return Linear("y", ("x",), "y", weights, FAN_IN, 2)


def constants_of(grids: int, *, bias: tuple[int, int] = (0, 0), zero: int = 0) -> dict[str, Tensor]:
    means = torch.tensor([[1] * FAN_IN, [-2] * FAN_IN], dtype=torch.int8)
    found = {"mean": means, "bias": torch.tensor(bias, dtype=torch.int32)}
    if grids == 0:
        found["weight_zero"] = torch.tensor([zero], dtype=torch.int8)
    if grids == 2:
        found["second_multiplier"] = torch.tensor([-11, 7])
    return found | {"multiplier": torch.tensor([-5, 3] if grids else [-5])}


@pytest.mark.parametrize("zero", [-4, -1, 0, 3])
def test_sampled_weights_reach_both_ends_of_their_codes(zero: int) -> None:
    """Affine weights of 3 bits are drawn to −4 … 3: either end may be the further from their zero-point."""
    far = max(abs(code - zero) for code in range(-4, 4))
    for x_zero in ZEROS:
        total = FAN_IN * far * furthest(x_zero)
        assert bound(gaussian(0), constants_of(0, zero=zero), grids(x_zero)) == Bound(total, 5 * total)


def test_weights_that_are_drawn_on_one_grid_reach_its_ends_whatever_their_means() -> None:
    """Symmetric weights of 3 bits are clamped to −3 … 3."""
    total = FAN_IN * 3 * furthest(2)
    assert bound(gaussian(1), constants_of(1), grids(2)) == Bound(total, 5 * total)


def test_two_accumulators_are_bounded_each_and_their_products_together() -> None:
    means, noise = [FAN_IN * 1 * 5, FAN_IN * 2 * 5], FAN_IN * 3 * 5
    found = bound(gaussian(2), constants_of(2), grids(2))
    assert found == Bound(noise, max(5 * means[0] + 11 * noise, 3 * means[1] + 7 * noise))
    biased = bound(gaussian(2), constants_of(2, bias=(0, 1000)), grids(2))
    assert biased.accumulator == means[1] + 1000


def drawn_biases(bias: int, sigma: int, multiplier: int, shift: int, bits: int) -> list[int]:
    """``b + round(σ e m / 2^s)`` for every entry of the table of ε; ties to even."""
    return [
        bias + round(Fraction(sigma * e * multiplier, 1 << shift))
        for e in epsilon_table(bits).unique().tolist()
    ]


@pytest.mark.parametrize("noise_bits", [2, 5, 8])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("bias", [(300, -20_000), (-300, 20_000), (0, 0)])
def test_a_drawn_bias_is_larger_than_its_mean(bias: tuple[int, int], sign: int, noise_bits: int) -> None:
    """The noise of a folded norm with a negative factor has a negative multiplier."""
    op = gaussian(2, site=0, bias_site=1, noise_bits=noise_bits)
    scaling = [(200, sign * 12_345, 3), (255, -sign * 999, 2)]
    sigma, multiplier, shift = (torch.tensor(column) for column in zip(*scaling, strict=True))
    constants = constants_of(2, bias=bias) | {
        "bias_sigma": sigma.to(torch.uint8),
        "bias_noise_multiplier": multiplier.to(torch.int32),
        "bias_noise_shift": shift.to(torch.uint8),
    }
    worst = [
        max(map(abs, drawn_biases(b, *scale, noise_bits))) for b, scale in zip(bias, scaling, strict=True)
    ]
    sums = [FAN_IN * size * 5 + most for size, most in zip((1, 2), worst, strict=True)]
    # a table may end one code before the last that its bits have.
    found = bound(op, constants, grids(2)).accumulator
    assert max(sums) <= found <= max(sums) * Fraction(128, 126)
    limit = op.weights.bias_limit(constants).tolist()
    assert limit == worst


def test_a_bias_without_noise_is_bounded_by_itself() -> None:
    op = gaussian(1)
    constants = constants_of(1, bias=(-20_000, 300))
    assert bound(op, constants, grids(2)).accumulator == FAN_IN * 3 * 5 + 20_000
    assert op.weights.bias_limit(constants).tolist() == [20_000, 300]


def exact_case(case: str) -> tuple[int, Tensor, Tensor]:
    """Zero-point, rows and weights whose sums are odd numbers above 2^24, for each way to miss that."""
    fan_in = 2003
    generator = torch.Generator().manual_seed(0)

    def one_of(low: int, high: int) -> Tensor:
        return torch.randint(low, high + 1, (2, fan_in), generator=generator)

    large, small = one_of(126, 127), torch.cat([torch.ones(1, fan_in).long(), one_of(126, 127)[:1]])
    sign = torch.where(torch.arange(fan_in) % 2 == 0, 1, -1)
    agreeing = torch.where(sign > 0, one_of(254, 255), one_of(0, 1))
    return {
        "codes below": (200, one_of(0, 1), large),
        "codes above": (55, one_of(254, 255), large),
        "a small channel first": (200, one_of(0, 1), small),
        "a small channel last": (200, one_of(0, 1), small.flip(0)),
        "weights of both signs": (128, agreeing, sign * large),
        "weights below 0": (55, one_of(254, 255), -large),
    }[case]


CASES = (
    *("codes below", "codes above", "a small channel first", "a small channel last"),
    *("weights of both signs", "weights below 0"),
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_the_reference_is_exact_beyond_what_float32_holds(kind: str, case: str) -> None:
    zero, x, w = exact_case(case)
    fan_in, weights, held = x.shape[1], Weights("point", 8), Grids((zero,), 0, (8,), 8)
    wanted = [
        [sum((q - zero) * k for q, k in zip(row, channel, strict=True)) for channel in w.tolist()]
        for row in x.tolist()
    ]
    assert max(abs(total) for row in wanted for total in row) > 1 << 24
    if kind == "linear":
        op = Linear("y", ("x",), "y", weights, fan_in, 2)
        sums = op.sums(x.to(torch.uint8), held, w.to(torch.int8), 0)
    else:
        one = (1,)
        convolution = Conv("y", ("x",), "y", weights, fan_in, 2, one, one, (0,), one)
        sums = convolution.sums(x[..., None].to(torch.uint8), held, w[..., None].to(torch.int8), 0)[..., 0]
    assert sums.long().tolist() == wanted


@pytest.mark.parametrize("zero", [-128, -1, 0, 90, 127])
@pytest.mark.parametrize("kind", ["point", "gaussian"])
def test_int8_parts_hold_the_largest_weight(kind: Literal["point", "gaussian"], zero: int) -> None:
    """Centred weights of 8 bits may need 9: they come in two parts, or int8 is not used."""
    sampled = kind == "gaussian"
    weights = Weights(kind, 8, affine=True, per_channel=False, grids=0 if sampled else 1)
    op = Linear("y", ("x",), "y", weights, 4, 1)
    for code in (-128, -127, -2, 0, 126, 127):
        constants = {"weight": torch.tensor([[0, code, 0, zero]], dtype=torch.int8)}
        form = int8_form(op, grids(0), constants | {"weight_zero": torch.tensor([zero])}, (4,))
        # of all draws no weight lies further than the end of the codes and the zero-point together.
        worst = max(1, *(abs(q - zero) for q in (range(-128, 128) if sampled else (0, code, zero))))
        assert worst <= form.largest <= (128 + abs(zero) if sampled else worst)
        assert form.why is not None or form.largest <= form.parts * form.limit
