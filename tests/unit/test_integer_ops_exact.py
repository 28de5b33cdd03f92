"""The reference semantics, with TF32 and bfloat16 modes on or off; and on a GPU the bits of the CPU."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import needs
from kernels import DEVICE
from qbayes.integer.arithmetic import exact_matmul
from qbayes.integer.arithmetic.epsilon_table import epsilon_codes
from qbayes.integer.arithmetic.exact_matmul import exact_conv, exact_linear
from qbayes.integer.arithmetic.fixed_point import fixed_point, shared_shift, shared_shifts
from qbayes.integer.ops import Add, AvgPool, Conv, Grids, Linear, Mask, MaxPool, Noise, Value, Weights

# channels in, channels out, length, kernel, stride, groups: the shapes of ResNets, depthwise, 5×5.
SHAPES = [
    (3, 64, 32, 3, 1, 1),
    (24, 24, 32, 3, 1, 1),
    (64, 128, 32, 3, 2, 1),
    (192, 192, 4, 3, 1, 1),
    (512, 512, 4, 3, 1, 1),
    (64, 128, 32, 1, 2, 1),
    (32, 32, 16, 3, 1, 32),
    (20, 50, 14, 5, 1, 1),
]


@pytest.fixture(params=["highest", "high", "medium"])
def matmul_precision(request: pytest.FixtureRequest) -> Iterator[None]:
    kept = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    exact_matmul._verified.clear()
    yield
    torch.set_float32_matmul_precision(kept)
    exact_matmul._verified.clear()


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_are_exact(shape: tuple[int, ...]) -> None:
    inputs, outputs, length, kernel, stride, groups = shape
    x = torch.randint(-255, 256, (64 if needs.ON_GPU else 4, inputs, length, length)).float()
    w = torch.randint(-127, 128, (outputs, inputs // groups, kernel, kernel)).float()
    geometry = ((stride,) * 2, (kernel // 2,) * 2, (1, 1), groups)
    # the bound of the actual codes must allow float32, however large the fan-in.
    bound = int(w.abs().flatten(1).sum(1).max()) * 255
    while bound >= 2**24:
        w = (w / 2).trunc()
        bound = int(w.abs().flatten(1).sum(1).max()) * 255
    got = exact_conv(x.to(DEVICE), w.to(DEVICE), *geometry, x_limit=255, w_limit=127, bound=bound)
    expected = F.conv2d(x.to(DEVICE).double(), w.to(DEVICE).double(), None, *geometry)
    assert got.dtype == torch.float32
    assert torch.equal(got.double(), expected)


@pytest.mark.usefixtures("matmul_precision")
def test_products_are_exact() -> None:
    x, w = torch.randint(-255, 256, (300, 250)).float(), torch.randint(-255, 256, (70, 250)).float()
    got = exact_linear(x.to(DEVICE), w.to(DEVICE), x_limit=255, w_limit=255)
    assert torch.equal(got.long().cpu(), x.long() @ w.long().T)


@needs.gpu
def test_noise_is_that_of_the_cpu() -> None:
    draws = torch.tensor([0, 3, 2**31])
    here = epsilon_codes(2**40 + 1, 3, draws, (7, 5), 8)
    assert torch.equal(epsilon_codes(2**40 + 1, 3, draws.cuda(), (7, 5), 8).cpu(), here)


@needs.gpu
@pytest.mark.parametrize("grids", [0, 1, 2])
def test_gaussian_layers_give_the_bits_of_the_cpu(grids: int) -> None:
    weights = Weights("gaussian", 4, affine=grids == 0, per_channel=grids > 0, grids=grids, bias_site=1)
    conv = Conv("c", ("x",), "y", weights, 4, 8, (3, 3), (1, 1), (1, 1), (1, 1))
    linear = Linear("l", ("x",), "y", weights, 36, 8)
    for op, shape in ((conv, (4, 6, 6)), (linear, (36,))):
        values = {"x": Value("x", shape, 8), "y": Value("y", op.out_shape([shape]), 8)}
        found = {}
        for constant in op.constants(values):
            low = 1 - (1 << (constant.bits - 1)) if constant.signed else 0
            found[constant.name] = torch.randint(low, low + (1 << constant.bits) - 1, constant.shape)
        for name in ("noise_multiplier", "bias_noise_multiplier"):
            found[name], found[name[:-10] + "shift"] = fixed_point(torch.full((8,), 0.001).double())
        found["bias"] = found["bias"] >> 20
        size = found["multiplier"].shape[0]
        both, found["shift"] = shared_shifts(torch.full((2, size), 0.002).double())
        found |= {"multiplier": both[0], "low": torch.tensor([0]), "high": torch.tensor([255])}
        if grids == 2:
            found["second_multiplier"] = both[1]
        if grids == 0:
            found |= {name: torch.tensor([2]) for name in ("mean_zero", "weight_zero")}
            found["mix"], shift = shared_shift(torch.tensor([0.7, 0.4]).double())
            found["mix_shift"] = torch.tensor([shift])
        x = torch.randint(0, 256, (6, *shape), dtype=torch.uint8)
        meaning = Grids((9,), 100, (8,), 8)
        here = op.run([x], meaning, found, Noise(5, torch.arange(2), 0, 3))
        moved = {name: tensor.cuda() for name, tensor in found.items()}
        there = op.run([x.cuda()], meaning, moved, Noise(5, torch.arange(2).cuda(), 0, 3))
        assert torch.equal(there.cpu(), here)
        assert len(here.unique()) > 3


@needs.gpu
def test_other_ops_give_the_bits_of_the_cpu() -> None:
    codes, shift = shared_shift(torch.tensor([0.5, 0.25], dtype=torch.float64))
    clamp = {"low": torch.tensor([0]), "high": torch.tensor([255])}
    add = {"multipliers": codes, "shift": torch.tensor([shift]), **clamp}
    average = {"multiplier": torch.tensor([2**20]), "shift": torch.tensor([22]), **clamp}
    x = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    once, twice, none = (1, 1), (2, 2), (0, 0)
    for op, count, constants in (
        (Add("a", ("p", "q"), "y"), 2, add),
        (AvgPool("a", ("p",), "y", twice, twice, none), 1, average),
        (MaxPool("a", ("p",), "y", twice, twice, none, once), 1, {}),
        (Mask("a", ("p",), "y", 1, 0.3), 1, {}),
    ):
        meaning = Grids((9,) * count, 7, (8,) * count, 8)
        here = op.run([x] * count, meaning, constants, Noise(5, torch.arange(2), 0, 3))
        moved = {name: tensor.cuda() for name, tensor in constants.items()}
        there = op.run([x.cuda()] * count, meaning, moved, Noise(5, torch.arange(2).cuda(), 0, 3))
        assert torch.equal(there.cpu(), here)
