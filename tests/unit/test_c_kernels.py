"""Fake quantisation in C on a CPU: torch's values and gradients, and which tensors it serves."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import needs
import qbayes as qb
from fine_tuned import tuning
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant import quantizer
from qbayes.quant.kernels.c_kernels import CompiledFakeQuantize, kernels
from qbayes.quant.kernels.fake_quantize import can_fuse
from qbayes.quant.layers.elementwise import QuantNarrow
from qbayes.quant.quantizer import Quantizer

needs_kernels = needs.unless(kernels(), needs.COMPILER)
CHUNK = 4096


@dataclass(frozen=True)
class Case:
    """A quantiser, and the numbers that it rounds."""

    one: Quantizer
    x: Tensor
    g: Tensor
    relu: bool = False


def made(
    bits: int = 4,
    *,
    rule: str = "lsq",
    signed: bool = False,
    symmetric: bool = False,
    scale: float | list[float] = 0.25,
    zero: float = 0.0,
) -> Quantizer:
    """A quantiser on a given grid, which it does not move by itself; a list of scales is one a channel."""
    channels = len(scale) if isinstance(scale, list) else None
    one = Quantizer(bits, rule=rule, signed=signed, symmetric=symmetric, channels=channels)
    with torch.no_grad():
        one.scale.copy_(torch.tensor(scale))
        one.zero_point.fill_(zero)
    one.ready.fill_(True)
    one.started, one.observing = True, False
    return one


def keep_to_torch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quantizer, "can_fuse", lambda *given: False)
    patch.setattr(quantizer, "can_finish", lambda *given: False)


def run(case: Case, *, compiled: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """y, ∂x and ∂p by C or by torch."""
    leaf = case.x.detach().requires_grad_()
    case.one.zero_grad()
    layer = QuantNarrow(case.one)
    layer.limits = (0.0, math.inf) if case.relu else layer.limits
    with pytest.MonkeyPatch.context() as patch:
        if compiled:
            patch.setattr(quantizer, "fake_quantize", lambda *given: pytest.fail("torch rounds"))
        else:
            keep_to_torch(patch)
        y = layer.simulate(leaf)
        y.backward(case.g)
    assert leaf.grad is not None
    return y.detach(), leaf.grad, None if case.one.scale.grad is None else case.one.scale.grad.clone()


def slope_of_scale(case: Case) -> tuple[Tensor, Tensor]:
    """∂p from its definition in float64, and the size of what is added, r and v taken apart."""
    one, x = case.one, case.x.float()
    x = torch.relu(x) if case.relu else x
    by_channel = [-1] + [1] * (x.ndim - 1) if one.channels else []
    p, z = one.scale.detach(), one.zero_point.double().reshape(by_channel)
    s = p.abs().clamp(SMALLEST_SCALE, LARGEST_SCALE).reshape(by_channel)
    v, low, high = (x / s).double(), one.low - z, one.high - z
    inside = (v >= low) & (v <= high)
    r, v = v.clamp(low, high).round(), torch.where(inside, v, 0.0)
    axes = list(range(1 if one.channels else 0, x.ndim))
    served = x.numel() // (one.channels or 1) if one.weight else x.numel() // len(x)
    factor = (high.clamp(min=1) * served).rsqrt().reshape(p.shape) * (p.abs() <= LARGEST_SCALE)
    g = case.g.double()
    wanted, size = ((g * (r - v)).sum(axes), (g.abs() * (r.abs() + v.abs())).sum(axes))
    return wanted * factor * p.double().sign(), size * factor


def is_infinite(case: Case) -> bool:
    """Whether a number, counted in steps, is."""
    return bool((case.x.abs().max().float() / case.one.scale.detach().abs().min()).isinf())


def strides(x: Tensor) -> list[int]:
    """Of axes of more than one number: of others they tell nothing."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def check(case: Case) -> Tensor:
    """Both ways agree; the values of C."""
    mine, plain = run(case, compiled=True), run(case, compiled=False)
    torch.testing.assert_close(mine[0], plain[0], rtol=0, atol=0, equal_nan=True)
    assert strides(mine[0]) == strides(plain[0])
    # torch multiplies a gradient by S and divides it again.
    torch.testing.assert_close(mine[1], plain[1], rtol=2**-22 if case.x.dtype == torch.float32 else 0, atol=0)
    if not case.one.learned:
        assert mine[2] is None
        return mine[0]
    assert mine[2] is not None
    assert plain[2] is not None
    wanted, size = slope_of_scale(case)
    # a lane adds up to 128 numbers in float32, each half an ulp off at most.
    assert bool(((mine[2] - wanted).abs() <= 130 * 2**-24 * size + 1e-37).all())
    # torch multiplies v by nothing outside the grid, where it may be infinite.
    off = (plain[2] - wanted).abs() > 1e-5 * size + 1e-30
    assert not off.any() or is_infinite(case)
    return mine[0]


