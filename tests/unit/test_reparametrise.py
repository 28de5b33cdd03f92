"""The draw of a Gaussian layer's output in one kernel: the numbers and gradients of plain operations.

The kernels run on a GPU, or on any machine by Triton's interpreter: ``TRITON_INTERPRET=1``.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import needs
from kernels import DEVICE, kernels_are_taken  # noqa: F401  (a fixture)
from needs import ON_GPU
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.reparametrize import draw
from qbayes.posterior.reparametrize.draw import LEAST_VARIANCE, reparametrise, square_values


def drawn(mean: Tensor, variance: Tensor, epsilon: Tensor, g: Tensor, *, fuse: bool) -> list[Tensor]:
    """y, ∂m and ∂v by one of the two ways."""
    mean, variance = (t.detach().requires_grad_() for t in (mean, variance))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "_can_draw", lambda *given: fuse)
        patch.setattr(draw, "can_draw", lambda *given: False)
        y = reparametrise(mean, variance, epsilon)
        y.backward(g)
    assert mean.grad is not None
    assert variance.grad is not None
    return [y.detach(), mean.grad, variance.grad]


def square(x: Tensor, g: Tensor, *, fuse: bool) -> list[Tensor]:
    x = x.detach().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "_readable", lambda *given: fuse)
        patch.setattr(draw, "can_square", lambda *given: False)
        y = square_values(x)
        y.backward(g)
    assert x.grad is not None
    return [y.detach(), x.grad]


def maps(*shape: int, last: bool = True) -> Tensor:
    layout = torch.channels_last if last and len(shape) == 4 else torch.contiguous_format
    return torch.randn(*shape, device=DEVICE).contiguous(memory_format=layout)


@needs.triton
@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**16),
    shape=st.sampled_from([(1, 1, 1, 1), (3, 5, 4, 6), (7, 10), (2, 24, 9, 9), (5000,)]),
    last=st.booleans(),
)
def test_the_kernels_give_what_plain_operations_give(seed: int, shape: tuple[int, ...], last: bool) -> None:
    torch.manual_seed(seed)
    mean, epsilon, g, variance = (maps(*shape, last=last) for _ in range(4))
    # of every size, and some of them none at all.
    variance = torch.where(variance > 0.8, 0.0, torch.exp(4 * variance))
    one, other = (drawn(mean, variance, epsilon, g, fuse=fuse) for fuse in (True, False))
    assert one[0].stride() == mean.stride()
    assert torch.equal(one[1], other[1])
    for mine, plain in zip(one, other, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-6, atol=1e-6)
    for mine, plain in zip(square(mean, g, fuse=True), square(mean, g, fuse=False), strict=True):
        assert torch.equal(mine, plain)


@needs.triton
def test_a_variance_that_is_held_has_no_gradient_and_nan_stays() -> None:
    variance = torch.tensor([0.0, LEAST_VARIANCE / 2, LEAST_VARIANCE, 4.0, float("nan")], device=DEVICE)
    mean, epsilon, g = torch.zeros(5, device=DEVICE), torch.ones(5, device=DEVICE), maps(5)
    one, other = (drawn(mean, variance, epsilon, g, fuse=fuse) for fuse in (True, False))
    for mine, plain in zip(one, other, strict=True):
        torch.testing.assert_close(mine[:4], plain[:4], rtol=1e-6, atol=0)
    assert one[0][:4].tolist() == pytest.approx([1e-8, 1e-8, 1e-8, 2.0])
    assert one[2][:2].tolist() == [0.0, 0.0]
    assert one[0].isnan().tolist() == [False] * 4 + [True]


@needs.triton
def test_in_bfloat16_the_kernel_rounds_once() -> None:
    torch.manual_seed(0)
    exact = [maps(4, 24, 8, 8) for _ in range(3)]
    exact[1] = exact[1].abs()
    low = [t.bfloat16() for t in exact]
    wide = [t.float() for t in low]
    g = maps(4, 24, 8, 8).bfloat16()
    mine = drawn(low[0], low[1], low[2], g, fuse=True)
    true = drawn(wide[0], wide[1], wide[2], g.float(), fuse=False)
    assert mine[0].dtype == torch.bfloat16
    # Triton's interpreter cuts off what a device rounds: a whole step instead of half of one.
    for found, wanted in zip(mine, true, strict=True):
        torch.testing.assert_close(found.float(), wanted, rtol=2**-8 if ON_GPU else 2**-7, atol=0)


def test_on_a_cpu_and_under_vmap_operations_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(*given: object) -> None:
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(draw.FusedDraw, "apply", fused)
    monkeypatch.setattr(draw.FusedSquare, "apply", fused)
    x = torch.randn(3, 4)
    assert torch.equal(square_values(x), x * x)
    y = torch.vmap(lambda one: reparametrise(one, square_values(one), one))(x.to(DEVICE))
    assert torch.allclose(y, x.to(DEVICE) + x.to(DEVICE).abs() * x.to(DEVICE))


@needs.triton
@pytest.mark.usefixtures("kernels_are_taken")
@pytest.mark.parametrize("bf16", [False, True])
def test_a_gaussian_convolution_on_a_gpu_takes_the_kernels(
    bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(24, 24, 3, padding=1, bias=False).to(DEVICE)
    layer = GaussianLayer(plain, site=0, sigma=0.1).to(DEVICE).train()
    x = maps(4, 24, 8, 8)
    found: list[list[Tensor]] = []
    calls: list[Tensor] = []
    apply = draw.FusedDraw.apply
    for fuse in (True, False):
        if fuse:
            monkeypatch.setattr(
                draw.FusedDraw, "apply", lambda *given: calls.append(given[0]) or apply(*given)
            )
        else:
            monkeypatch.setattr(draw, "_readable", lambda *given: False)
        layer.zero_grad()
        torch.manual_seed(1)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
            y = layer(x)
        y.float().square().mean().backward()
        assert layer.weight_mean.grad is not None
        assert layer.weight_rho.grad is not None
        found.append([y.detach().float(), layer.weight_mean.grad.clone(), layer.weight_rho.grad.clone()])
    assert len(calls) == 1
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.05 if bf16 else 1e-4, atol=0.05 if bf16 else 1e-5)
