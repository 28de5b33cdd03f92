"""Fused fake quantisation: the bits of the plain path, its gradients, and which tensors it serves.

The kernels run on a GPU, or on any machine by Triton's interpreter: ``TRITON_INTERPRET=1``.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import needs
import qbayes as qb
from fine_tuned import plain_job, tuning
from kernels import DEVICE, kernels_are_taken, to_train  # noqa: F401  (a fixture)
from needs import ON_GPU
from qbayes import device
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant import quantizer
from qbayes.quant.finetune.stacked import quantize_stacked
from qbayes.quant.kernels import fake_quantize
from qbayes.quant.kernels.fake_quantize import FusedFakeQuantize, can_fuse
from qbayes.quant.quantizer import Quantizer
from qbayes.training.stacked.network import Stack

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def made(
    bits: int = 4,
    *,
    rule: str = "lsq",
    signed: bool = True,
    symmetric: bool = True,
    channels: int | None = None,
    scale: float | list[float] = 0.25,
    zero: float = 0.0,
) -> Quantizer:
    """A quantiser on a given grid, which it does not move by itself."""
    one = Quantizer(bits, rule=rule, signed=signed, symmetric=symmetric, channels=channels)
    with torch.no_grad():
        one.scale.copy_(torch.tensor(scale))
        one.zero_point.fill_(zero)
    one.ready.fill_(True)
    one.started, one.observing = True, False
    return one.to(DEVICE)


def take(patch: pytest.MonkeyPatch, fuse: bool = True) -> None:
    """Quantisers hand all tensors to Triton's kernels, or none to any."""
    patch.setattr(quantizer, "can_fuse", lambda *args: fuse)
    patch.setattr(fake_quantize, "on_a_gpu", lambda x: True)