GRIDS: dict[str, Callable[[], Quantizer]] = {
    "positive": lambda: made(),
    "activations": lambda: made(4, zero=5.0),
    "all negative": lambda: made(4, zero=15.0),
    "8 bits": lambda: made(8, scale=0.01, zero=100.0),
    "16 bits": lambda: made(16, scale=1e-4, zero=30000.0),
    "weights": lambda: made(4, signed=True, symmetric=True),
    "affine weights": lambda: made(4, signed=True, zero=3.0),
    "channels": lambda: made(4, signed=True, symmetric=True, scale=[0.25, 0.01, 3.0]),
    "affine channels": lambda: made(8, signed=True, scale=[0.05, 0.01, 0.3], zero=-20.0),
    "2 bits": lambda: made(2, signed=True, scale=0.7),
    "fixed": lambda: made(8, rule="minmax", scale=0.02, zero=17.0),
    "fixed channels": lambda: made(8, rule="minmax", signed=True, scale=[0.02, 0.3, 0.001]),
}


@needs_kernels
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grid", GRIDS)
def test_c_and_torch_agree(grid: str, dtype: torch.dtype, relu: bool) -> None:
    torch.manual_seed(0)
    # more than one chunk of each row, and what is left over.
    x = (torch.randn(3, 7, 29, 31) * 1.5).to(dtype)
    check(Case(GRIDS[grid](), x, torch.randn(x.shape).to(dtype), relu and not GRIDS[grid]().channels))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "rows in the middle": lambda x: x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3),
}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Numbers near codes, near the middle between two, beyond the ends, and far away."""
    signed, dtype = draw(st.booleans()), draw(st.sampled_from([torch.float32, torch.bfloat16]))
    symmetric, bits = signed and draw(st.booleans()), draw(st.integers(2, 8))
    channels = draw(st.integers(1, 4)) if signed and draw(st.booleans()) else None
    rule = draw(st.sampled_from(["lsq", "minmax"]))
    sizes = st.one_of(st.sampled_from([2.0**-9, 0.25, 1.0, 4.0]), st.floats(1e-5, 1e3))
    scale = draw(sizes) if channels is None else [draw(sizes) for _ in range(channels)]
    one = made(bits, rule=rule, signed=signed, symmetric=symmetric, scale=scale)
    if not symmetric:
        with torch.no_grad():
            one.zero_point.fill_(float(draw(st.integers(one.low, one.high))))
    shape = (channels or draw(st.integers(1, 5)), *(draw(st.integers(1, 9)) for _ in range(3)))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    steps = (
        torch.randint(2 * (one.low - one.high) - 2, 2 * (one.high - one.low) + 3, shape, generator=noise) / 2
    )
    nudge = 1 + torch.randint(-1, 2, shape, generator=noise) * draw(st.sampled_from([0.0, 2.0**-23, 0.1]))
    x = steps * nudge * one.scale.detach().reshape(-1, 1, 1, 1)
    x.view(-1)[0] = draw(st.sampled_from([0.0, -0.0, math.inf, -math.inf, 1e-40, 3e38, -3e38]))
    x = LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))](x.to(dtype))
    g = torch.empty_like(x).normal_(generator=noise)
    return Case(one, x, g, relu=channels is None and draw(st.booleans()))


@needs_kernels
@settings(max_examples=300)
@given(cases())
def test_any_grid_any_number(case: Case) -> None:
    if case.one.channels and not can_fuse(
        case.x, case.one.scale, case.one.zero_point, case.one.low, case.one.high, 0
    ):
        # a channel whose numbers do not lie together is torch's.
        assert case.x.stride(0) * len(case.x) != case.x.numel()
        return
    check(case)


@needs_kernels
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_that_are_none(dtype: torch.dtype, relu: bool) -> None:
    """A NaN stays one, whatever its bits, and has no gradient; it makes that of the scale a NaN."""
    bits = torch.tensor([0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, 0x7FFF0000, 0x3F800000], dtype=torch.int32)
    x = bits.view(torch.float32).to(dtype)
    case = Case(made(4, zero=3.0), x, torch.ones_like(x), relu)
    y, dx, dp = run(case, compiled=True)
    assert y.isnan().tolist() == [True] * 5 + [False]
    assert dx.tolist() == [0.0] * 5 + [1.0]
    assert dp is not None
    assert dp.isnan()
    lower = CompiledFakeQuantize.apply(x, case.one.scale, case.one.zero_point, 0, 15, 1, torch.bfloat16, relu)
    assert lower.isnan().tolist() == [True] * 5 + [False]


@needs_kernels
def test_a_gradient_of_nothing_outside_is_nothing() -> None:
    """Outside the grid and below ReLU, an infinite or wrong gradient does not come through as a NaN."""
    x = torch.tensor([-1.0, 0.0, 1.0, 99.0])
    for g in (math.inf, math.nan):
        _, dx, _ = run(Case(made(), x, torch.tensor([g, g, 1.0, g]), relu=True), compiled=True)
        assert dx.tolist() == [0.0, 0.0, 1.0, 0.0]


SCALES = [0.3, -0.3, 0.0, -0.0, 1e-30, -1e-30, 1e-45, SMALLEST_SCALE, 1e35, -1e35, LARGEST_SCALE, math.inf]


@needs_kernels
@pytest.mark.parametrize("p", SCALES)
@pytest.mark.parametrize("by_channel", [False, True])
def test_a_scale_counts_by_its_size(p: float, by_channel: bool) -> None:
    """Held within the usable scales, straight through the lower bound alone."""
    one = made(4, signed=True, symmetric=True, scale=[0.3, p] if by_channel else p)
    size = min(max(abs(p), SMALLEST_SCALE), LARGEST_SCALE)
    x = torch.tensor([[-2.0, 0.4, 0.6, 3.4], [-1.2, 0.9, 1.5, 7.0]])
    x = x * torch.tensor([[0.3], [size]]) if by_channel else x * 0.3
    check(Case(one, x, torch.tensor([[1.0, -0.5, 2.0, 0.25], [0.5, 1.0, -3.0, 2.0]])))


@needs_kernels
def test_a_scale_that_is_no_number() -> None:
    for bits in (0x7FC00000, 0x7FFFFFFF):
        one = made(4)
        with torch.no_grad():
            one.scale.copy_(torch.tensor(bits, dtype=torch.int32).view(torch.float32))
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(5).to(dtype)
            assert run(Case(one, x, torch.ones_like(x)), compiled=True)[0].isnan().all()


@needs_kernels
@pytest.mark.parametrize("elements", [1, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 37])
def test_any_number_of_elements(elements: int) -> None:
    torch.manual_seed(elements)
    for scale in (0.25, [0.1, 0.2, 0.3]):
        x = torch.randn(3, elements)
        check(Case(made(4, signed=True, scale=scale), x, torch.randn(3, elements)))


@needs_kernels
def test_gradients_of_any_layout() -> None:
    x = torch.randn(6, 8)
    for g in (
        torch.randn(8, 6).T,
        torch.ones(()).expand(6, 8),
        torch.randn(6, 16)[:, ::2],
        torch.randn(49)[1:].reshape(6, 8),
    ):
        check(Case(made(4, zero=4.0), x, g))


@needs_kernels
def test_which_tensors_are_served() -> None:
    one, channels = made(), made(signed=True, scale=[0.1, 0.2, 0.3])

    def serves(x: Tensor, by: Quantizer = one, low: Any = 0, axis: int = 0) -> bool:
        return can_fuse(x, by.scale, by.zero_point, low, 15, axis)

    x = torch.randn(3, 4)
    assert serves(x)
    assert serves(x.bfloat16())
    assert serves(x, channels)
    assert serves(x.T)
    assert not serves(x.T, channels)
    assert not serves(x, channels, axis=1)
    assert not serves(x[:, ::2]), "gaps"
    assert not serves(torch.ones(1).expand(5)), "overlaps"
    assert not serves(x.half())
    assert not serves(x.double())
    assert not serves(x[:0])
    assert not serves(x, low=torch.zeros(2)), "a stack's networks have bits of their own"
    assert not serves(x.to("meta"))
    assert not torch.vmap(lambda row: row.sum() * 0 + serves(row))(x).any()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_what_c_does_not_serve_is_torchs(dtype: torch.dtype) -> None:
    x = torch.randn(50, dtype=dtype)
    wanted = (x / 0.25).clamp(0, 15).round() * 0.25
    assert torch.equal(made()(x), wanted)
    assert torch.equal(made()(x.expand(3, 50)), wanted.expand(3, 50))


@needs_kernels
def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(0)
    x, before = torch.randn(5, 40001), torch.get_num_threads()
    cases = [Case(made(4, zero=4.0), x, torch.randn_like(x)), Case(made(4, scale=[0.1] * 5), x, x)]
    try:
        found: list[list[Tensor | None]] = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([part for case in cases for part in run(case, compiled=True)])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@needs_kernels
def test_a_factor_comes_in_the_type_that_autocast_gives_it() -> None:
    """The cast is part of the pass: the numbers and the gradients are those of a cast behind it."""
    torch.manual_seed(0)
    one, x = made(4, signed=True, scale=[0.1, 0.2, 0.3, 0.4, 0.5]), torch.randn(5, 7, 3)
    g = torch.randn(5, 7, 3).bfloat16()
    found: list[list[Tensor]] = []
    for factor in (True, False):
        given = x.detach().requires_grad_()
        one.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = one(given, factor=factor)
        assert y.dtype == (torch.bfloat16 if factor else torch.float32)
        y.bfloat16().backward(g)
        assert given.grad is not None
        assert one.scale.grad is not None
        found.append([y.detach().bfloat16(), given.grad, one.scale.grad.clone()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    with torch.autocast("cpu", torch.float16):
        assert one(x, factor=True).dtype == torch.float32, "torch casts to what C has not"


@needs_kernels
def test_what_vmap_does_not_run_over_may_be_served_inside() -> None:
    weight = torch.randn(3, 4, requires_grad=True)
    scale, zero, x = torch.full((), 0.3), torch.zeros(()), torch.randn(5, 4, 2)

    def product(x: Tensor) -> Tensor:
        return CompiledFakeQuantize.apply(weight, scale, zero, -7, 7, None, weight.dtype, False) @ x

    out = torch.vmap(product)(x)
    torch.testing.assert_close(out, (weight / 0.3).clamp(-7, 7).round().detach() * 0.3 @ x)
    out.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum((0, 2)).expand(3, 4) * ((weight / 0.3).abs() <= 7))


@needs_kernels
def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(4, requires_grad=True)
    y = CompiledFakeQuantize.apply(x, torch.full((), 0.3), torch.zeros(()), -7, 7, None, torch.float32, False)
    (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@needs_kernels
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Callable[[], Any]) -> None:
    one = made(4, signed=True, symmetric=True, scale=0.5)
    with mode():
        y = one(torch.tensor([0.6, 9.0]))
    assert y.tolist() == [0.5, 3.5]
    assert not y.requires_grad


# ---- training ----


def to_train(method: str) -> tuple[NetworkPosterior, qb.Task]:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(96) % 3
    x = torch.randn(96, 2, 8, 8, generator=generator) + y.view(-1, 1, 1, 1)
    task = qb.Task.from_arrays(x, y, x[:9], y[:9], kind="classification")
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 3)]
    budget = qb.Budget(epochs=2, batch_size=32)
    network = nn.Sequential(*layers)
    return qb.fit(network, task, qb.method(method), budget, device="cpu", progress=False), task


@needs_kernels
@pytest.mark.parametrize("rule", ["lsq", "ema"])
@pytest.mark.parametrize("method", ["pointwise", "mcd", "bbb"])
def test_training_agrees_with_torch_and_with_itself(
    method: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, task = to_train(method)
    budget = tuning(epochs=4, batch_size=20, learning_rate=1e-3, channels_last=True)
    precision = qb.Precision(4, 4, activation_range=rule)

    def trained() -> NetworkPosterior:
        return qb.quantize(posterior, task, precision, budget, device="cpu", progress=False)

    with monkeypatch.context() as patch:
        patch.setattr(quantizer, "fake_quantize", lambda *given: pytest.fail("torch rounds"))
        first, again = trained(), trained()
    for mine, theirs in zip(first.members, again.members, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    keep_to_torch(monkeypatch)
    assert losses(first) == pytest.approx(losses(trained()), rel=0.02)


def losses(posterior: NetworkPosterior) -> list[float]:
    return posterior.provenance["quantised"]["losses"][0]


# ---- without a compiler ----

_ALONE = """
import sys, warnings
import torch
from qbayes.quant.quantizer import Quantizer

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        one = Quantizer(4, rule="lsq", signed=True, symmetric=True)
        one.scale.data.fill_(0.5)
        one.started = True
        x = torch.tensor([-9.0, -0.6, 0.25, 0.8], requires_grad=True)
        one(x).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        print(one(x).tolist(), x.grad.tolist(), float(one.scale.grad))
