"""Exact integers in float lanes: whatever the options, under vmap and autocast, and where a kernel rounds."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from qbayes.integer.arithmetic import exact_matmul
from qbayes.integer.arithmetic.exact_matmul import dirty_memory, exact_conv, exact_linear

LIMITS = {"x_limit": 255, "w_limit": 255}


@pytest.fixture
def fresh_checks() -> Iterator[None]:
    """No shape is known to be exact yet, and none is remembered."""
    kept = dict(exact_matmul._verified)
    exact_matmul._verified.clear()
    yield
    exact_matmul._verified.clear()
    exact_matmul._verified.update(kept)


def codes(*shape: int) -> Tensor:
    return torch.randint(-255, 256, shape).float()


@given(
    axes=st.sampled_from([1, 2]),
    groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
)
def test_convolution_is_that_of_float64(
    axes: int, groups: int, per_group: tuple[int, int], kernel: int, stride: int, padding: int, dilation: int
) -> None:
    x = codes(2, groups * per_group[0], *(7,) * axes)
    w = codes(groups * per_group[1], per_group[0], *(kernel,) * axes)
    geometry = ((stride,) * axes, (padding,) * axes, (dilation,) * axes, groups)
    got = exact_conv(x, w, *geometry, **LIMITS)
    convolve: Callable[..., Tensor] = F.conv1d if axes == 1 else F.conv2d
    assert got.dtype == torch.float32
    assert torch.equal(got.long(), convolve(x.double(), w.double(), None, *geometry).long())


@given(
    axes=st.sampled_from([1, 2]),
    groups=st.integers(1, 2),
    geometry=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2)),
    most=st.integers(1, 4000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_convolution_in_pieces_is_the_whole(
    axes: int, groups: int, geometry: tuple[int, int, int, int], most: int, dtype: torch.dtype
) -> None:
    """However small the pieces: rows, then bands along one axis and the other."""
    kernel, stride, padding, dilation = geometry
    x = codes(3, groups * 2, *(9, 7)[:axes]).to(dtype)
    w = codes(groups, 2, *(kernel,) * axes).to(dtype)
    placing = ((stride,) * axes, (padding,) * axes, (dilation,) * axes, groups)
    convolve: Callable[..., Tensor] = F.conv1d if axes == 1 else F.conv2d
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_matmul, "LARGEST_COLUMNS", most)
        got = exact_matmul.conv_in_pieces(x, w, *placing)
    assert got.dtype == dtype
    assert torch.equal(got, convolve(x, w, None, *placing))


# (input, weight, stride, padding, dilation): one channel, an output of width 1 behind a stride
THIN = [
    ((9, 1, 8, 4), (3, 1, 4, 3), (1, 2), (0, 0), (1, 1)),
    ((3, 1, 4, 1), (8, 1, 3, 5), (1, 3), (0, 2), (1, 1)),
    ((9, 1, 5, 3), (3, 1, 1, 5), (1, 3), (0, 1), (1, 1)),
    ((18, 1, 3, 7), (1, 1, 1, 5), (1, 3), (0, 0), (3, 1)),
    ((1, 1, 7, 4), (1, 1, 5, 4), (1, 3), (2, 1), (1, 1)),
]


@pytest.mark.parametrize("case", THIN)
def test_thin_convolutions_are_right_in_every_layout(case: tuple[tuple[int, ...], ...]) -> None:
    """oneDNN reads memory that it never wrote where such an input lies channels last."""
    shape, weight, *placing = case
    x, w = codes(*shape), codes(*weight)
    height, width = shape[2:]
    channels_last = x.as_strided(shape, (height * width, 1, width, 1))
    want = F.conv2d(x.double(), w.double(), None, *placing)
    for laid in (x, channels_last):
        for byte in (0, 0x55, 0x7F):
            with dirty_memory(byte):
                got = exact_conv(laid, w, *placing, 1, **LIMITS)
            assert torch.equal(got.double(), want)


def test_a_kernel_that_reads_memory_it_never_wrote_is_not_trusted() -> None:
    def careless(x: Tensor, w: Tensor) -> Tensor:
        right = F.conv2d(x, w)
        return right if x.dtype == torch.float64 else right + torch.empty(1 << 16).sum()

    x, w = codes(2, 3, 5, 5), codes(2, 3, 3, 3)
    assert not exact_matmul._agrees(careless, x, w, 255)
    assert exact_matmul._agrees(F.conv2d, x, w, 255)


def test_a_kernel_is_checked_in_the_layout_that_it_will_meet(fresh_checks: None) -> None:
    def wrong_channels_last(x: Tensor, w: Tensor) -> Tensor:
        found = F.conv2d(x, w)
        last = x.dtype == torch.float32 and x.stride(1) == 1
        return found + 1 if last else found

    x, w = codes(2, 3, 5, 5), codes(2, 3, 3, 3)
    for laid in (x, x.contiguous(memory_format=torch.channels_last)):
        got = exact_matmul._run(wrong_channels_last, laid, w, ("test",), 255)
        assert torch.equal(got.double(), F.conv2d(x.double(), w.double()))


@given(st.integers(1, 400), st.integers(1, 5))
def test_linear_is_that_of_int64(features: int, rows: int) -> None:
    x, w = codes(rows, 2, features), codes(3, features)
    got = exact_linear(x, w, **LIMITS)
    assert got.dtype == (torch.float32 if features * 255 * 255 < 2**24 else torch.float64)
    assert torch.equal(got.long(), (x.long() @ w.long().T))


def test_sums_beyond_float32_are_exact() -> None:
    """Σ = 10001 · 255 · 255 needs 30 bits and is odd: float32 cannot hold it."""
    x, w = torch.full((1, 10_001), 255.0), torch.full((1, 10_001), 255.0)
    assert int(exact_linear(x, w, **LIMITS)) == 10_001 * 255 * 255
    image, kernel = torch.full((1, 1111, 3, 3), 255.0), torch.full((1, 1111, 3, 3), 255.0)
    once = ((1, 1), (0, 0), (1, 1), 1)
    assert int(exact_conv(image, kernel, *once, **LIMITS)) == 9999 * 255 * 255
    assert int(F.linear(x, w)) != 10_001 * 255 * 255


def test_a_tighter_bound_keeps_float32() -> None:
    x, w = codes(2, 10_000), torch.zeros(1, 10_000)
    w[0, :50] = 255
    assert exact_linear(x, w, **LIMITS).dtype == torch.float64
    got = exact_linear(x, w, **LIMITS, bound=50 * 255 * 255)
    assert got.dtype == torch.float32
    assert torch.equal(got.long(), x.long() @ w.long().T)


def test_codes_beyond_eight_bits_take_float64() -> None:
    """257 has nine significant bits: a bfloat16 mode of the float32 product would round it."""
    assert exact_linear(codes(2, 3), codes(1, 3), x_limit=257, w_limit=1).dtype == torch.float64


@pytest.mark.parametrize(("x_dim", "w_dim"), [(0, None), (1, None), (None, 0), (None, 2), (0, 0), (2, 1)])
def test_vmap_gives_what_a_loop_gives(x_dim: int | None, w_dim: int | None) -> None:
    x, w = codes(4, 5, 6, 8, 8), codes(4, 9, 3, 3, 3)
    geometry = ((2, 1), (1, 0), (1, 1), 2)
    inputs = x if x_dim is not None else x[:1].expand_as(x)
    weights = w if w_dim is not None else w[:1].expand_as(w)
    expected = torch.stack(
        [
            F.conv2d(a.double(), b.double(), None, *geometry)
            for a, b in zip(inputs, weights[:, :8], strict=True)
        ]
    )
    batched = (
        x.movedim(0, x_dim) if x_dim is not None else x[0],
        w[:, :8].movedim(0, w_dim) if w_dim is not None else w[0, :8],
    )
    run = torch.vmap(lambda a, b: exact_conv(a, b, *geometry, **LIMITS), in_dims=(x_dim, w_dim))
    assert torch.equal(run(*batched).long(), expected.long())


@pytest.mark.parametrize(("x_dim", "w_dim"), [(0, None), (None, 0), (0, 0)])
def test_vmap_of_linear(x_dim: int | None, w_dim: int | None) -> None:
    x, w = codes(4, 5, 6), codes(4, 3, 6)
    run = torch.vmap(lambda a, b: exact_linear(a, b, **LIMITS), in_dims=(x_dim, w_dim))
    got = run(x if x_dim == 0 else x[0], w if w_dim == 0 else w[0])
    inputs, weights = (x if x_dim == 0 else x[:1]).long(), (w if w_dim == 0 else w[:1]).long()
    assert torch.equal(got.long(), inputs @ weights.transpose(1, 2))


def test_autocast_does_no_harm() -> None:
    x, w = codes(3, 200), codes(4, 200)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(F.linear(x, w).long(), x.long() @ w.long().T)
        assert torch.equal(exact_linear(x, w, **LIMITS).long(), x.long() @ w.long().T)


@pytest.mark.usefixtures("fresh_checks")
def test_a_kernel_that_rounds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Winograd kernel would: float32 off by 1.7 of 27 · 255². The shape runs in float64 from then on."""
    convolve = F.conv2d

    def rounding(x: Tensor, w: Tensor, *geometry: object) -> Tensor:
        out = convolve(x, w, *geometry)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return out * (1 + 2.0**-20) if x.dtype == torch.float32 else out

    monkeypatch.setattr(F, "conv2d", rounding)
    x, w = torch.full((20, 3, 6, 6), 255.0), torch.full((4, 3, 3, 3), 255.0)
    geometry = ((1, 1), (1, 1), (1, 1), 1)
    for _ in range(2):
        got = exact_conv(x, w, *geometry, **LIMITS)
        assert got.dtype == torch.float32
        assert torch.equal(got.long(), convolve(x.double(), w.double(), None, *geometry).long())
    assert list(exact_matmul._verified.values()) == [False]