def run(one: Quantizer, x: Tensor, g: Tensor, *, fuse: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """y, ∂x and ∂p by one of the two paths."""
    leaf = x.detach().requires_grad_()
    one.zero_grad()
    with pytest.MonkeyPatch.context() as patch:
        take(patch, fuse)
        y = one(leaf)
        y.backward(g)
    assert leaf.grad is not None
    return y.detach(), leaf.grad, None if one.scale.grad is None else one.scale.grad.clone()


def slope_of_scale(one: Quantizer, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """∂p from its definition, in float64; the sum of its terms' sizes, with r − v and with r and v apart."""
    by_channel = [-1] + [1] * (x.ndim - 1) if one.channels else []
    p, z = one.scale.detach(), one.zero_point.double().reshape(by_channel)
    s = p.abs().clamp(SMALLEST_SCALE, LARGEST_SCALE).reshape(by_channel)
    v, low, high = (x.float() / s).double(), one.low - z, one.high - z
    inside = (v >= low) & (v <= high)
    r, v = v.clamp(low, high).round(), torch.where(inside, v, 0.0)
    axes = list(range(1 if one.channels else 0, x.ndim))
    served = x.numel() // (one.channels or 1) if one.weight else x.numel() // len(x)
    factor = (high.clamp(min=1) * served).rsqrt().reshape(p.shape) * (p.abs() <= LARGEST_SCALE)
    slopes = g.double()
    terms = slopes * (r - v), (slopes * (r - v)).abs(), slopes.abs() * (r.abs() + v.abs())
    wanted, size, apart = (term.sum(axes) * factor for term in terms)
    return wanted * p.double().sign(), size, apart


def cut(y: Tensor) -> Tensor:
    """The upper halves of float32 numbers: bfloat16."""
    return (y.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()


def check(one: Quantizer, x: Tensor, g: Tensor | None = None) -> Tensor:
    """Both paths agree on ``x``; the fused values."""
    x = x.to(DEVICE)
    g = torch.randn_like(x) if g is None else g.to(DEVICE)
    (y, dx, dp), plain = run(one, x, g, fuse=True), run(one, x, g, fuse=False)
    wanted = plain[0]
    if x.dtype == torch.bfloat16 and not ON_GPU:
        # the interpreter cuts float32 off where a device rounds it.
        wanted = cut(run(one, x.float(), g.float(), fuse=False)[0])
    torch.testing.assert_close(y, wanted, rtol=0, atol=0)
    assert y.stride() == plain[0].stride()
    torch.testing.assert_close(dx, plain[1], rtol=2**-22 if x.dtype == torch.float32 else 0, atol=0)
    if not one.learned:
        assert dp is None
        return y
    assert dp is not None
    assert plain[2] is not None
    slope, size, apart = slope_of_scale(one, x, g)
    assert dp.dtype == torch.float32
    assert bool(((dp - slope).abs() <= 1e-6 * size + 1e-37).all())
    # the plain path adds g r and −g v apart, which are larger than their sum, and has v / S, down to 0.
    assert bool(((dp - plain[2]).abs() <= 1e-6 * (size + apart) + 1e-30).all())
    return y


GRIDS: dict[str, Callable[[], Quantizer]] = {
    "symmetric": lambda: made(4),
    "affine weights": lambda: made(4, symmetric=False, zero=3.0),
    "channels": lambda: made(4, channels=3, scale=[0.25, 0.01, 3.0]),
    "affine channels": lambda: made(8, symmetric=False, channels=3, scale=[0.05, 0.01, 0.3], zero=-20.0),
    "activations": lambda: made(4, signed=False, zero=5.0),
    "all negative": lambda: made(4, signed=False, zero=15.0),
    "positive": lambda: made(8, signed=False, scale=0.01),
    "2 bits": lambda: made(2, scale=0.7),
    "16 bits": lambda: made(16, rule="lsq", signed=False, symmetric=False, scale=1e-4, zero=30000.0),
    "fixed": lambda: made(8, rule="minmax", scale=0.02),
    "fixed channels": lambda: made(8, rule="minmax", channels=3, scale=[0.02, 0.3, 0.001]),
}


@needs.triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("grid", GRIDS)
def test_both_paths_agree(grid: str, dtype: torch.dtype) -> None:
    check(GRIDS[grid](), (torch.randn(3, 5, 7, 11) * 1.5).to(dtype))


@needs.triton
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("channels", [None, 4])
def test_every_grid_of_weights(bits: int, symmetric: bool, channels: int | None) -> None:
    one = Quantizer(bits, rule="lsq", signed=True, symmetric=symmetric, channels=channels).to(DEVICE)
    x = torch.randn(4, 300) + 0.3
    one.calibrate(x.to(DEVICE))
    one.observing = False
    check(one, x)


@needs.triton
@pytest.mark.parametrize("scale", [0.25, 0.1, 1 / 3, 7e-5])
@pytest.mark.parametrize("grid", [{"signed": True}, {"signed": False, "zero": 100.0}])
def test_ties_and_ends(scale: float, grid: dict[str, Any]) -> None:
    """Halves of steps, the ends of the range, and the float32 numbers next to each."""
    one = made(8, scale=scale, **grid)
    exact = torch.arange(-520, 521) * 0.5 * torch.tensor(scale)
    beside = [torch.nextafter(exact, torch.tensor(end)) for end in (-math.inf, math.inf)]
    check(one, torch.stack([exact, *beside]))


@needs.triton
def test_ties_go_to_even_and_ends_pass_their_gradient() -> None:
    one = made(3, scale=1.0)
    x = torch.tensor([-3.5, -3.0, -2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 3.0, 3.5])
    g = torch.ones_like(x)
    y, dx, _ = run(one, x.to(DEVICE), g.to(DEVICE), fuse=True)
    assert y.tolist() == [-3, -3, -2, -2, 0, 0, 0, 2, 2, 3, 3]
    assert dx.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]


@needs.triton
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_stays_and_infinities_are_held(dtype: torch.dtype) -> None:
    one = made(4, scale=0.5)
    x = torch.tensor([math.nan, math.inf, -math.inf, 1.2, -math.nan], dtype=dtype, device=DEVICE)
    g = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=dtype, device=DEVICE)
    for fuse in (True, False):
        y, dx, dp = run(one, x, g, fuse=fuse)
        assert y[[0, 4]].isnan().all()
        assert y[1:4].tolist() == [3.5, -3.5, 1.0]
        assert dx.tolist() == [0, 0, 0, 4, 0]
        assert dp is not None
        assert dp.isnan()
    # an infinity adds the end's steps, as the definition says; the plain path has 0 · ∞ there.
    _, _, dp = run(one, x[1:4], g[1:4], fuse=True)
    assert dp is not None
    assert float(dp) == pytest.approx(
        (2 * 7 - 3 * 7 + 4 * (2 - float(x[3]) / 0.5)) / math.sqrt(3 * 7), rel=1e-6
    )


@needs.triton
@pytest.mark.parametrize("g", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_no_number_is_passed_on(g: float) -> None:
    x, slopes = torch.tensor([0.6, 9.0], device=DEVICE), torch.tensor([g, g], device=DEVICE)
    for fuse in (True, False):
        _, dx, dp = run(made(4, scale=0.5), x, slopes, fuse=fuse)
        assert dx[1] == 0
        assert not dx[0].isfinite()
        assert dp is not None
        assert not dp.isfinite()


SCALES = [0.3, -0.3, 0.0, -0.0, 1e-30, -1e-30, 1e-45, SMALLEST_SCALE, 1e35, -1e35, LARGEST_SCALE, math.inf]


@needs.triton
@pytest.mark.parametrize("p", SCALES)
@pytest.mark.parametrize("channels", [None, 2])
def test_a_scale_counts_by_its_size(p: float, channels: int | None) -> None:
    """Held within the usable scales, straight through the lower bound alone."""
    one = made(4, channels=channels, scale=p if channels is None else [0.3, p])
    size = min(max(abs(p), SMALLEST_SCALE), LARGEST_SCALE)
    x = torch.tensor([[-2.0, 0.4, 0.6, 3.4], [-1.2, 0.9, 1.5, 7.0]])
    x = x * 0.3 if channels is None else x * torch.tensor([[0.3], [size]])
    g = torch.tensor([[1.0, -0.5, 2.0, 0.25], [0.5, 1.0, -3.0, 2.0]])
    check(one, x, g)


@needs.triton
def test_a_scale_that_is_no_number() -> None:
    one, x = made(4, scale=math.nan), torch.randn(5, device=DEVICE)
    for fuse in (True, False):
        y, _, _ = run(one, x, torch.ones_like(x), fuse=fuse)
        assert y.isnan().all()


@needs.triton
@pytest.mark.parametrize("elements", [1, 127, 128, 129, 1023, 1025, 2500, 5000])
def test_any_number_of_elements(elements: int) -> None:
    check(made(4), torch.randn(elements))
    check(made(4, signed=False, zero=4.0), torch.randn(1, elements))
    check(made(4, channels=3, scale=[0.1, 0.2, 0.3]), torch.randn(3, elements))


@needs.triton
def test_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More sums of a row than its program adds at once; and a tensor of large blocks."""
    check(made(4), torch.randn(fake_quantize._LARGE + 5))
    monkeypatch.setattr(fake_quantize, "_BLOCK", 128)
    check(made(4, channels=2, scale=[0.2, 0.1]), torch.randn(2, 128 * 300 + 1))


@needs.triton
def test_any_dense_layout() -> None:
    images = torch.randn(4, 3, 5, 6)
    for x in (images.to(memory_format=torch.channels_last), images.permute(2, 0, 3, 1), images.mT):
        check(made(4, signed=False, zero=4.0), x)
    weights = torch.randn(3, 4, 5, 5).to(memory_format=torch.channels_last)
    check(made(4, channels=3, scale=[0.1, 0.2, 0.3]), weights)


@needs.triton
def test_gradients_of_any_layout() -> None:
    x = torch.randn(6, 8)
    gradients = {
        "transposed": torch.randn(8, 6).T,
        "expanded": torch.ones(()).expand(6, 8),
        "with gaps": torch.randn(6, 16)[:, ::2],
        "unaligned": torch.randn(49)[1:].reshape(6, 8),
    }
    for g in gradients.values():
        check(made(4), x, g)
    check(made(4), torch.randn(6, 4, 3, 2).to(memory_format=torch.channels_last), torch.randn(6, 4, 3, 2))


@needs.triton
def test_unaligned_memory() -> None:
    check(made(4), torch.randn(61)[1:])
    check(made(4, channels=3, scale=[0.1, 0.2, 0.3]), torch.randn(61)[1:].reshape(3, 20))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)


@needs.triton
@given(
    numbers=st.lists(FLOATS, min_size=1, max_size=40),
    scale=st.floats(2.0**-20, 2.0**20, width=32),
    bits=st.integers(2, 16),
    share=st.floats(0, 1),
)
def test_values_are_on_the_grid_and_as_the_plain_path_has_them(
    numbers: list[float], scale: float, bits: int, share: float
) -> None:
    zero = float(round(share * (2**bits - 1)))
    one = made(bits, signed=False, symmetric=False, scale=scale, zero=zero)
    x = torch.tensor([numbers])
    y = check(one, x, torch.ones_like(x))
    steps = (y / scale).round()
    assert torch.equal(steps * one.scale, y)
    assert bool(((steps + zero >= one.low) & (steps + zero <= one.high)).all())


@needs.triton
@pytest.mark.parametrize("fuse", [True, False])
def test_a_layer_called_twice_while_its_range_moves(fuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is differentiated on the grid that it had."""
    take(monkeypatch, fuse)
    one = Quantizer(4, rule="minmax", signed=False, symmetric=False).to(DEVICE)
    # −1 … 14 in steps of 1, then −1 … 29 in steps of 2, whose first code is 0.
    x = torch.tensor([[-1.0, 14.0], [0.0, 29.0]], device=DEVICE, requires_grad=True)
    first = one(x[:1])
    (first.sum() + one(x[1:]).sum()).backward()
    assert x.grad is not None
    assert (x.grad == 1).all()
    assert first.tolist() == [[-1, 14]]


@needs.triton
def test_a_factor_comes_in_the_type_that_autocast_would_give_it() -> None:
    """The cast is part of the kernel: the numbers and the gradients are those of a cast behind it."""
    torch.manual_seed(0)
    one, x = made(4, channels=5, scale=[0.1, 0.2, 0.3, 0.4, 0.5]), torch.randn(5, 7, 3, device=DEVICE)
    g = torch.randn(5, 7, 3, device=DEVICE).bfloat16()
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for factor in (True, False):
        given = x.detach().requires_grad_()
        one.zero_grad()
        with pytest.MonkeyPatch.context() as patch, torch.autocast(DEVICE, torch.bfloat16):
            take(patch)
            y = one(given, factor=factor)
        assert y.dtype == (torch.bfloat16 if factor else torch.float32)
        y.bfloat16().backward(g)
        assert given.grad is not None
        assert one.scale.grad is not None
        found.append((y.detach().float(), given.grad, one.scale.grad.clone()))
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][2], found[1][2])
    # Triton's interpreter cuts off what a device rounds.
    torch.testing.assert_close(
        found[0][0], found[1][0].bfloat16().float(), rtol=0 if ON_GPU else 2**-7, atol=0
    )


