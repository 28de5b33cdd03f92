"""The draw of a Gaussian layer's output in one pass of C: torch's own numbers and gradients."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

import needs
import qbayes as qb
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.reparametrize import c_draw, draw
from qbayes.posterior.reparametrize.c_draw import CompiledDraw, CompiledSquare, draw_kernels, draw_normals
from qbayes.posterior.reparametrize.draw import LEAST_VARIANCE, reparametrise, square_values

needs_kernels = needs.unless(draw_kernels(), needs.COMPILER)

SHAPES = [(1,), (17,), (3, 5, 4, 6), (2, 24, 9, 9), (70, 1000)]


def maps(shape: tuple[int, ...], *, last: bool = False) -> Tensor:
    layout = torch.channels_last if last and len(shape) == 4 else torch.contiguous_format
    return torch.randn(shape).contiguous(memory_format=layout)


def plain_draw(mean: Tensor, variance: Tensor, epsilon: Tensor) -> Tensor:
    """By torch's operations, and its own gradients."""
    return mean + variance.clamp_min(LEAST_VARIANCE).sqrt() * epsilon


def with_gradients(function: object, g: Tensor, *inputs: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = function(*leaves)  # type: ignore[operator]
    y.backward(g)
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def in_numpy(
    mean: Tensor, variance: Tensor, epsilon: Tensor, g: Tensor
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """What ``with_gradients`` gives, each operation in IEEE float32. The √ of torch may be one bit off."""
    m, v, e, slope = (t.numpy() for t in (mean, variance, epsilon, g))
    least, two = np.float32(LEAST_VARIANCE), np.float32(2)
    root = np.sqrt(np.maximum(v, least))
    return m + root * e, slope, np.where(v >= least, slope * e / (two * root), np.float32(0))


@needs_kernels
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**16), st.sampled_from(SHAPES), st.booleans())
def test_in_float32_every_bit_is_that_of_ieee(seed: int, shape: tuple[int, ...], last: bool) -> None:
    torch.manual_seed(seed)
    mean, epsilon, g, wide = (maps(shape, last=last) for _ in range(4))
    # variances of every size, some of them 0.
    variance = torch.where(wide > 0.8, 0.0, torch.exp(8 * wide))
    mine = with_gradients(lambda m, v: CompiledDraw.apply(m, v, epsilon, LEAST_VARIANCE), g, mean, variance)
    assert mine[0].stride() == mean.stride()
    for one, other in zip(mine, in_numpy(mean, variance, epsilon, g), strict=True):
        assert np.array_equal(one.numpy(), other)
    theirs = with_gradients(lambda m, v: plain_draw(m, v, epsilon), g, mean, variance)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    for one, other in zip(
        with_gradients(CompiledSquare.apply, g, mean), with_gradients(lambda x: x * x, g, mean), strict=True
    ):
        assert torch.equal(one, other)


@needs_kernels
def test_in_bfloat16_the_kernel_rounds_once() -> None:
    torch.manual_seed(0)
    mean, variance, g = (maps((4, 24, 8, 8), last=True).bfloat16() for _ in range(3))
    variance, epsilon = variance.abs(), maps((4, 24, 8, 8), last=True)
    mine = with_gradients(lambda m, v: CompiledDraw.apply(m, v, epsilon, LEAST_VARIANCE), g, mean, variance)
    exact = in_numpy(mean.float(), variance.float(), epsilon, g.float())
    for one, other in zip(mine, exact, strict=True):
        assert one.dtype == torch.bfloat16
        assert torch.equal(one, torch.from_numpy(other).bfloat16())
    square = with_gradients(CompiledSquare.apply, g, mean)
    wanted = with_gradients(lambda x: x * x, g.float(), mean.float())
    assert all(torch.equal(one, other.bfloat16()) for one, other in zip(square, wanted, strict=True))


@needs_kernels
def test_a_variance_that_is_held_has_no_gradient_and_nan_stays() -> None:
    variance = torch.tensor([0.0, LEAST_VARIANCE / 2, LEAST_VARIANCE, 4.0, float("nan")])
    mean, epsilon, g = torch.zeros(5), torch.ones(5), torch.full((5,), 2.0)
    y, _, slope = with_gradients(
        lambda m, v: CompiledDraw.apply(m, v, epsilon, LEAST_VARIANCE), g, mean, variance
    )
    # by hand: the root of the variance, and 2 / (2 √v) where nothing holds it.
    assert y[:4].tolist() == pytest.approx([1e-8, 1e-8, 1e-8, 2.0])
    assert slope[:2].tolist() == [0.0, 0.0]
    assert slope[2:4].tolist() == pytest.approx([1e8, 0.5])
    assert y.isnan().tolist() == [False] * 4 + [True]


