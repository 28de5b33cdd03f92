"""Every op by itself in C against the reference, bit for bit: random shapes, strides, paddings, bits, grids.

An op stands between a permuted input (so that nothing is aligned by luck) and the head of a small classifier;
what the head reads is also shown, by a Linear of one weight a code.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from handmade.programs import Maker, every_op
from parity.c_build import compiled, compilers, differing, needs_compiler
from qbayes.errors import BadInput
from qbayes.integer import ops
from qbayes.integer.proof.verify import verify

pytestmark = needs_compiler
BITS = st.integers(2, 8)
Draw = Callable[..., Any]
FEW = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MANY = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def image(draw: Draw, most: int = 9) -> tuple[int, ...]:
    """Channels × length, or channels × height × width."""
    axes = draw(st.integers(1, 2))
    return (draw(st.integers(1, 6)), *(draw(st.integers(1, most)) for _ in range(axes)))


def gaussian(draw: Draw) -> dict[str, Any]:
    grids = draw(st.sampled_from([None, 0, 1, 2]))
    if grids is None:
        return {"affine": draw(st.booleans()), "per_channel": draw(st.booleans())}
    return {"grids": grids, "bias_noise": draw(st.booleans())}


def conv(draw: Draw, make: Maker) -> str:
    channels = make.values[make.input].shape[0]
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    groups = draw(st.sampled_from(divisors))
    geometry = {
        "stride": draw(st.integers(1, 3)),
        "padding": draw(st.integers(0, 3)),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
    }
    options = {"w_bits": draw(BITS), "relu": draw(st.booleans()), **gaussian(draw)}
    return make.conv(
        make.input, groups * draw(st.integers(1, 5)), draw(st.integers(1, 4)), **geometry, **options
    )


def linear(draw: Draw, make: Maker) -> str:
    options = {"w_bits": draw(BITS), "relu": draw(st.booleans()), **gaussian(draw)}
    return make.linear(make.input, draw(st.integers(1, 9)), **options)


def pad(draw: Draw, make: Maker) -> str:
    mode = draw(st.sampled_from(["constant", "reflect", "replicate"]))
    ends = st.integers(-1, 3)
    amounts = tuple((draw(ends), draw(ends)) for _ in make.values[make.input].shape)
    return make.moved(ops.Pad, make.input, amounts=amounts, mode=mode)


def slice_(draw: Draw, make: Maker) -> str:
    shape = make.values[make.input].shape
    axis = draw(st.integers(1, len(shape)))
    start = draw(st.integers(0, shape[axis - 1] - 1))
    stop = draw(st.integers(start + 1, shape[axis - 1]))
    return make.moved(ops.Slice, make.input, axis=axis, start=start, stop=stop, step=draw(st.integers(1, 3)))


def permute(draw: Draw, make: Maker) -> str:
    order = draw(st.permutations(range(1, len(make.values[make.input].shape) + 1)))
    return make.moved(ops.Permute, make.input, order=(0, *order))


def reshape(draw: Draw, make: Maker) -> str:
    size = math.prod(make.values[make.input].shape)
    first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    turned = make.moved(ops.Reshape, make.input, shape=(first, size // first))
    return make.mask(turned, channelwise=True)


def max_pool(draw: Draw, make: Maker) -> str:
    kernel = draw(st.integers(1, 4))
    window = (kernel, draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2)), draw(st.integers(1, 2)))
    return make.max_pool(make.input, *window, ceil_mode=draw(st.booleans()))


def avg_pool(draw: Draw, make: Maker) -> str:
    if draw(st.booleans()):
        return make.avg_pool(make.input, adaptive=draw(st.integers(1, 5)))
    kernel = draw(st.integers(1, 4))
    window = (kernel, draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2)))
    ways = {name: draw(st.booleans()) for name in ("ceil_mode", "count_include_pad")}
    return make.avg_pool(make.input, *window, **ways)


def mask(draw: Draw, make: Maker) -> str:
    return make.mask(make.input, draw(st.floats(0, 0.99)), draw(st.booleans()))


def repeated(draw: Draw, make: Maker) -> str:
    """The input with one axis cut to length 1, to be repeated along it."""
    axis = draw(st.integers(1, len(make.values[make.input].shape)))
    return make.moved(ops.Slice, make.input, axis=axis, start=0, stop=1)


def add(draw: Draw, make: Maker) -> str:
    others = [repeated(draw, make) for _ in range(draw(st.integers(0, 2)))]
    terms = draw(st.permutations([make.input, make.rescale(make.input), *others]))
    return make.add(*terms, relu=draw(st.booleans()))


def mul(draw: Draw, make: Maker) -> str:
    return make.mul(*draw(st.permutations([make.rescale(make.input, 0.9), repeated(draw, make)])))


def concat(draw: Draw, make: Maker) -> str:
    axis = draw(st.integers(1, len(make.values[make.input].shape)))
    part = make.moved(ops.Slice, make.input, axis=axis, start=0, stop=1)
    return make.concat(*draw(st.permutations([make.input, make.lookup(make.input), part])), axis=axis)


def upsample(draw: Draw, make: Maker) -> str:
    axes = len(make.values[make.input].shape) - 1
    return make.moved(ops.Upsample, make.input, factors=tuple(draw(st.integers(1, 3)) for _ in range(axes)))


OPS: dict[str, Callable[[Draw, Maker], str]] = {
    "conv": conv,
    "linear": linear,
    "mask": mask,
    "add": add,
    "mul": mul,
    "concat": concat,
    "rescale": lambda draw, make: make.rescale(make.input, draw(st.floats(-2, 2))),
    "affine": lambda draw, make: make.affine(make.input),
    "lookup": lambda draw, make: make.lookup(make.input),
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "upsample": upsample,
    "pad": pad,
    "slice": slice_,
    "reshape": reshape,
    "permute": permute,
}


def test_every_op_is_here() -> None:
    assert set(OPS) == set(ops.OPS)


def example(draw: Draw, kind: str) -> tuple[Maker, Any]:
    """A program with the op and a head that sees all of its codes."""
    members = draw(st.integers(1, 2))
    make = Maker(
        image(draw), bits=draw(BITS), input_bits=draw(BITS), members=members, seed=draw(st.integers(0, 99))
    )
    try:
        last = OPS[kind](draw, make)
        flat = make.moved(ops.Reshape, last, shape=(math.prod(make.values[last].shape),))
        # by as many outputs as codes, so that hardly a difference can be lost.
        program = make.program(
            make.linear(flat, min(64, make.values[flat].shape[0]) + 1, relu=False, w_bits=8)
        )
        verify(program)
    except BadInput:
        assume(False)
        raise
    return make, program


def check(data: st.DataObject, kind: str) -> None:
    make, program = example(data.draw, kind)
    level = data.draw(st.sampled_from(["-O0", "-O0", "-O3"]))
    assert differing(compiled(program, level), make.inputs(2), draws=3) == []


@pytest.mark.parametrize("kind", OPS)
@FEW
@given(data=st.data())
def test_an_op_is_bit_equal(kind: str, data: st.DataObject) -> None:
    check(data, kind)


@pytest.mark.full
@pytest.mark.parametrize("kind", OPS)
@MANY
@given(data=st.data())
def test_an_op_is_bit_equal_at_length(kind: str, data: st.DataObject) -> None:
    check(data, kind)


@pytest.mark.parametrize(
    ("bits", "members"), [(8, 1), (3, 2), *(pytest.param(n, 3, marks=pytest.mark.full) for n in range(2, 9))]
)
def test_all_ops_together_are_bit_equal(bits: int, members: int) -> None:
    make = every_op(bits, members)
    program = make.program(make.ops[-1].output)
    for compiler in compilers():
        assert differing(compiled(program, "-O2", compiler=compiler), make.inputs(4), draws=7) == []


@pytest.mark.parametrize("grids", [None, 0, 1, 2])
@pytest.mark.parametrize(("input_bits", "out_bits"), [(16, 16), (11, 9)])
def test_wide_ends_are_bit_equal(input_bits: int, out_bits: int, grids: int | None) -> None:
    """Inputs and answers of up to 16 bits, through ops that move them, in images and in tables."""
    options = {} if grids is None else {"grids": grids, "bias_noise": True}
    make = Maker((2, 4, 3), bits=4, input_bits=input_bits, members=2)
    turned = make.moved(ops.Permute, make.input, order=(0, 1, 3, 2))
    cut = make.moved(ops.Slice, turned, axis=2, start=0, stop=3, step=2)
    drawn = make.conv(cut, 3, 2, padding=1, **options)
    flat = make.moved(ops.Reshape, make.moved(ops.Reshape, cut, shape=(8, 2)), shape=(16,))
    hidden = make.linear(flat, 6, **options)
    lines = make.moved(ops.Reshape, drawn, shape=(math.prod(make.values[drawn].shape),))
    head = make.linear(make.concat(hidden, lines), 3, relu=False, out_bits=out_bits, **options)
    program = make.program(head, heads=["mean"], noise=[0.3, -4.0, 2.0])
    assert differing(compiled(program), make.inputs(3), draws=6) == []


def test_rows_too_long_for_32_bits_are_summed_in_64() -> None:
    make = Maker((70_000,), bits=8)
    program = make.program(make.linear(make.input, 3, relu=False, w_bits=2))
    assert differing(compiled(program, "-O2"), make.inputs(1), draws=1) == []


def test_the_largest_codes_meet_the_largest_weights() -> None:
    """Sums at the end of what the fast path may take: 65,000 products of 255 and 127 fill 31 bits."""
    make = Maker((65_000,), bits=8)
    program = make.program(make.linear(make.input, 2, relu=False, extreme=True))
    made = compiled(program, "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all")
    assert differing(made, torch.full((1, 65_000), 1e6), draws=1) == []


@pytest.mark.parametrize("kind", ["add", "mul", "pad"])
def test_single_numbers_without_an_axis(kind: str) -> None:
    make = Maker((3,))
    one, two = (make.moved(ops.Reshape, make.linear(make.input, 1, relu=False), shape=()) for _ in range(2))
    if kind == "pad":
        made = make.moved(ops.Pad, one, amounts=(), mode="reflect")
    else:
        made = getattr(make, kind)(one, two)
    head = make.linear(make.moved(ops.Reshape, made, shape=(1,)), 3, relu=False)
    assert differing(compiled(make.program(head)), rows=8) == []
