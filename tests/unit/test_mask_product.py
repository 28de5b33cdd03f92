"""The paper's mask in closed form: when S · round(1 / S) is nothing, and how ranges drive S there."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from qbayes.quant.layers.elementwise import QuantMaskProduct
from qbayes.quant.quantizer import Quantizer

BITS = st.integers(3, 8)


def product(bits: int) -> QuantMaskProduct:
    return QuantMaskProduct(Quantizer(bits, rule="minmax", signed=False, symmetric=False))


def with_scale(scale: float, bits: int = 8) -> QuantMaskProduct:
    """The layer after it saw a range of 2^bits − 1 steps of this size."""
    layer = product(bits)
    layer.out.calibrate(torch.tensor([0.0, scale * (2**bits - 1)]))
    return layer


@given(st.floats(0.02, 20), BITS)
def test_keep_becomes_the_nearest_multiple_of_the_scale(scale: float, bits: int) -> None:
    layer = with_scale(scale, bits)
    got, _ = layer.out.grid()
    steps = min(round(1 / float(got)), 2**bits - 1)
    assert float(layer.gain()) == pytest.approx(float(got) * steps, rel=1e-6)


@given(st.floats(0.02, 20))
def test_keep_is_nothing_from_a_scale_of_two_on(scale: float) -> None:
    """And below it is within a third of 1, or S itself: nothing between."""
    assume(abs(scale - 2) > 1e-5)
    gain = float(with_scale(scale).gain())
    assert (gain == 0) == (scale > 2)
    if scale < 2 / 3 - 1e-6 and scale > 1 / 200:
        assert 2 / 3 < gain < 4 / 3 + 1e-6
    elif scale < 2:
        assert gain == pytest.approx(scale, rel=1e-6) or scale == pytest.approx(2 / 3, abs=1e-5)


def test_a_half_rounds_to_nothing() -> None:
    assert float(with_scale(2.0).gain()) == 0
    assert float(with_scale(1.999).gain()) == pytest.approx(1.999)


@given(BITS, st.floats(0.05, 5))
def test_ranges_from_all_rows_at_once_lose_a_product_above_two_steps_a_code(bits: int, step: float) -> None:
    """S is then the largest product over the codes: nothing is kept where that product is 2 (2^b − 1)."""
    assume(abs(step - 2) > 1e-5)
    layer = product(bits)
    values = torch.linspace(0, step * (2**bits - 1), 50)
    layer.out.calibrate(values * layer.gain())
    assert bool((layer.simulate(values) == 0).all()) == (step > 2)


@given(BITS, st.floats(0.05, 5))
def test_ranges_set_behind_every_batch_lose_it_above_one(bits: int, step: float) -> None:
    """A mask of S > ⅔ multiplies by S: what the next range sees has grown by it, if a step is above 1.

    From S = c the ranges are c, c², c³, … until 2 is passed; with c ≤ 1 they never get there.
    """
    assume(abs(step - 1) > 0.02)
    layer = product(bits)
    values = torch.linspace(0, step * (2**bits - 1), 50)
    batches = 1 + math.ceil(math.log(2) / math.log(step)) if 1 < step < 2 else 60
    for _ in range(batches):
        layer.out.calibrate(values * layer.gain())
    assert (float(layer.gain()) == 0) == (step > 1)
