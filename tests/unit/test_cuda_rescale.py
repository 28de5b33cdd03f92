"""Fused rescaling: the codes of ``Op.run``, by a GPU or by Triton's interpreter (``TRITON_INTERPRET=1``)."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import needs
from kernels import DEVICE
from needs import ON_GPU
from qbayes.integer.arithmetic.fixed_point import fixed_point
from qbayes.integer.ops import Add, Conv, Grids, Linear, Noise, Weights, combine, cuda_rescale, weighted

pytestmark = needs.triton
SINGLE = Noise(0, torch.zeros(1, dtype=torch.int64), 0, 1)


def both(
    op: Any, inputs: list[Tensor], grids: Grids, constants: dict[str, Tensor], **drawn: Tensor
) -> Tensor:
    """The codes by one kernel; they are those of plain torch on the CPU."""
    moved = {name: value.to(DEVICE) for name, value in constants.items()}
    with pytest.MonkeyPatch.context() as patch:
        for module in (weighted, combine):
            patch.setattr(module, "can_fuse", lambda *tensors: len({t.shape for t in tensors}) == 1)
        fused = run(
            op, [x.to(DEVICE) for x in inputs], grids, moved, {n: t.to(DEVICE) for n, t in drawn.items()}
        )
        for module in (weighted, combine):
            patch.setattr(module, "can_fuse", lambda *tensors: False)
        plain = run(op, inputs, grids, constants, drawn)
    assert fused.dtype == plain.dtype
    assert torch.equal(fused.cpu(), plain)
    return plain


def run(op: Any, inputs: list[Tensor], grids: Grids, constants: Any, drawn: Any) -> Tensor:
    return (
        op.run_draw(inputs[0], grids, constants, drawn) if drawn else op.run(inputs, grids, constants, SINGLE)
    )


def constants_of(generator: torch.Generator, channels: int, scales: int, bits: int) -> dict[str, Tensor]:
    factor = 0.002 + 0.02 * torch.rand(scales, generator=generator, dtype=torch.float64)
    factor *= torch.where(torch.rand(scales, generator=generator) < 0.2, -1.0, 1.0)
    pairs = [fixed_point(one) for one in factor]
    return {
        "multiplier": torch.tensor([int(m) for m, _ in pairs], dtype=torch.int32),
        "shift": torch.tensor([int(s) for _, s in pairs], dtype=torch.uint8),
        "bias": torch.randint(-20000, 20000, (channels,), generator=generator, dtype=torch.int32),
        "low": torch.tensor([3], dtype=torch.int32),
        "high": torch.tensor([(1 << bits) - 2], dtype=torch.int32),
    }


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**16),
    rows=st.integers(1, 5),
    channels=st.integers(1, 7),
    length=st.integers(1, 9),
    per_channel=st.booleans(),
    out_bits=st.sampled_from([2, 4, 8, 16]),
    two=st.booleans(),
)
def test_convolutions(
    seed: int, rows: int, channels: int, length: int, per_channel: bool, out_bits: int, two: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    how = Weights("point", 8, per_channel=per_channel or two)
    op = Conv("conv", ("x",), "y", how, 2, channels, (3, 3), (1, 1), (1, 1), (1, 1))
    x = torch.randint(0, 256, (rows, 2, length, length + 1), generator=generator, dtype=torch.uint8)
    constants = constants_of(generator, channels, channels if per_channel or two else 1, out_bits)
    grids = Grids((17,), 5, (8,), out_bits)
    codes = torch.randint(-127, 128, op.weight_shape, generator=generator, dtype=torch.int8)
    drawn = {"weight": codes, "bias": constants["bias"]}
    if two:
        constants["second_multiplier"] = constants["multiplier"].flip(0) // 3
        drawn = {"mean": codes, "noise": codes.flip(0), "bias": constants["bias"]}
    found = both(op, [x], grids, constants, **drawn)
    assert found.shape == (rows, channels, length, length + 1)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**16), shape=st.sampled_from([(3, 5), (1, 5), (2, 4, 5), (2, 3, 2, 5)]))
def test_products_have_their_channels_last(seed: int, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(seed)
    op = Linear("linear", ("x",), "y", Weights("point", 8, per_channel=True), 5, 6)
    x = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    constants = constants_of(generator, 6, 6, 8)
    codes = torch.randint(-127, 128, (6, 5), generator=generator, dtype=torch.int8)
    both(op, [x], Grids((0,), 128, (8,), 8), constants, weight=codes, bias=constants["bias"])


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**16), count=st.integers(1, 3000), shift=st.integers(0, 40))
def test_sums_of_two(seed: int, count: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randint(0, 256, (2, 1, count), generator=generator, dtype=torch.uint8)
    limit = 1 << min(30, shift + 2)
    constants = {
        "multipliers": torch.randint(-limit, limit, (2,), generator=generator, dtype=torch.int32),
        "shift": torch.tensor([shift], dtype=torch.uint8),
        "low": torch.tensor([0], dtype=torch.int32),
        "high": torch.tensor([255], dtype=torch.int32),
    }
    both(Add("add", ("a", "b"), "c"), [a, b], Grids((3, 200), 77, (8, 8), 8), constants)


def test_ties_go_to_even() -> None:
    """``(q − 0) · 1 / 2``: odd codes lie between two whole numbers."""
    a = torch.arange(256, dtype=torch.uint8).view(1, -1)
    constants = {
        "multipliers": torch.tensor([1, 0], dtype=torch.int32),
        "shift": torch.tensor([1], dtype=torch.uint8),
        "low": torch.tensor([0], dtype=torch.int32),
        "high": torch.tensor([255], dtype=torch.int32),
    }
    found = both(Add("add", ("a", "b"), "c"), [a, a], Grids((0, 0), 0, (8, 8), 8), constants)
    assert found.flatten()[[1, 3, 5, 7]].tolist() == [0, 2, 2, 4]


def test_what_the_kernels_do_not_serve() -> None:
    assert not cuda_rescale.can_fuse(torch.zeros(3)), "it is not on a GPU"
    if ON_GPU:
        assert cuda_rescale.can_fuse(torch.zeros(3, device="cuda"))
        assert not cuda_rescale.can_fuse(torch.zeros(0, device="cuda"))
        assert not cuda_rescale.can_fuse(torch.zeros(3, device="cuda"), torch.zeros(1, device="cuda"))