for warning in said:
    print(warning.message)
"""


def said_by(path: str, cache: Path, **more: str) -> list[str]:
    source = Path(qb.__file__).parents[1]
    environment = {
        **os.environ,
        "PATH": path,
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": str(source),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_without_a_compiler_torch_stands_in_and_one_message_says_so(tmp_path: Path) -> None:
    lines = said_by("", tmp_path / "empty")
    # by hand: codes -7, -1, 0 (a tie), 2; slopes -7, 0.2, -0.5, 0.4, over the root of 7 times 4.
    slope = (-7.0 * 1 + 0.2 * 2 - 0.5 * 3 + 0.4 * 4) / math.sqrt(28)
    for line in lines[:2]:
        values, gradient, of_scale = line.split("] ")[0], line.split("] ")[1], line.split("] ")[2]
        assert values == "[-3.5, -0.5, 0.0, 1.0"
        assert gradient == "[0.0, 2.0, 3.0, 4.0"
        assert float(of_scale) == pytest.approx(slope, rel=1e-5)
    assert len(lines) == 3, "one message"
    assert "there is no C compiler" in lines[2]
    assert "Install a C compiler" in lines[2]
    assert not (tmp_path / "empty").exists()


def test_what_is_switched_off_is_not_spoken_of(tmp_path: Path) -> None:
    assert len(said_by(os.environ["PATH"], tmp_path, QBAYES_QUANT_KERNELS="off")) == 2
    assert list(tmp_path.iterdir()) == []


@needs_kernels
def test_with_a_compiler_nothing_is_said(tmp_path: Path) -> None:
    lines = said_by(os.environ["PATH"], tmp_path)
    assert len(lines) == 2
    assert list((tmp_path / "qbayes" / "kernels").glob("quant-*.so"))
