"""Ops on inputs wider than a byte: exact where they can read them, refused by the verifier where not."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import needs
import qbayes as qb
from handmade.programs import Maker
from qbayes.errors import BadInput
from qbayes.integer import ops
from qbayes.integer.arithmetic.fixed_point import round_shift
from qbayes.integer.backends.onednn.trial import why_missing
from qbayes.integer.compare import compare_ops
from qbayes.integer.ops.base import Grids, Noise
from qbayes.integer.proof.verify import verify

SEED = 7
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"affine": True}, {"grids": 0}, {"grids": 1}, {"grids": 2}])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_ops_are_exact_on_the_widest_codes(kind: str, options: dict[str, Any], device: str) -> None:
    """Against int64 products, with codes at both ends and weights at their limits."""
    make = Maker((5, 3, 3), input_bits=16)
    if kind == "conv":
        make.conv(make.input, 7, 3, extreme=True, relu=False, out_bits=16, **options)
    else:
        flat = make.moved(ops.Reshape, make.input, shape=(45,))
        make.linear(flat, 7, extreme=True, relu=False, out_bits=16, **options)
    op = make.ops[-1]
    assert isinstance(op, ops.Weighted)
    constants = make.constants[0][op.name]
    x = make.random(0, 65535, (8, 45), torch.int32)
    x[::2] = torch.where(x[::2] % 2 == 0, 0, 65535)
    shaped = x.view(8, 5, 3, 3) if kind == "conv" else x
    zeros = make.zeros[0]
    grids = Grids((zeros[op.inputs[0]],), zeros[op.output], (16,), 16)
    placed = {name: codes.to(device) for name, codes in constants.items()}
    draws = torch.arange(2 if op.is_stochastic else 1)
    inputs = torch.cat([shaped] * len(draws)).to(device)
    got = op.run([inputs], grids, placed, Noise(SEED, draws.to(device), 0, 8))
    assert got.dtype == torch.int32
    wanted = torch.cat([by_integers(op, x, grids, constants, int(draw)) for draw in draws])
    assert torch.equal(got.cpu().flatten(1).long(), wanted)


def by_integers(op: ops.Weighted, x: Tensor, grids: Grids, constants: Any, draw: int) -> Tensor:
    """The definition in int64 matrix products; a convolution here has one window."""
    drawn, centred = op.weights.draw(constants, SEED, draw), x.long() - grids.zeros[0]
    zero = op.weights.zero(constants)
    zero = zero.view(-1, 1) if isinstance(zero, Tensor) else zero
    weight = drawn["weight" if "weight" in drawn else "mean"].long().flatten(1) - zero
    total = (centred @ weight.t() + drawn["bias"].long()) * constants["multiplier"].long()
    if "noise" in drawn:
        total += (centred @ drawn["noise"].long().flatten(1).t()) * constants["second_multiplier"].long()
    codes = grids.zero + round_shift(total, constants["shift"].long())
    return codes.clamp(int(constants["low"]), int(constants["high"]))


@needs.unless(why_missing() is None, needs.INT8)
@pytest.mark.parametrize("options", [{}, {"grids": 0}, {"grids": 1}, {"grids": 2}])
@pytest.mark.parametrize("bias_noise", [False, True])
def test_onednn_reads_wide_codes_exactly(options: dict[str, Any], bias_noise: bool) -> None:
    """Rows of several axes, in another order in memory, and several members."""
    make = Maker((6, 4), input_bits=16, members=2)
    turned = make.moved(ops.Permute, make.input, order=(0, 2, 1))
    first = make.linear(turned, 5, bias_noise=bias_noise, **options)
    second = make.linear(make.input, 6, bias_noise=bias_noise, **options)
    flat = [make.moved(ops.Reshape, x, shape=(math.prod(make.values[x].shape),)) for x in (first, second)]
    program = make.program(make.linear(make.concat(*flat), 3, relu=False))
    verify(program)
    x = 100 * make.inputs(9)
    for row in compare_ops(program, "reference", "onednn", x, draws=5, seed=SEED):
        assert (row.largest, row.share_equal) == (0, 1.0), row
    found = {kernel.op: kernel for kernel in qb.load(program, "onednn").backend.report()}
    reads_input = [op.name for op in program.ops if isinstance(op, ops.Linear)][:2]
    assert {(found[name].how, found[name].why) for name in reads_input} == {
        ("exact", "int8 kernels read bytes, not codes of 16 bits")
    }


def head(make: Maker, x: str) -> qb.Program:
    flat = make.moved(ops.Reshape, x, shape=(math.prod(make.values[x].shape),))
    return make.program(make.linear(flat, 3, relu=False))


REFUSED: dict[str, Callable[[Maker], str]] = {
    "mask": lambda make: make.mask(make.input),
    "add": lambda make: make.add(make.input, make.input),
    "mul": lambda make: make.mul(make.input, make.input),
    "concat": lambda make: make.concat(make.input, make.input),
    "rescale": lambda make: make.rescale(make.input),
    "affine": lambda make: make.affine(make.input),
    "lookup": lambda make: make.lookup(make.input),
    "max_pool": lambda make: make.max_pool(make.input),
    "avg_pool": lambda make: make.avg_pool(make.input),
    "pad": lambda make: make.moved(ops.Pad, make.input, amounts=((0, 0), (1, 1), (1, 1)), mode="replicate"),
    "upsample": lambda make: make.moved(ops.Upsample, make.input, factors=(2, 2)),
    "a mask behind a reshape": lambda make: make.mask(make.moved(ops.Reshape, make.input, shape=(4, 2, 2))),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_the_verifier_refuses_ops_that_cannot_read_wide_codes(kind: str) -> None:
    verify(head(narrow := Maker((4, 2, 2), input_bits=8), REFUSED[kind](narrow)))
    make = Maker((4, 2, 2), input_bits=16)
    with pytest.raises(BadInput, match="must read codes of at most 8 bits"):
        verify(head(make, REFUSED[kind](make)))


def test_the_verifier_passes_and_refuses_the_rest() -> None:
    make = Maker((4, 2, 2), input_bits=16)
    moved = make.moved(ops.Permute, make.input, order=(0, 3, 1, 2))
    moved = make.moved(ops.Slice, moved, axis=2, start=0, stop=4, step=3)
    verify(head(make, moved))
    with pytest.raises(BadInput, match="'x' must have codes of 2 to 16 bits"):
        verify(head(wider := Maker((4, 2, 2), input_bits=17), wider.input))
    # the sums of this many inputs do not fit: 300 · 65535 · 127 > 2^31.
    large = Maker((300,), input_bits=16)
    with pytest.raises(BadInput, match="must fit int32"):
        verify(large.program(large.linear(large.input, 3, extreme=True, relu=False)))
    # codes between layers are bytes still, also behind a wide input, and a moved answer is no input.
    inner = Maker((8,), input_bits=16)
    wide = inner.linear(inner.input, 4, out_bits=16)
    with pytest.raises(BadInput, match="must read codes of at most 8 bits"):
        verify(inner.program(inner.moved(ops.Reshape, wide, shape=(4,))))
    with pytest.raises(BadInput, match="must read codes of at most 8 bits"):
        verify(inner.program(inner.linear(wide, 3)))


def test_the_verifier_refuses_a_wide_input_as_an_answer() -> None:
    for bits in (8, 16):
        make = Maker((3,), input_bits=bits)
        make.linear(make.input, 3)
        moved = make.moved(ops.Reshape, make.input, shape=(3,))
        for name in (make.input, moved):
            program = make.program(name)
            if bits == 8:
                verify(program)
                continue
            with pytest.raises(BadInput, match="at most 8 bits, or come from a weighted op"):
                verify(program)