@needs_kernels
def test_threads_change_no_bit() -> None:
    torch.manual_seed(0)
    mean, variance, epsilon, g = (maps((3, 70_001)) for _ in range(4))
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(
                with_gradients(
                    lambda m, v: CompiledDraw.apply(m, v, epsilon, LEAST_VARIANCE), g, mean, variance.abs()
                )
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normals_lie_as_the_tensor_does_and_are_standard(dtype: torch.dtype) -> None:
    like = torch.empty((8, 24, 40, 40), dtype=dtype).contiguous(memory_format=torch.channels_last)
    torch.manual_seed(0)
    drawn = draw_normals(like)
    assert drawn.stride() == like.stride()
    assert drawn.dtype == torch.float32
    torch.manual_seed(0)
    # in the order of memory they are torch's own numbers.
    assert torch.equal(drawn.permute(0, 2, 3, 1).flatten(), torch.randn(like.numel()))
    count = drawn.numel()
    assert abs(float(drawn.double().mean())) < 5 / count**0.5
    assert abs(float(drawn.double().square().mean()) - 1) < 5 * (2 / count) ** 0.5


def test_of_a_plain_tensor_the_normals_are_those_of_randn_like() -> None:
    for like in (torch.empty(3, 5), torch.empty(100), torch.empty(4, 4, dtype=torch.float64), torch.empty(0)):
        torch.manual_seed(1)
        mine = draw_normals(like)
        torch.manual_seed(1)
        assert torch.equal(mine, torch.randn_like(like))


@needs_kernels
@pytest.mark.parametrize("bf16", [False, True])
def test_a_gaussian_convolution_takes_the_kernels(bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = GaussianLayer(nn.Conv2d(8, 8, 3, padding=1, bias=False), site=0, sigma=0.1).train()
    x = maps((4, 8, 9, 9), last=True).requires_grad_()
    calls: list[Tensor] = []
    apply, found = CompiledDraw.apply, []
    for kernels in (True, False):
        if kernels:
            monkeypatch.setattr(CompiledDraw, "apply", lambda *given: calls.append(given[0]) or apply(*given))
        else:
            for name in ("can_draw", "can_square"):
                monkeypatch.setattr(draw, name, lambda *given: False)
        layer.zero_grad()
        x.grad = None
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            y = layer(x)
        assert y.dtype == (torch.bfloat16 if bf16 else torch.float32)
        y.float().square().mean().backward()
        gradients = [t.grad.clone() for t in (x, layer.weight_mean, layer.weight_rho) if t.grad is not None]
        found.append([y.detach().float(), *gradients])
    assert len(calls) == 1
    for mine, plain in zip(*found, strict=True):
        size = float(plain.abs().max())
        torch.testing.assert_close(mine, plain, rtol=0, atol=size * (0.02 if bf16 else 1e-6))


def test_vmap_and_tensors_of_other_types_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a kernel was called")

    monkeypatch.setattr(CompiledDraw, "apply", refuse)
    monkeypatch.setattr(CompiledSquare, "apply", refuse)
    x = torch.randn(3, 4)
    y = torch.vmap(lambda one: reparametrise(one, square_values(one), one))(x)
    assert torch.allclose(y, x + x.abs() * x)
    wide = x.double()
    assert torch.allclose(reparametrise(wide, square_values(wide), wide), wide + wide.abs() * wide)
    # neither do tensors with gaps, nor those that lie differently.
    gap = torch.randn(6, 8)[:, ::2]
    assert torch.equal(square_values(gap), gap * gap)
    monkeypatch.undo()
    square = torch.rand(4, 4)
    assert not c_draw.can_draw(square, square.t(), square)


_ALONE = """
import warnings, torch
from torch import nn
from qbayes.posterior.gaussian import GaussianLayer
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    layer = GaussianLayer(nn.Linear(3, 2), site=0, sigma=0.1).train()
    for _ in range(2):
        torch.manual_seed(0)
        layer(torch.ones(1, 3)).sum().backward()
for warning in said:
    print(warning.message)
"""


def messages(path: str, cache: Path, **more: str) -> list[str]:
    source = str(Path(qb.__file__).parents[1])
    environment = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": source, **more}
    command = [sys.executable, "-c", _ALONE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_without_a_compiler_one_message_says_so_and_torch_stands_in(tmp_path: Path) -> None:
    said = messages("", tmp_path)
    assert len(said) == 1
    assert "training of Gaussian weights on a CPU must have compiled kernels to be fast" in said[0]
    assert "QBAYES_DRAW_KERNELS=off" in said[0]
    assert messages("", tmp_path, QBAYES_DRAW_KERNELS="off") == []