@needs.triton
def test_what_vmap_does_not_run_over_may_be_fused_inside() -> None:
    weight = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    scale, zero = torch.full((), 0.3, device=DEVICE), torch.zeros((), device=DEVICE)
    x = torch.randn(5, 4, 2, device=DEVICE)

    def product(x: Tensor) -> Tensor:
        return FusedFakeQuantize.apply(weight, scale, zero, -7, 7, None, weight.dtype) @ x

    out = torch.vmap(product)(x)
    rounded = (weight / 0.3).clamp(-7, 7).round().detach() * 0.3
    torch.testing.assert_close(out, rounded @ x)
    out.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum((0, 2)).expand(3, 4) * ((weight / 0.3).abs() <= 7))


@needs.triton
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Callable[[], AbstractContextManager[None]]) -> None:
    one = made(4, scale=0.5)
    with mode(), pytest.MonkeyPatch.context() as patch:
        take(patch)
        y = one(torch.tensor([0.6, 9.0], device=DEVICE))
    assert y.tolist() == [0.5, 3.5]
    assert not y.requires_grad


@needs.triton
def test_a_second_derivative_is_refused() -> None:
    x = torch.randn(4, device=DEVICE, requires_grad=True)
    scale, zero = torch.full((), 0.3, device=DEVICE), torch.zeros((), device=DEVICE)
    y = FusedFakeQuantize.apply(x, scale, zero, -7, 7, None, x.dtype)
    (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize(
    ("x", "rows", "dense"),
    [
        (torch.zeros(()), 1, True),
        (torch.zeros(3, 4), 3, True),
        (torch.zeros(3, 4).T, 1, True),
        (torch.zeros(3, 4).T, 4, False),
        (torch.zeros(3, 4)[:, :2], 1, False),
        (torch.zeros(3, 1).expand(3, 4), 1, False),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), 2, True),
        (torch.zeros(3, 1, 4)[:, :, :1], 1, False),
        (torch.zeros(3, 4)[:1, :2], 1, True),
    ],
)
def test_which_layouts_are_dense(x: Tensor, rows: int, dense: bool) -> None:
    assert device.dense(x, rows) == dense


