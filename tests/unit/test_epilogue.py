"""Bias, ReLU and rounding at once: the numbers of the plain operations, and their gradients.

The kernels run on a GPU, or on any machine by Triton's interpreter: ``TRITON_INTERPRET=1``.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import needs
from kernels import DEVICE, kernels_are_taken  # noqa: F401  (a fixture)
from qbayes.quant import quantizer
from qbayes.quant.kernels import epilogue
from qbayes.quant.layers.base import UNLIMITED, Limits
from qbayes.quant.layers.weighted import PointWeights, QuantWeighted
from qbayes.quant.quantizer import Quantizer

RELU: Limits = (0.0, math.inf)


def made(bits: int = 4, rule: str = "lsq", scale: float = 0.25, zero: float = 0.0) -> Quantizer:
    """A quantiser of activations on a given grid, which it does not move by itself."""
    one = Quantizer(bits, rule=rule, signed=False, symmetric=False)
    with torch.no_grad():
        one.scale.fill_(scale)
        one.zero_point.fill_(zero)
    one.ready.fill_(True)
    one.started, one.observing = True, False
    return one.to(DEVICE)


def layer(out: Quantizer, limits: Limits) -> QuantWeighted:
    weights = Quantizer(4, rule="lsq", signed=True, symmetric=True)
    return QuantWeighted(PointWeights(torch.ones(1, 1, 1, 1), None, weights, None), out, limits)


Found = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def run(out: Quantizer, limits: Limits, x: Tensor, bias: Tensor | None, g: Tensor, *, fuse: bool) -> Found:
    """y, ∂x, ∂b and ∂p by one of the two ways."""
    x, bias = x.detach().requires_grad_(), None if bias is None else bias.detach().requires_grad_()
    out.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantizer, "can_finish", lambda *given: fuse)
        patch.setattr(quantizer, "can_fuse", lambda *given: False)
        patch.setattr(epilogue, "on_a_gpu", lambda x: True)
        axis = 1 if x.ndim == 4 else -1
        y = layer(out, limits).finish(x, bias, axis)
        y.backward(g)
    assert x.grad is not None
    return y.detach(), x.grad, None if bias is None else bias.grad, out.scale.grad


def check(out: Quantizer, limits: Limits, x: Tensor, bias: Tensor | None) -> Tensor:
    """Both ways agree; the fused values."""
    x, bias = x.to(DEVICE), None if bias is None else bias.to(DEVICE)
    g = torch.randn_like(x)
    one, other = (run(out, limits, x, bias, g, fuse=fuse) for fuse in (True, False))
    assert torch.equal(one[0], other[0])
    assert one[0].stride() == x.stride()
    torch.testing.assert_close(one[1], other[1], rtol=2**-22, atol=0)
    for mine, plain in zip(one[2:], other[2:], strict=True):
        assert (mine is None) == (plain is None)
        if mine is not None and plain is not None:
            torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)
    return one[0]


@needs.triton
@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 4),
    channels=st.integers(1, 70),
    length=st.integers(1, 6),
    bits=st.sampled_from([2, 4, 8]),
    zero=st.sampled_from([0.0, 1.0, 3.0]),
    relu=st.booleans(),
    biased=st.booleans(),
    rule=st.sampled_from(["lsq", "minmax"]),
)
def test_feature_maps(
    seed: int,
    rows: int,
    channels: int,
    length: int,
    bits: int,
    zero: float,
    relu: bool,
    biased: bool,
    rule: str,
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(rows, channels, length, length + 1).contiguous(memory_format=torch.channels_last)
    bias = torch.randn(channels) if biased or not relu else None
    check(made(bits, rule, 0.1, zero), RELU if relu else UNLIMITED, x, bias)


@needs.triton
def test_features_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    check(made(8, scale=0.01), RELU, torch.randn(37, 10), torch.randn(10))


@needs.triton
def test_many_programs_add_up() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 24, 20, 20).contiguous(memory_format=torch.channels_last)
    y = check(made(3, scale=0.3), RELU, x, torch.randn(24))
    assert len(y.unique()) == 8


@needs.triton
def test_ends_and_numbers_that_are_none() -> None:
    """At 0 a ReLU passes nothing, at the upper end the quantiser does; a NaN stays, infinities are held."""
    out, inf = made(2, scale=1.0), math.inf
    x = torch.tensor([[-1.0, 0.0, 0.5, 2.5, 3.0, 3.1, inf, -inf, math.nan]], device=DEVICE)
    y, dx, _, _ = run(out, RELU, x, None, torch.ones_like(x), fuse=True)
    assert y[0, :-1].tolist() == [0, 0, 0, 2, 3, 3, 3, 0]
    assert bool(y[0, -1].isnan())
    assert dx[0].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]


@needs.triton
def test_bfloat16_is_rounded_once_behind_the_bias() -> None:
    """100.6 is nearest to 101. As a bfloat16 it is 100.5, a tie that goes to 100."""
    out = made(8, scale=1.0)
    x = torch.full((1, 16), 100.0, device=DEVICE, dtype=torch.bfloat16)
    bias = torch.full((16,), 0.6, device=DEVICE)
    for fuse, code in ((True, 101.0), (False, 100.0)):
        y, *_ = run(out, UNLIMITED, x, bias, torch.ones_like(x), fuse=fuse)
        assert y.dtype == torch.bfloat16
        assert y.float().unique().tolist() == [code]


@pytest.mark.parametrize("shape", [(5, 1, 8, 16), (5, 7, 1, 6)])
def test_a_bias_along_another_axis_is_added_plainly(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Linear on maps has its features on the last axis, whatever lies last in memory."""
    monkeypatch.setattr(quantizer, "can_finish", lambda *given: pytest.fail("the kernel adds along axis 1"))
    x, bias = torch.randn(shape, device=DEVICE), torch.randn(shape[-1], device=DEVICE)
    out = made(8, scale=0.01)
    assert torch.equal(layer(out, RELU).finish(x, bias, -1), out(torch.relu(x + bias)))


def test_what_is_not_served_is_left_alone() -> None:
    out = made()
    x, bias = torch.randn(2, 3, 4, 4), torch.ones(3)
    assert out.finish(x, bias, relu=True) is None
    where = (out.scale, out.zero_point, 0, 15)
    assert not epilogue.can_finish(x, bias, *where), "it is not on a GPU, or not channels last"
    # of what vmap runs over the layout is not asked: torch cannot tell it.
    torch.vmap(lambda one: one + epilogue.can_finish(one, None, *where))(torch.randn(2, 2, 3, 4, 4))
    out.observing, out.follows = True, True
    assert out.finish(x, None, relu=True) is None, "the range is to see what passes"
    plain = layer(out, RELU).finish(x.to(DEVICE), torch.ones(3, device=DEVICE))
    assert plain.shape == x.shape


@needs.triton
@pytest.mark.usefixtures("kernels_are_taken")
def test_a_layer_on_a_gpu_takes_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    real = epilogue.FusedFinish.apply
    monkeypatch.setattr(epilogue.FusedFinish, "apply", lambda *given: (calls.append(True), real(*given))[1])
    x = torch.randn(2, 8, 4, 4, device=DEVICE).contiguous(memory_format=torch.channels_last)
    layer(made(), RELU).finish(x, torch.ones(8, device=DEVICE))
    assert calls
