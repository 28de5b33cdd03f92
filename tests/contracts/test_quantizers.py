"""What every registered range rule must do; a new one is tested by standing in the folder."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qbayes.integer.arithmetic.grid import EMPTY_SCALE
from qbayes.quant.observers import QUANTIZERS
from qbayes.quant.quantizer import Quantizer

NAMES = list(QUANTIZERS)
# signed, symmetric, per channel
KINDS = [
    (False, False, False),
    (False, True, False),
    (True, True, False),
    (True, False, True),
    (True, True, True),
]
BITS = [2, 3, 8]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(str(int(part)) for part in kind))
def kind(request: pytest.FixtureRequest) -> tuple[bool, bool, bool]:
    return request.param


def build(name: str, kind: tuple[bool, bool, bool], bits: int = 4) -> Quantizer:
    signed, symmetric, channels = kind
    return Quantizer(bits, rule=name, signed=signed, symmetric=symmetric, channels=6 if channels else None)


def batches(count: int = 3) -> list[Tensor]:
    torch.manual_seed(5)
    return [torch.randn(6, 5, 4) * (k + 1) + 0.3 for k in range(count)]


def same(one: Quantizer, other: Quantizer) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_the_file_is_called_as_the_member(name: str) -> None:
    rule = QUANTIZERS[name]
    assert rule.name == name
    assert rule.__module__.rpartition(".")[2] == name
    assert rule.__doc__


def test_data_set_a_grid_that_fits_them(name: str, kind: tuple[bool, bool, bool]) -> None:
    """At 8 bits the error is small against the data; more bits are never worse."""
    (x,) = batches(1)
    errors: list[float] = []
    for bits in BITS:
        quantizer = build(name, kind, bits)
        quantizer.calibrate(x)
        scale, zero = quantizer.grid()
        assert bool((scale > 0).all())
        assert torch.equal(zero, zero.round())
        codes = quantizer.codes(x)
        assert quantizer.low <= float(codes.min()) <= float(codes.max()) <= quantizer.high
        errors.append(float((quantizer.eval()(x) - x).square().mean().detach()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3 * float(x.square().mean())


def test_state_dict_round_trip_goes_on_alike(
    name: str, kind: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    first, second, third = batches()
    quantizer = build(name, kind)
    quantizer(first)
    quantizer(second)
    save_file(quantizer.state_dict(), tmp_path / "state.safetensors")
    again = build(name, kind)
    again.load_state_dict(load_file(tmp_path / "state.safetensors"))
    assert same(quantizer, again)
    assert torch.equal(quantizer(third), again(third))
    assert same(quantizer, again)


def test_deepcopy_is_equal_and_apart(name: str, kind: tuple[bool, bool, bool]) -> None:
    first, second, third = batches()
    quantizer = build(name, kind)
    quantizer(first)
    before = copy.deepcopy(quantizer.state_dict())
    twin = copy.deepcopy(quantizer)
    assert same(quantizer, twin)
    twin.calibrate(second * 10)
    assert not same(quantizer, twin)
    assert all(torch.equal(value, before[key]) for key, value in quantizer.state_dict().items())
    again = copy.deepcopy(quantizer)
    assert torch.equal(quantizer(third), again(third))


@pytest.mark.parametrize("kind", [(False, False, False), (True, True, True)], ids=["activation", "weight"])
def test_compiled_training_is_eager_training(name: str, kind: tuple[bool, bool, bool]) -> None:
    torch._dynamo.reset()
    eager = build(name, kind)
    twin = copy.deepcopy(eager)
    compiled = torch.compile(twin, backend="eager", fullgraph=True)
    for batch in batches():
        x, y = batch.clone().requires_grad_(), batch.clone().requires_grad_()
        one, other = eager(x), compiled(y)
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
        one.square().sum().backward()
        other.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        if eager.learned:
            torch.testing.assert_close(eager.scale.grad, twin.scale.grad)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[key])


def test_vmap_in_evaluation(name: str, kind: tuple[bool, bool, bool]) -> None:
    quantizer = build(name, kind)
    quantizer.calibrate(batches(1)[0])
    quantizer.eval()
    stack = torch.stack(batches())
    assert torch.equal(torch.vmap(quantizer)(stack), torch.stack([quantizer(x) for x in stack]))


@pytest.mark.parametrize("value", [0.0, -0.0, 3.0, -2.0, 1e-40, 1e30, -1e30])
def test_constant_tensors(name: str, kind: tuple[bool, bool, bool], value: float) -> None:
    quantizer = build(name, kind, 8)
    x = torch.full((6, 3), value)
    quantizer.calibrate(x)
    scale, _ = quantizer.grid()
    assert bool(torch.isfinite(scale).all())
    assert bool((scale > 0).all())
    if value == 0:
        assert torch.equal(scale, torch.full_like(scale, EMPTY_SCALE))
    torch.testing.assert_close(quantizer(x), x, rtol=1e-5, atol=1e-30)
    assert torch.equal(quantizer(torch.zeros(6, 3)), torch.zeros(6, 3))


def test_a_channel_of_zeros_leaves_the_others_alone(name: str) -> None:
    (w,) = batches(1)
    quantizer = build(name, (True, True, True))
    quantizer.calibrate(w)
    pruned = build(name, (True, True, True))
    pruned.calibrate(w * torch.tensor([1.0, 0, 1, 1, 0, 1])[:, None, None])
    kept = [0, 2, 3, 5]
    assert torch.equal(pruned.scale[kept], quantizer.scale[kept])
    assert pruned.scale[[1, 4]].tolist() == [EMPTY_SCALE] * 2
    assert torch.equal(pruned(torch.zeros_like(w)), torch.zeros_like(w))


def test_scale_follows_the_data(name: str, kind: tuple[bool, bool, bool]) -> None:
    """Numbers 2^k times as large have a scale 2^k times as large, and the same codes."""
    (x,) = batches(1)
    small, large = build(name, kind), build(name, kind)
    small.calibrate(x)
    large.calibrate(x * 1024)
    assert torch.equal(large.scale, small.scale * 1024)
    assert torch.equal(large.codes(x * 1024), small.codes(x))


def test_one_element(name: str, kind: tuple[bool, bool, bool]) -> None:
    quantizer = build(name, kind, 8)
    x = torch.full((6, 1), 1.5) if kind[2] else torch.tensor([1.5])
    quantizer(x)
    torch.testing.assert_close(quantizer(x), x)
