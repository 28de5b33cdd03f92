"""``onednn`` against ``reference``: the same codes but for rare roundings, also where kernels saturate."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import needs
from handmade.programs import Maker, every_op
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer import ops
from qbayes.integer.arithmetic.fixed_point import fixed_point
from qbayes.integer.backends.base import BACKENDS, choose
from qbayes.integer.backends.onednn import trial
from qbayes.integer.backends.onednn.float_rounding import Edges
from qbayes.integer.backends.onednn.primitives import Shape
from qbayes.integer.backends.onednn.trial import saturates, why_missing, why_wrong
from qbayes.integer.compare import OpDistance, compare_ops
from qbayes.integer.posterior import load
from qbayes.integer.program import Program

CPU = torch.device("cpu")
pytestmark = needs.unless(why_missing() is None, needs.INT8)

TOLERANCE = BACKENDS["onednn"].tolerance
X86 = platform.machine().lower() in ("x86_64", "amd64")


def too_far(rows: list[OpDistance]) -> list[OpDistance]:
    return [row for row in rows if row.largest > TOLERANCE.codes or row.share_equal < TOLERANCE.share_equal]


def saturating_program(**options: object) -> tuple[Maker, Program]:
    """Neighbouring weights of one sign at ±127 behind inputs at 255, in every form of kernel."""
    make = Maker((16, 6, 6), members=1)
    a = make.conv(make.input, 16, padding=1, extreme=True, **options)
    b = make.conv(make.input, 24, 1, extreme=True, **options)
    c = make.conv(make.input, 16, padding=1, groups=16, extreme=True, **options)
    d = make.conv(make.input, 16, padding=1, groups=2, extreme=True, **options)
    flat = make.moved(ops.Reshape, make.input, shape=(16 * 36,))
    e = make.linear(flat, 12, extreme=True, **options)
    line = make.moved(ops.Reshape, make.input, shape=(16, 36))
    f = make.conv(line, 8, 5, padding=2, extreme=True, **options)
    flats = [make.moved(ops.Reshape, x, shape=(_size(make, x),)) for x in (a, b, c, d, e, f)]
    return make, make.program(make.linear(make.concat(*flats), 4, relu=False))


def _size(make: Maker, name: str) -> int:
    count = 1
    for length in make.values[name].shape:
        count *= length
    return count


def bright(rows: int) -> Tensor:
    """Raw inputs whose codes are 255 almost everywhere: they saturate a sum of two products in int16."""
    x = torch.full((rows, 16, 6, 6), 1e6)
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.05] = -1e6
    return x


@pytest.mark.parametrize("options", [{}, {"grids": 1}, {"grids": 2}, {"grids": 0}, {"affine": True}])
def test_codes_that_saturate_a_naive_kernel_come_out_right(options: dict[str, object]) -> None:
    _, program = saturating_program(**options)
    assert not too_far(compare_ops(program, "reference", "onednn", bright(8), draws=2, seed=0))


# where it is skipped, the emulated processor below shows the same.
@needs.unless(saturates(Shape(16, 16, (3, 3), (6, 6), (1, 1), (1, 1), (1, 1))), needs.SATURATION)
def test_without_the_correction_these_codes_come_out_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _, program = saturating_program()
    monkeypatch.setattr(trial, "saturates", lambda _: False)
    wrong = {row.op: row.largest for row in too_far(compare_ops(program, "reference", "onednn", bright(8)))}
    assert len(wrong) >= 4
    assert max(wrong.values()) > 10


EMULATED = """
import sys
from qbayes.integer.backends.onednn import trial
from qbayes.integer.backends.onednn.primitives import Shape
from parity.test_onednn import bright, saturating_program, too_far
from qbayes.integer.compare import compare_ops

shape = Shape(16, 16, (3, 3), (6, 6), (1, 1), (1, 1), (1, 1))
assert trial.saturates(shape), "the emulated processor has no VNNI and must saturate"
for options in ({}, {"grids": 1}, {"grids": 2}):
    program = saturating_program(**options)[1]
    assert not too_far(compare_ops(program, "reference", "onednn", bright(8))), options
