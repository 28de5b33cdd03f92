"""Windows of average pooling against torch's own poolings, over all of their options."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from qbayes.integer.arithmetic.pooling_windows import (
    all_windows,
    divisors,
    largest_window,
    pooling_length,
    window_sums,
)


@st.composite
def poolings(draw: st.DrawFn) -> dict[str, Any]:
    """Two axes with options that torch accepts: a padding of at most half the kernel, a window that fits."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    lengths = tuple(draw(st.integers(max(1, k - 2 * p), 12)) for k, p in zip(kernel, padding, strict=True))
    return {
        "lengths": lengths,
        "kernel": kernel,
        "stride": draw(st.tuples(st.integers(1, 4), st.integers(1, 4))),
        "padding": padding,
        "ceil_mode": draw(st.booleans()),
    }


@given(poolings(), st.booleans(), st.sampled_from([None, 1, 7]))
def test_averages_are_those_of_torch(pooling: dict[str, Any], include: bool, divisor: int | None) -> None:
    lengths, *geometry = pooling.values()
    x = torch.randint(-200, 200, (2, 3, *lengths)).double()
    expected = F.avg_pool2d(x, *geometry, include, divisor)
    sums = window_sums(x, all_windows(lengths, *geometry))
    torch.testing.assert_close(sums / divisors(lengths, *geometry, include, divisor), expected)
    if divisor is None:
        ones = F.avg_pool2d(torch.ones(1, 1, *lengths), *geometry, include)
        # where padding does not count the mean of ones is one; where it does, it is covered / divisor.
        assert bool((ones <= 1).all())


@given(poolings(), st.booleans())
def test_averages_along_one_axis(pooling: dict[str, Any], include: bool) -> None:
    lengths, kernel, stride, padding, ceil_mode = (
        value[:1] if isinstance(value, tuple) else value for value in pooling.values()
    )
    x = torch.randint(-200, 200, (2, 3, *lengths)).double()
    expected = F.avg_pool1d(x, kernel, stride, padding, ceil_mode, include)
    sums = window_sums(x, all_windows(lengths, kernel, stride, padding, ceil_mode))
    torch.testing.assert_close(
        sums / divisors(lengths, kernel, stride, padding, ceil_mode, include), expected
    )


@given(st.tuples(st.integers(1, 15), st.integers(1, 15)), st.tuples(st.integers(1, 15), st.integers(1, 15)))
def test_adaptive_averages_are_those_of_torch(lengths: tuple[int, int], out: tuple[int, int]) -> None:
    x = torch.randint(-200, 200, (2, 3, *lengths)).double()
    nothing = ((1, 1), (1, 1), (0, 0))
    sums = window_sums(x, all_windows(lengths, *nothing, adaptive=out))
    expected = F.adaptive_avg_pool2d(x, out)
    torch.testing.assert_close(sums / divisors(lengths, *nothing, adaptive=out), expected)


@given(poolings(), st.integers(1, 3))
def test_max_pooling_has_as_many_windows(pooling: dict[str, Any], dilation: int) -> None:
    lengths, kernel, stride, padding, ceil_mode = pooling.values()
    spans = [dilation * (k - 1) + 1 for k in kernel]
    assume(all(n + 2 * p >= span for n, p, span in zip(lengths, padding, spans, strict=True)))
    pooled = F.max_pool2d(torch.zeros(1, 1, *lengths), kernel, stride, padding, dilation, ceil_mode)
    got = [
        pooling_length(n, k, s, p, dilation, ceil_mode)
        for n, k, s, p in zip(lengths, kernel, stride, padding, strict=True)
    ]
    assert got == list(pooled.shape[2:])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_sums_are_exact_and_run_under_vmap(dtype: torch.dtype) -> None:
    windows = [[(0, 3), (2, 5)], [(0, 4), (3, 4)]]
    x = torch.randint(-255, 256, (6, 2, 3, 5, 4)).to(dtype)
    slow = torch.stack([x[..., a:b, c:d].sum((-2, -1)) for a, b in windows[0] for c, d in windows[1]], dim=-1)
    expected = slow.view(6, 2, 3, 2, 2)
    assert torch.equal(window_sums(x, windows), expected)
    assert torch.equal(torch.vmap(lambda row: window_sums(row, windows))(x), expected)
    assert largest_window(windows) == 12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("whole", [(True, True), (True, False), (False, True)])
@given(lengths=st.tuples(st.integers(1, 9), st.integers(2, 9)), seed=st.integers(0, 2**16))
def test_one_window_over_an_axis_has_the_sum_of_running_sums(
    whole: tuple[bool, bool], dtype: torch.dtype, lengths: tuple[int, int], seed: int
) -> None:
    """Asked for twice, the same window takes the way of all others; bytes wrap in both."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-255, 256, (2, 3, *lengths), generator=generator).to(dtype)
    parts = [[(0, n)] if one else [(0, n // 2), (n // 2, n)] for one, n in zip(whole, lengths, strict=True)]
    twice = [along * (2 if len(along) == 1 else 1) for along in parts]
    running = window_sums(x, twice)[:, :, : len(parts[0]), : len(parts[1])]
    found = window_sums(x, parts)
    assert found.dtype == dtype
    assert torch.equal(found, running)
    assert torch.equal(torch.vmap(lambda row: window_sums(row, parts))(x), running)


def test_one_window_over_a_single_axis() -> None:
    x = torch.randint(-255, 256, (4, 3, 7))
    assert torch.equal(window_sums(x, [[(0, 7)]]), x.sum(2, keepdim=True))
    # one window, but not over all there is.
    assert torch.equal(window_sums(x, [[(0, 6)]]), x[..., :6].sum(2, keepdim=True))
    assert torch.equal(window_sums(x, [[(1, 7)]]), x[..., 1:].sum(2, keepdim=True))