def test_tensors_of_transforms_are_not_in_memory() -> None:
    seen: list[bool] = []

    def note(x: Tensor) -> Tensor:
        seen.append(device.in_memory(x))
        return x.sum()

    x = torch.randn(3, 4)
    note(x)
    torch.vmap(note)(x)
    torch.func.grad(note)(x)
    assert seen == [True, False, False]


@needs.triton
@pytest.mark.usefixtures("kernels_are_taken")
def test_which_tensors_are_fused() -> None:
    one, channels = made(4), made(4, channels=3, scale=[0.1, 0.2, 0.3])

    def fuses(x: Tensor, by: Quantizer = one, low: Any = -7, axis: int = 0) -> bool:
        return can_fuse(x, by.scale, by.zero_point, low, 7, axis)

    x = torch.randn(3, 4, device=DEVICE)
    assert fuses(x)
    assert fuses(x, channels)
    assert fuses(x.T)
    assert not fuses(x.T, channels)
    assert not fuses(x.T.contiguous(), channels, axis=1)
    assert not fuses(x, low=torch.tensor(-7, device=DEVICE))
    assert not fuses(x[:, ::2])
    assert not fuses(x.double())
    assert not fuses(x.to("meta"))
    assert not fuses(x[:0])
    assert not fuses(x, made(4).half())


