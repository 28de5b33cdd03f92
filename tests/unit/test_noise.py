"""The noise: known answers of Philox, equal bits from C and torch, and the distributions it must have."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.noise import c_kernel

SEEDS = st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63 - 1]))
WORDS = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([0, 2**31 - 1, 2**31, 2**32 - 1]))


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    monkeypatch.setattr(c_kernel, "kernel", lambda: None)


def as_words(*numbers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, c, d = (torch.tensor([n]) for n in numbers)
    return a, b, c, d


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    seed = key[0] | key[1] << 32
    assert tuple(int(word) for word in noise.philox(seed, as_words(*counter))) == expected


@pytest.mark.parametrize("threshold", [1, 13107, 65535])
def test_kernel_gives_the_known_answer(threshold: int) -> None:
    """Counter 0 and key 0 through the compiled kernel, read off its masks and uniforms."""
    words = torch.tensor([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
    draw = torch.zeros(1, dtype=torch.int64)
    mask = noise.keep_masks(draw, 0, 0, 0, 1, 4, threshold)
    assert torch.equal(mask[0, 0], words >> 16 >= threshold)
    uniform = noise.uniforms(0, 0, draw, 4)[0]
    assert torch.equal(uniform.double(), ((words >> 9).double() + 0.5) / 2**23)


def test_a_compiler_is_there_to_be_compared_with() -> None:
    """Where a compiler exists the kernel must build: otherwise the comparison below compares nothing."""
    if shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        assert c_kernel.kernel() is not None


@given(
    seed=SEEDS,
    site=WORDS,
    draws=st.lists(WORDS, min_size=1, max_size=3),
    first_row=st.one_of(st.integers(0, 100), st.integers(2**31 - 3, 2**31 + 3), st.just(2**32 - 2)),
    rows=st.integers(1, 4),
    elements=st.integers(1, 150),
    threshold=st.integers(0, 65536),
)
def test_kernel_equals_torch(
    seed: int, site: int, draws: list[int], first_row: int, rows: int, elements: int, threshold: int
) -> None:
    ids = torch.tensor(draws)
    masks = noise.keep_masks(ids, seed, site, first_row, rows, elements, threshold)
    uniforms = noise.uniforms(seed, site, ids, elements)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c_kernel, "kernel", lambda: None)
        assert torch.equal(noise.keep_masks(ids, seed, site, first_row, rows, elements, threshold), masks)
        assert torch.equal(noise.uniforms(seed, site, ids, elements), uniforms)
    assert masks.shape == (len(draws), rows, elements)
    assert float(uniforms.min()) > 0
    assert float(uniforms.max()) < 1


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.9])
def test_masks_are_bernoulli(rate: float) -> None:
    """Every row's, every element's and every draw's share within 5 deviations of the binomial."""
    threshold = noise.keep_threshold(rate)
    kept = 1 - threshold / 2**16
    masks = noise.keep_masks(torch.arange(40), 3, 5, 0, 50, 60, threshold).double()
    for axes in [(0, 1, 2), (0, 1), (0, 2), (1, 2)]:
        share = masks.mean(axes)
        count = masks.numel() / share.numel()
        assert float((share - kept).abs().max()) < 5 * (kept * (1 - kept) / count) ** 0.5


def test_gaussians_are_standard_normal() -> None:
    sample = noise.gaussians(11, 2, torch.arange(4), (250, 200)).double().flatten()
    n = sample.numel()
    assert abs(float(sample.mean())) < 4 / n**0.5
    assert abs(float(sample.var()) - 1) < 4 * (2 / n) ** 0.5
    assert abs(float((sample**3).mean())) < 4 * (15 / n) ** 0.5
    assert abs(float((sample**4).mean()) - 3) < 4 * (96 / n) ** 0.5
    assert stats.kstest(sample.numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
def test_quantile_function_is_exact_to_the_tails(seed: int) -> None:
    uniform = noise.uniforms(seed, 1, torch.tensor([0]), 20000)
    extremes = torch.tensor([0.5, 2**23 - 0.5, 2**22 - 0.5, 2**22 + 0.5]) / 2**23
    for u in (uniform[0], extremes):
        exact = stats.norm.ppf(u.double().numpy())
        found = torch.special.ndtri(u).double().numpy()
        assert abs(found - exact).max() < 2e-5


def test_keys_are_independent() -> None:
    """Sites, draws, rows and seeds: no two give correlated noise."""
    n = 4000
    draw = torch.tensor([0])

    def mask(seed: int = 0, site: int = 0, draw: int = 0, row: int = 0) -> Tensor:
        return noise.keep_masks(torch.tensor([draw]), seed, site, row, 1, n, 1 << 15).double().flatten()

    keys = [{}, {"seed": 1}, {"seed": 2**32}, {"site": 1}, {"draw": 1}, {"row": 1}, {"row": 2**31}]
    keys += [{"site": 1, "draw": 1}, {"draw": 1, "row": 1}, {"seed": 1, "site": 1}]
    together = torch.stack([mask(**key) for key in keys])
    correlation = torch.corrcoef(together) - torch.eye(len(keys))
    assert float(correlation.abs().max()) < 5 / n**0.5
    weights = torch.stack([noise.gaussians(0, site, draw, (n,)).flatten() for site in range(8)])
    assert float((torch.corrcoef(weights) - torch.eye(8)).abs().max()) < 5 / n**0.5


def test_neighbouring_elements_are_independent() -> None:
    masks = noise.keep_masks(torch.arange(500), 4, 0, 0, 10, 12, 1 << 15).double().flatten(0, 1)
    correlation = torch.corrcoef(masks.T) - torch.eye(12)
    assert float(correlation.abs().max()) < 5 / len(masks) ** 0.5


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5, "0", None])
def test_bad_seeds(seed: object) -> None:
    with pytest.raises(BadInput, match="seed"):
        noise.check_seed(seed)  # pyright: ignore[reportArgumentType]


def test_vmap_equals_a_loop() -> None:
    draws = torch.tensor([3, 0, 2**32 - 1])
    together = torch.vmap(lambda d: noise.keep_masks(d, 9, 1, 4, 5, 7, 30000))(draws)
    alone = torch.stack([noise.keep_masks(d, 9, 1, 4, 5, 7, 30000) for d in draws])
    assert torch.equal(together, alone)
    twice = torch.vmap(torch.vmap(lambda d: noise.keep_masks(d, 9, 1, 4, 5, 7, 30000)))(draws[None])
    assert torch.equal(twice[0], alone)


@pytest.mark.usefixtures("torch_only")
def test_vmap_equals_a_loop_without_a_kernel() -> None:
    test_vmap_equals_a_loop()


def test_streams_nest_and_end() -> None:
    outer, inner = noise.Stream(1, torch.tensor(0)), noise.Stream(2, torch.tensor(0))
    assert noise.current() is None
    with noise.streaming(outer):
        with noise.streaming(inner):
            assert noise.current() is inner
        assert noise.current() is outer
        with pytest.raises(ZeroDivisionError), noise.streaming(inner):
            _ = 1 / 0
        assert noise.current() is outer
    assert noise.current() is None
