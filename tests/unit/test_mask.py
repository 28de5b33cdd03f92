"""The mask on activations: its expectation, its shape, and that a row's mask is its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.posterior.sites import Mask


def masked(mask: Mask, x: Tensor, seed: int = 0, draw: int = 0, first_row: int = 0) -> Tensor:
    with noise.streaming(noise.Stream(seed, torch.tensor(draw), first_row)):
        return mask.eval()(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rate", [0.05, 0.2, 0.7])
def test_keeps_the_expectation(rate: float, training: bool) -> None:
    mask = Mask(rate, 0).train(training)
    x = torch.full((200, 500), 3.0)
    y = mask(x) if training else masked(mask, x)
    assert set(y.unique().tolist()) <= {0.0, float(x[0, 0] * (torch.tensor(1.0) / (1 - rate)))}
    deviation = 3.0 * (rate / (1 - rate) / x.numel()) ** 0.5
    assert abs(float(y.double().mean()) - 3.0) < 4 * deviation


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 8, 5), (6, 8, 4, 3), (6, 8, 2, 2, 2)])
def test_channelwise_drops_whole_channels(shape: tuple[int, ...], training: bool) -> None:
    mask = Mask(0.5, 1, channelwise=True).train(training)
    x = torch.ones(shape)
    y = (mask(x) if training else masked(mask, x)).flatten(2)
    assert torch.equal(y.amin(2), y.amax(2))
    assert set(y.unique().tolist()) == {0.0, 2.0}


def test_elementwise_tells_pixels_apart() -> None:
    y = masked(Mask(0.5, 1), torch.ones(2, 3, 8, 8)).flatten(2)
    assert bool((y.amin(2) != y.amax(2)).all())


def test_channelwise_and_elementwise_are_one_on_features() -> None:
    x = torch.randn(5, 9)
    assert torch.equal(masked(Mask(0.4, 3), x), masked(Mask(0.4, 3, channelwise=True), x))


def test_elements_are_counted_in_logical_order() -> None:
    """channels_last memory must not change which element gets which word."""
    x = torch.randn(4, 6, 5, 5)
    strided = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(masked(Mask(0.3, 0), x), masked(Mask(0.3, 0), strided))


@given(
    start=st.integers(0, 7),
    length=st.integers(1, 8),
    seed=st.integers(0, 2**63 - 1),
    draw=st.integers(0, 50),
    channelwise=st.booleans(),
)
def test_a_row_has_its_mask_whatever_batch_it_comes_in(
    start: int, length: int, seed: int, draw: int, channelwise: bool
) -> None:
    x = torch.randn(12, 3, 4)
    mask = Mask(0.5, 2, channelwise)
    whole = masked(mask, x, seed, draw)
    piece = masked(mask, x[start : start + length], seed, draw, first_row=start)
    assert torch.equal(piece, whole[start : start + length])


def test_other_keys_give_other_masks() -> None:
    x = torch.ones(4, 64)
    base = masked(Mask(0.5, 0), x)
    others = [masked(Mask(0.5, 1), x), masked(Mask(0.5, 0), x, seed=1), masked(Mask(0.5, 0), x, draw=1)]
    others.append(masked(Mask(0.5, 0), x, first_row=4))
    assert all(not torch.equal(base, other) for other in others)
    assert not torch.equal(base[0], base[1])


def test_without_a_stream_evaluation_is_the_identity() -> None:
    x = torch.randn(3, 4)
    assert Mask(0.9, 0).eval()(x) is x


def test_rate_zero_is_the_identity_and_draws_nothing() -> None:
    x = torch.randn(3, 4)
    mask, before = Mask(0.0, 0), torch.get_rng_state()
    assert mask.train()(x) is x
    assert masked(mask, x) is x
    assert torch.equal(torch.get_rng_state(), before)


def test_training_uses_torchs_generator_and_evaluation_does_not() -> None:
    x, mask = torch.ones(8, 8), Mask(0.5, 0)
    before = torch.get_rng_state()
    masked(mask, x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    first = mask.train()(x)
    torch.manual_seed(3)
    assert torch.equal(mask(x), first)


def test_gradient_flows_where_the_mask_keeps() -> None:
    x = torch.randn(4, 6, requires_grad=True)
    y = Mask(0.5, 0).train()(x)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
def test_keeps_the_type(dtype: torch.dtype) -> None:
    x = torch.ones(3, 4, dtype=dtype)
    assert masked(Mask(0.5, 0), x).dtype == dtype
    assert Mask(0.5, 0).train()(x).dtype == dtype


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan"), 1 - 1e-6])
def test_bad_rates(rate: float) -> None:
    with pytest.raises(BadInput, match="rate"):
        Mask(rate, 0)


def test_vmap_equals_a_loop() -> None:
    x = torch.randn(5, 7)
    network = nn.Sequential(Mask(0.3, 0), nn.Linear(7, 4), Mask(0.5, 1)).eval()

    def one(draw: Tensor) -> Tensor:
        with noise.streaming(noise.Stream(8, draw, 2)):
            return network(x)

    draws = torch.arange(6)
    torch.testing.assert_close(torch.vmap(one)(draws), torch.stack([one(d) for d in draws]))


@pytest.mark.parametrize("first", [1, 2, 4, 5, 7])
def test_rows_that_are_not_the_outer_part_of_the_first_axis_are_refused(first: int) -> None:
    with noise.streaming(noise.Stream(0, torch.tensor(0), 0, rows=3)):
        assert Mask(0.5, 0).eval()(torch.ones(6, 4)).shape == (6, 4)
        with pytest.raises(BadInput, match="be its outer part") as told:
            Mask(0.5, 0).eval()(torch.ones(first, 4))
    assert f"3 rows in, but {first} along the first axis" in told.value.got
