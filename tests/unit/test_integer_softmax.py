"""Softmax and entropy in integers: within 1e-3 of float, and closer, over scales and numbers of classes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qbayes.errors import BadInput
from qbayes.integer.statistics.softmax import ONE, entropy, exp_table, log_table, logarithm, mean, softmax

SCALES = st.floats(1e-3, 2.0)


@given(SCALES, st.integers(1, 1000), st.integers(2, 8), st.integers(0, 10**6))
def test_softmax_and_entropy_are_those_of_float(scale: float, classes: int, bits: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**bits, (5, classes), generator=generator, dtype=torch.uint8)
    probabilities = softmax(codes, exp_table(scale, bits))
    assert probabilities.dtype == torch.int64
    exact = torch.softmax(codes.double() * scale, -1)
    assert float((probabilities.double() / ONE - exact).abs().max()) < 1e-7
    assert bool(((probabilities.sum(-1) - ONE).abs() <= classes / 2).all())
    exact_entropy = torch.special.entr(exact).sum(-1)
    assert float((entropy(probabilities).double() / ONE - exact_entropy).abs().max()) < 1e-3


@given(st.integers(1, 30), st.integers(2, 20), st.integers(0, 10**6))
def test_predictive_mean_and_mutual_information(draws: int, classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (draws, 4, classes), generator=generator, dtype=torch.uint8)
    each = softmax(codes, exp_table(0.05, 8))
    averaged = mean(each)
    exact = torch.softmax(codes.double() * 0.05, -1)
    assert float((averaged.double() / ONE - exact.mean(0)).abs().max()) < 1e-6
    information = entropy(averaged) - mean(entropy(each))
    exact_information = torch.special.entr(exact.mean(0)).sum(-1) - torch.special.entr(exact).sum(-1).mean(0)
    assert float((information.double() / ONE - exact_information).abs().max()) < 1e-4


def test_logarithm_over_all_sizes_of_number() -> None:
    numbers = torch.cat(
        [torch.arange(1, 5000), ONE - torch.arange(5000), (1.003 ** torch.arange(5500)).long()]
    )
    exact = (numbers.double() / ONE).log()
    assert float((logarithm(numbers).double() / ONE - exact).abs().max()) < 5e-6
    assert logarithm(torch.tensor([ONE, 0])).tolist() == [0, 0]


def test_known_answers() -> None:
    """Equal logits are uniform, ln 4 nats; a certain class has no entropy; the zero-point cancels."""
    table = exp_table(0.1, 8)
    uniform = softmax(torch.full((1, 4), 17, dtype=torch.uint8), table)
    assert uniform.tolist() == [[ONE // 4] * 4]
    assert abs(int(entropy(uniform)) - round(math.log(4) * ONE)) <= 2
    certain = softmax(torch.tensor([[255, 0]], dtype=torch.uint8), exp_table(2.0, 8))
    assert certain.tolist() == [[ONE, 0]]
    assert entropy(certain).tolist() == [0]
    codes = torch.tensor([[3, 9, 100]], dtype=torch.uint8)
    assert torch.equal(softmax(codes, table), softmax(codes + 50, table))


def test_tables_are_what_their_equations_say() -> None:
    table = exp_table(0.5, 2)
    assert table.dtype == log_table().dtype == torch.int32
    assert table.tolist() == [round(2**30 * math.exp(-d / 2)) for d in range(4)]
    assert log_table()[[0, 128, 256]].tolist() == [0, round(math.log(1.5) * ONE), round(math.log(2) * ONE)]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_bad_scales_are_refused(scale: float) -> None:
    with pytest.raises(BadInput, match="scale"):
        exp_table(scale, 8)