@needs.gpu
@pytest.mark.parametrize("grid", GRIDS)
def test_recorded_as_a_graph_it_has_the_same_bits(grid: str) -> None:
    one = GRIDS[grid]()
    x, g = torch.randn(3, 500, device=DEVICE, requires_grad=True), torch.randn(3, 500, device=DEVICE)
    wanted = [x, one.scale] if one.learned else [x]

    def step() -> list[Tensor]:
        y = one(x)
        return [y.detach(), *torch.autograd.grad(y, wanted, g)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        x.copy_(torch.randn_like(x) * 2)
        g.copy_(torch.randn_like(g))
    graph.replay()
    for mine, theirs in zip(recorded, step(), strict=True):
        assert torch.equal(mine, theirs)


def floats(method: str) -> tuple[NetworkPosterior, qb.Task]:
    network, task = to_train()
    budget = qb.Budget(epochs=2)
    return qb.fit(network, task, qb.method(method), budget, device=DEVICE, progress=False), task


@needs.triton
@pytest.mark.usefixtures("kernels_are_taken")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("method", ["pointwise", "mcd", "bbb"])
def test_training_agrees_with_the_plain_path_and_with_itself(
    method: str, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, task = floats(method)
    batch = 200 if ON_GPU else 20
    budget = tuning(epochs=4, batch_size=batch, learning_rate=1e-3, channels_last=channels_last)

    def trained() -> NetworkPosterior:
        return qb.quantize(posterior, task, qb.Precision(4, 4), budget, device=DEVICE, progress=False)

    unfused: list[torch.Size] = []
    original = quantizer.fake_quantize

    def noted(x: Tensor, *args: Any) -> Tensor:
        if x.device.type == DEVICE:
            unfused.append(x.shape)
        return original(x, *args)

    with monkeypatch.context() as patch:
        patch.setattr(quantizer, "fake_quantize", noted)
        once = trained()
        assert unfused == []
    again = trained()
    for mine, theirs in zip(once.members, again.members, strict=True):
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    monkeypatch.setattr(quantizer, "can_fuse", lambda *args: False)
    plain = trained()
    assert curve(once) == pytest.approx(curve(plain), rel=0.05)


def curve(posterior: NetworkPosterior) -> list[float]:
    """The losses of quantisation-aware training, epoch by epoch."""
    return posterior.provenance["quantised"]["losses"][0]


@needs.triton
@pytest.mark.usefixtures("kernels_are_taken")
def test_stacks_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior, task = floats("mcd")
    budget = tuning(epochs=1, batch_size=200, learning_rate=1e-3)
    one = plain_job(posterior.to("cpu"), task, qb.Precision(4, 4), budget)
    stacking, losses, apply = [False], Stack.losses, FusedFakeQuantize.apply

    def stacked(*args: Any) -> Tensor:
        stacking.append(True)
        try:
            return losses(*args)
        finally:
            stacking.append(False)

    def single(*args: Any) -> Any:
        assert not stacking[-1], "fused in a stack"
        return apply(*args)

    monkeypatch.setattr(Stack, "losses", stacked)
    monkeypatch.setattr(FusedFakeQuantize, "apply", single)
    results = quantize_stacked([one, one], device=DEVICE, progress=False)
    assert all(isinstance(result, NetworkPosterior) for result in results)
    assert any(stacking)