@pytest.mark.usefixtures("fresh_checks")
def test_each_shape_is_checked_once_and_leaves_torchs_generator_alone() -> None:
    x, w, longer = torch.zeros(2, 5), codes(3, 5), codes(4, 5)
    state = torch.get_rng_state()
    for _ in range(3):
        exact_linear(x, w, **LIMITS)
    exact_linear(torch.zeros(4, 5), w, **LIMITS)
    assert list(exact_matmul._verified.values()) == [True, True]
    exact_linear(x, longer, **LIMITS)
    assert list(exact_matmul._verified.values()) == [True, True, True]
    assert torch.equal(torch.get_rng_state(), state)


def test_no_rows_are_no_trouble() -> None:
    assert exact_linear(torch.zeros(0, 5), codes(3, 5), **LIMITS).shape == (0, 3)
    geometry = ((1, 1), (1, 1), (1, 1), 1)
    assert exact_conv(torch.zeros(0, 3, 6, 6), codes(4, 3, 3, 3), *geometry, **LIMITS).shape == (0, 4, 6, 6)


@pytest.mark.parametrize("before", [True, False])
def test_threads_keep_nnpack_off_for_each_other(before: bool) -> None:
    """The second one comes before the first one leaves, and leaves after it."""
    came, left = threading.Event(), threading.Event()
    states: list[bool] = []
    x, w = torch.zeros(2, 3), torch.zeros(4, 3)

    def first(a: Tensor, b: Tensor) -> Tensor:
        other.start()
        assert came.wait(30)
        return F.linear(a, b)

    def second(a: Tensor, b: Tensor) -> Tensor:
        came.set()
        assert left.wait(30)
        states.append(torch.backends.nnpack.set_flags(False)[0])
        return F.linear(a, b)

    other = threading.Thread(target=exact_matmul._run, args=(second, x, w, ("test",), 0))
    kept = torch.backends.nnpack.set_flags(before)[0]
    try:
        exact_matmul._run(first, x, w, ("test",), 0)
        left.set()
        other.join(30)
        assert states == [False]
        assert torch.backends.nnpack.set_flags(kept)[0] == before
    finally:
        torch.backends.nnpack.set_flags(kept)