trial.saturates = lambda _: False
assert too_far(compare_ops(saturating_program()[1], "reference", "onednn", bright(8))), "no code saturated"
print("right")
"""


@needs.unless(X86, needs.X86)
def test_a_processor_without_vnni_is_right_too() -> None:
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(folders)}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", EMULATED],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "right", done.stderr


@pytest.mark.parametrize("bits", [8, 7, 4, 2])
@pytest.mark.parametrize("relu", [True, False])
def test_convolutions_of_all_forms(bits: int, relu: bool) -> None:
    make = Maker((6, 9, 7), bits=bits)
    forms: list[dict[str, int]] = [
        {"kernel": 3, "padding": 1},
        {"kernel": 3, "stride": 2, "padding": 2},
        {"kernel": 3, "dilation": 2, "padding": 1},
        {"kernel": 1, "stride": 2},
        {"kernel": 5, "padding": 2, "groups": 3},
        {"kernel": 3, "padding": 1, "groups": 6},
    ]
    found = [make.conv(make.input, 12, relu=relu, **form) for form in forms]  # pyright: ignore[reportArgumentType]
    flats = [make.moved(ops.Reshape, x, shape=(_size(make, x),)) for x in found]
    program = make.program(make.linear(make.concat(*flats), 5, relu=False))
    assert not too_far(compare_ops(program, "reference", "onednn", make.inputs(16)))


@pytest.mark.parametrize("grids", [None, 0, 1, 2])
@pytest.mark.parametrize("bits", [8, 3])
def test_sequences_and_lines_of_several_axes(grids: int | None, bits: int) -> None:
    options = {} if grids is None else {"grids": grids}
    make = Maker((5, 20), bits=bits)
    a = make.conv(make.input, 8, 5, padding=2, **options)
    b = make.conv(make.max_pool(make.mask(a), 3, 2, 1), 8, 3, dilation=2, **options)
    c = make.linear(make.affine(b), 7, **options)  # along the last axis of (8, 6)
    flat = make.moved(ops.Reshape, make.avg_pool(c, adaptive=3), shape=(24,))
    program = make.program(make.linear(flat, 3, relu=False, bias_noise=True, **options))
    assert not too_far(compare_ops(program, "reference", "onednn", make.inputs(12), draws=3))


Built = Callable[[Maker, str], str]
BETWEEN: dict[str, Built] = {
    "mask of elements": lambda m, x: m.mask(x, 0.4),
    "mask of channels": lambda m, x: m.mask(x, 0.4, channelwise=True),
    "masks of masks": lambda m, x: m.mask(m.mask(x, 0.2, channelwise=True), 0.2),
    "sum of shared and masked": lambda m, x: m.add(x, m.mask(x)),
    "sum of three": lambda m, x: m.add(m.mask(x), x, m.lookup(x), relu=True),
    "product of shared and masked": lambda m, x: m.mul(x, m.mask(x)),
    "gate": lambda m, x: m.mul(x, m.lookup(m.avg_pool(m.mask(x), adaptive=1))),
    "gate first": lambda m, x: m.mul(m.avg_pool(x, adaptive=1), m.mask(x)),
    "concatenation of channels": lambda m, x: m.concat(m.mask(x), x, m.lookup(x)),
    "concatenation along another axis": lambda m, x: m.concat(x, m.mask(x), axis=2),
    "table": lambda m, x: m.lookup(m.mask(x)),
    "other grid": lambda m, x: m.rescale(x, 1.37),
    "factor and offset": lambda m, x: m.affine(m.mask(x)),
    "largest": lambda m, x: m.max_pool(x, 3, 2, 1),
    "largest with steps": lambda m, x: m.max_pool(x, 3, 1, 1, dilation=2),
    "largest, rounded up": lambda m, x: m.max_pool(x, 2, 2, 0, ceil_mode=True),
    "mean": lambda m, x: m.avg_pool(x, 2, 2),
    "mean with counted padding": lambda m, x: m.avg_pool(x, 3, 2, 1),
    "mean without its padding": lambda m, x: m.avg_pool(x, 3, 2, 1, count_include_pad=False),
    "mean, rounded up": lambda m, x: m.avg_pool(x, 2, 2, ceil_mode=True),
    "mean of uneven windows": lambda m, x: m.avg_pool(x, adaptive=4),
    "mean of everything": lambda m, x: m.avg_pool(m.mask(x), adaptive=1),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize("shape", [(3, 7, 6), (33, 9, 5), (17, 11), (1, 5, 5)])
def test_compiled_ops_are_bit_equal(name: str, shape: tuple[int, ...]) -> None:
    """With channels last (behind a convolution) and first (behind a permutation), shared or not."""
    make = Maker(shape, bits=8)
    last = make.conv(make.input, shape[0], padding=1)
    order = (0, 2, 1) if len(shape) == 2 else (0, 1, 3, 2)
    first = make.moved(ops.Permute, make.input, order=order)
    ends = [BETWEEN[name](make, x) for x in (last, first)]
    flats = [make.moved(ops.Reshape, x, shape=(_size(make, x),)) for x in ends]
    program = make.program(make.linear(make.concat(*flats), 2, relu=False))
    rows = compare_ops(program, "reference", "onednn", make.inputs(5), draws=3, seed=4)
    exact = [row for row in rows if row.kind not in ("conv", "linear")]
    assert all(row.largest == 0 for row in exact), exact


def test_features_without_an_image_are_bit_equal() -> None:
    make = Maker((37,), bits=6)
    hidden = make.linear(make.input, 50)
    joined = make.concat(
        make.mask(hidden, channelwise=True), make.add(make.affine(hidden), make.mask(hidden))
    )
    program = make.program(make.linear(make.mul(joined, make.rescale(joined)), 3, relu=False))
    rows = compare_ops(program, "reference", "onednn", make.inputs(40), draws=4, seed=4)
    assert all(row.largest == 0 for row in rows if row.kind != "linear")


def at_an_edge(bits: int, total: int, nudge: int) -> tuple[Maker, Program]:
    """Convolutions whose codes change where ``M t`` is within some parts in 2^26 of a half, for many sums."""
    make = Maker((8, 6, 6), bits=bits)
    ends = [
        make.conv(make.input, 24, 1, affine=True, per_channel=False, relu=False),
        make.conv(make.input, 24, 3, padding=1, relu=False),
        make.conv(make.input, 24, 1, grids=1, relu=False),
    ]
    half = (1 << (bits - 1)) - 0.5
    for held in make.constants[0].values():
        held["bias"] //= 64
        real = torch.full((held["multiplier"].numel(),), half / total, dtype=torch.float64)
        held["multiplier"], shift = fixed_point(real * (1 + nudge * 2.0**-26))
        held["shift"] = shift.to(torch.uint8)
    flats = [make.moved(ops.Reshape, x, shape=(_size(make, x),)) for x in ends]
    return make, make.program(make.linear(make.concat(*flats), 2, relu=False))


@pytest.mark.parametrize("nudge", [-3, -1, 0, 1, 3])
@pytest.mark.parametrize(("bits", "total"), [(2, 7), (3, 19), (4, 38), (4, 101), (5, 211)])
def test_few_codes_are_exact_also_for_sums_next_to_a_half(bits: int, total: int, nudge: int) -> None:
    make, program = at_an_edge(bits, total, nudge)
    assert all(kernel.is_exact for kernel in choose("onednn", program, CPU).kernels[0].values())
    rows = compare_ops(program, "reference", "onednn", make.inputs(200), draws=2)
    assert [row for row in rows if row.largest > 0] == []


def test_without_the_offset_a_sum_next_to_a_half_comes_out_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(constants: dict[str, Tensor], *_: object) -> Edges:
        return Edges(torch.zeros(1), torch.full((1,), torch.inf), 0)

    monkeypatch.setattr("qbayes.integer.backends.onednn.float_rounding.edges", without)
    wrong: list[OpDistance] = []
    for nudge in (-3, -1, 0, 1, 3):
        make, program = at_an_edge(4, 38, nudge)
        rows = compare_ops(program, "reference", "onednn", make.inputs(200), draws=2)
        wrong += [row for row in rows if row.largest > 0]
    assert {row.op for row in wrong} == {"conv0", "conv1", "conv2"}
    assert max(1 - row.share_equal for row in wrong) > 1e-3


@pytest.mark.parametrize("multiplier", [0.5, 0.25, 0.375])
@pytest.mark.parametrize("bits", [4, 8])
def test_ties_are_exact_where_codes_or_sums_are_few(bits: int, multiplier: float) -> None:
    """Ties to even lie on both sides of an edge: no offset serves them, and float64 rounds.

    So also on 8 bits, where a sum's unit is so large a part of a code that many values have the same sum.
    """
    make = Maker((2, 5, 5), bits=bits)
    out = make.conv(make.input, 16, 1, relu=False)
    held = make.constants[0]["conv0"]
    held["multiplier"], shift = fixed_point(torch.full((16,), multiplier, dtype=torch.float64))
    held["shift"] = shift.to(torch.uint8)
    flat = make.moved(ops.Reshape, out, shape=(_size(make, out),))
    program = make.program(make.linear(flat, 2, relu=False))
    kernel = choose("onednn", program, CPU).kernels[0]["conv0"]
    assert kernel.is_exact
    assert "float32" in kernel.why
    assert compare_ops(program, "reference", "onednn", make.inputs(300))[0].largest == 0


@pytest.mark.parametrize("shape", [(4, 6, 6), (40, 3, 3), (4, 9)])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("bias_noise", [False, True])
def test_two_sums_are_joined_exactly(
    shape: tuple[int, ...], bits: int, bias_noise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker(shape, bits=bits)
    out = make.conv(make.input, 37, 3, padding=1, grids=2, bias_noise=bias_noise)
    flat = make.moved(ops.Reshape, out, shape=(_size(make, out),))
    program = make.program(make.linear(flat, 2, relu=False))
    x = make.inputs(30)
    small = bits < 8 or shape[0] * 3 ** (len(shape) - 1) < 100  # products of 8 bits leave float64 before long
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr("qbayes.integer.backends.onednn.float_rounding.kernels", lambda: None)
        assert choose("onednn", program, CPU).kernels[0]["conv0"].is_exact == small
        row = compare_ops(program, "reference", "onednn", x, draws=3)[0]
        assert row.largest == 0 if small else not too_far([row])


def test_threads_do_not_change_a_code() -> None:
    make = Maker((24, 16, 16), bits=8)
    x = make.conv(make.input, 24, padding=1, grids=1)
    x = make.add(make.mask(x), make.max_pool(make.affine(x), 3, 1, 1))
    x = make.avg_pool(make.concat(x, make.mask(x, channelwise=True)), adaptive=1)
    program = make.program(make.linear(make.moved(ops.Reshape, x, shape=(48,)), 3, relu=False))
    inputs, answers = make.inputs(20), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)  # the fixture puts it back
        answers.append(torch.as_tensor(load(program, "onednn").outputs(inputs, 3, 0)))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_without_a_compiler_the_codes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    make = every_op(8, members=2)
    program = make.program(make.ops[-1].output)
    x = make.inputs(6)
    compiled = torch.as_tensor(load(program, "onednn").outputs(x, 4, 0))
    for module in ("onednn", "onednn.conv_linear", "onednn.float_rounding"):
        monkeypatch.setattr(f"qbayes.integer.backends.{module}.kernels", lambda: None)
    backend = choose("onednn", program, CPU)
    assert all(row.how != "compiled" for row in backend.report())
    assert torch.equal(torch.as_tensor(load(program, "onednn").outputs(x, 4, 0)), compiled)


def test_what_int8_cannot_hold_is_left_to_exact_integers_with_a_reason() -> None:
    make = Maker((8, 5, 5), bits=8)
    grouped = make.conv(make.input, 8, padding=1, groups=2, affine=True, per_channel=False)
    make.constants[0]["conv0"]["weight"][0, 0, 0, 0] = -128
    make.constants[0]["conv0"]["weight_zero"][0] = 120
    flat = make.moved(ops.Reshape, grouped, shape=(200,))
    program = make.program(make.linear(flat, 3, relu=False))
    first = choose("onednn", program, CPU).report()[0]
    assert first.how == "exact"
    assert "±248" in first.why
    assert compare_ops(program, "reference", "onednn", make.inputs(4))[0].largest == 0


def test_a_kernel_that_oneDNN_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: N802
    def refuse(*_: object) -> Tensor:
        raise RuntimeError("unsupported on this machine\nsecond line")

    shape = Shape(5, 7, (3, 3), (4, 4), (1, 1), (0, 0), (1, 1))
    monkeypatch.setattr(trial, "product", refuse)
    trial._why_failed.cache_clear()
    try:
        assert why_wrong(shape, 3) == "oneDNN cannot run it: unsupported on this machine"
    finally:
        trial._why_failed.cache_clear()
