"""The integer Gaussian: its table's moments, its pairing with the float ε, and weights drawn from it."""

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import needs
from qbayes import noise
from qbayes.errors import BadInput
from qbayes.integer.arithmetic.epsilon_table import (
    GAUSSIAN_STEPS,
    epsilon_codes,
    epsilon_scale,
    epsilon_table,
    sample_codes,
)
from qbayes.integer.arithmetic.fixed_point import fixed_point
from qbayes.noise import c_kernel

BITS = range(2, 9)
# Φ⁻¹ at the middle of each of 4096 equally likely cells.
NORMAL = torch.tensor(stats.norm.ppf((torch.arange(4096).double() + 0.5).numpy() / 4096))
SEEDS = st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 2**32 - 1, 2**32, 2**63 - 1]))


def torch_only(patch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    patch.setattr(c_kernel, "kernel", lambda: None)


def philox_words(seed: int, site: int, draw: int, count: int) -> list[int]:
    row = torch.zeros(1, dtype=torch.int64)
    return noise.words(seed, site, torch.tensor([draw]), row, count)[0, 0].tolist()


@pytest.mark.parametrize("bits", BITS)
def test_table_is_the_quantised_normal(bits: int) -> None:
    """Odd, monotone, mean 0 and variance 1 exactly, in its range, and no entry near a tie of its rounding."""
    table = epsilon_table(bits).long()
    limit = 2 ** (bits - 1) - 1
    assert table.shape == (4096,)
    assert torch.equal(table, -table.flip(0))
    assert bool((table.diff() >= 0).all())
    assert int(table.max()) == limit
    assert int(table.sum()) == 0
    assert float((table.double() * epsilon_scale(bits)).square().mean()) == pytest.approx(1, abs=1e-14)
    steps = NORMAL / GAUSSIAN_STEPS[bits]
    assert torch.equal(table, steps.round().clamp(-limit, limit).long())
    # another libm must not tip an entry over: none is within 1e-6 of a tie.
    assert float((steps - steps.floor() - 0.5).abs().min()) > 1e-6


@pytest.mark.parametrize(("bits", "least"), [(2, 0.899), (3, 0.976), (4, 0.993), (5, 0.998), (8, 0.9999)])
def test_table_follows_the_normal(bits: int, least: float) -> None:
    together = torch.stack([epsilon_table(bits).double(), NORMAL])
    assert float(torch.corrcoef(together)[0, 1]) > least


def test_eight_bits_look_normal() -> None:
    values = epsilon_table(8).double() * epsilon_scale(8)
    assert float(values.pow(4).mean()) == pytest.approx(3, abs=0.02)
    # the distance of a step function from Φ is at least half its largest step.
    _, counts = torch.unique(epsilon_table(8), return_counts=True)
    distance = stats.kstest(values.numpy(), "norm").statistic
    assert distance < float(counts.max()) / 4096 / 2 + 1e-3


@pytest.mark.parametrize("bits", [0, 1, 9])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(BadInput, match="2 … 8"):
        epsilon_table(bits)


@given(
    seed=SEEDS,
    site=st.integers(0, 2**32 - 1),
    draws=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    bits=st.sampled_from(list(BITS)),
)
def test_codes_are_the_table_at_the_upper_12_bits(
    seed: int, site: int, draws: list[int], shape: tuple[int, ...], bits: int
) -> None:
    ids, count = torch.tensor(draws), math.prod(shape)
    codes = epsilon_codes(seed, site, ids, shape, bits)
    assert codes.shape == (len(draws), *shape)
    assert codes.dtype == torch.int8
    table = epsilon_table(bits).tolist()
    for row, draw in zip(codes, draws, strict=True):
        assert row.flatten().tolist() == [table[w >> 20] for w in philox_words(seed, site, draw, count)]
    with pytest.MonkeyPatch.context() as patch:
        torch_only(patch)
        assert torch.equal(epsilon_codes(seed, site, ids, shape, bits), codes)


def test_codes_belong_to_the_float_noise() -> None:
    draws = torch.arange(3)
    exact = noise.gaussians(5, 2, draws, (40, 50))
    for bits, least in [(8, 0.999), (4, 0.99), (2, 0.89)]:
        codes = epsilon_codes(5, 2, draws, (40, 50), bits).float() * epsilon_scale(bits)
        assert float(torch.corrcoef(torch.stack([codes.flatten(), exact.flatten()]))[0, 1]) > least
    eight = epsilon_codes(5, 2, draws, (40, 50), 8).float() * epsilon_scale(8)
    shallow = exact.abs() < 3
    assert float((eight - exact)[shallow].abs().max()) < 0.04


@pytest.mark.parametrize("bits", BITS)
def test_codes_come_at_the_rates_of_the_table(bits: int) -> None:
    codes = epsilon_codes(11, 3, torch.arange(4), (50_000,), bits).flatten()
    levels, counts = torch.unique(epsilon_table(bits), return_counts=True)
    seen = torch.stack([(codes == level).sum() for level in levels])
    assert stats.chisquare(seen.numpy(), (counts / 4096 * codes.numel()).double().numpy()).pvalue > 1e-3


def drawn_slowly(
    mean: Tensor | None,
    sigma: Tensor,
    m: list[int],
    s: list[int],
    limits: tuple[int, int],
    words: list[int],
    bits: int,
) -> list[int]:
    """The equation of the docstring, one element after the other, on Python's integers."""
    table, length, out = epsilon_table(bits).tolist(), sigma[0].numel(), []
    for i, (deviation, word) in enumerate(zip(sigma.flatten().tolist(), words, strict=True)):
        channel = i // length if len(m) > 1 else 0
        n = round(Fraction(deviation * table[word >> 20] * m[channel], 2 ** s[channel]))
        n = min(max(n, limits[0]), limits[1])
        if mean is not None:
            n = min(max(n + int(mean.flatten()[i]), limits[0]), limits[1])
        out.append(n)
    return out


@given(data=st.data())
def test_sampled_codes_follow_their_equation(data: st.DataObject) -> None:
    """Kernel, torch and threads against the slow equation; multipliers that make ties and saturate."""
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=3)))
    width, bits = data.draw(st.integers(2, 8)), data.draw(st.integers(2, 8))
    half = 2 ** (width - 1)
    limits = data.draw(st.sampled_from([(1 - half, half - 1), (-half, half - 1)]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    sigma = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    mean = torch.randint(limits[0], limits[1] + 1, shape, generator=generator, dtype=torch.int8)
    chosen_mean = data.draw(st.sampled_from([mean, None]))
    channels = data.draw(st.sampled_from([1, shape[0]]))
    multipliers = st.one_of(
        st.integers(-(2**31) + 1, 2**31 - 1), st.sampled_from([0, 1, -1, 3, 2**30, -(2**30), 2**31 - 1])
    )
    m = data.draw(st.lists(multipliers, min_size=channels, max_size=channels))
    s = data.draw(st.lists(st.integers(0, 62), min_size=channels, max_size=channels))
    seed, draw = data.draw(SEEDS), data.draw(st.integers(0, 2**32 - 1))
    scaling = (torch.tensor(m, dtype=torch.int32), torch.tensor(s, dtype=torch.uint8))

    def sample(threads: int) -> list[int]:
        codes = sample_codes(
            chosen_mean, sigma, *scaling, limits, bits=bits, seed=seed, site=9, draw=draw, threads=threads
        )
        assert codes.dtype == torch.int8
        assert codes.shape == shape
        return codes.flatten().tolist()

    words = philox_words(seed, 9, draw, sigma.numel())
    expected = drawn_slowly(chosen_mean, sigma, m, s, limits, words, bits)
    assert sample(1) == expected
    assert sample(3) == expected
    with pytest.MonkeyPatch.context() as patch:
        torch_only(patch)
        assert sample(1) == expected


@given(cuts=st.lists(st.integers(0, 1000), max_size=4), row=st.sampled_from([1, 7, 25, 64, 100, 250]))
def test_ranges_may_be_cut_anywhere(cuts: list[int], row: int) -> None:
    """Filling ranges one by one gives the tensor that one call gives; a call touches its range only."""
    kernel = c_kernel.kernel()
    needs.require(kernel, needs.COMPILER)
    shape = (1000 // row, row)
    count = math.prod(shape)
    generator = torch.Generator().manual_seed(row)
    sigma = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    mean = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
    m = torch.randint(-(2**31) + 1, 2**31, (shape[0],), generator=generator).int()
    s = torch.randint(34, 44, (shape[0],), generator=generator).to(torch.uint8)
    arguments = (mean, sigma, m, s, (-127, 127))
    whole = sample_codes(*arguments, bits=8, seed=3, site=1, draw=2)
    parts = torch.full(shape, 99, dtype=torch.int8)
    fill = kernel.sampler(parts, *arguments, epsilon_table(8), 3, 1, 2)
    ends = sorted({0, count, *(cut for cut in cuts if cut < count)})
    for first, end in itertools.pairwise(ends):
        before = parts.clone()
        fill(first, end - first)
        changed = (parts != before).flatten().nonzero().flatten()
        assert bool(((changed >= first) & (changed < end)).all())
    assert torch.equal(parts, whole)


def test_sampled_weights_have_their_mean_and_deviation() -> None:
    """w = μ + σ ε on a grid fine enough: mean μ_q, deviation σ_q · M / scale, by their standard errors."""
    count, sigma_code, mean_code = 200_000, 100, 5
    sigma = torch.full((2, count), sigma_code, dtype=torch.uint8)
    mean = torch.full((2, count), mean_code, dtype=torch.int8)
    wanted = torch.tensor([10.0, 3.0], dtype=torch.float64)  # deviations in steps of the weight
    m, s = fixed_point(wanted / sigma_code * epsilon_scale(8))
    drawn = sample_codes(mean, sigma, m, s, (-127, 127), bits=8, seed=1, site=4, draw=0).double()
    for row, deviation in zip(drawn, wanted.tolist(), strict=True):
        # rounding to a step adds 1/12 of variance.
        spread = math.sqrt(deviation**2 + 1 / 12)
        assert abs(float(row.mean()) - mean_code) < 4 * spread / math.sqrt(count)
        assert abs(float(row.std()) / spread - 1) < 4 / math.sqrt(2 * count) + 2e-3


def test_switched_off_kernel_gives_the_same_codes() -> None:
    code = (
        "import torch\n"
        "from qbayes.noise import c_kernel\n"
        "from qbayes.integer.arithmetic.epsilon_table import epsilon_codes\n"
        "assert c_kernel.kernel() is None\n"
        "print(epsilon_codes(7, 1, torch.arange(2), (33,), 8).tolist())\n"
    )
    source = Path(c_kernel.__file__).parents[1]
    environment = {**os.environ, "QBAYES_NOISE_KERNEL": "off", "PYTHONPATH": str(source)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str(epsilon_codes(7, 1, torch.arange(2), (33,), 8).tolist())
