"""The proof of a program: right ones pass with tight numbers, and each way of being wrong is named."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.ops import (
    Add,
    Affine,
    AvgPool,
    Concat,
    Conv,
    Linear,
    Lookup,
    Mask,
    Mul,
    Op,
    Pad,
    Reshape,
    Upsample,
    Value,
    Weighted,
    Weights,
)
from qbayes.integer.ops.base import ACCUMULATOR_LIMIT
from qbayes.integer.program import Program
from qbayes.integer.proof.verify import verify
from qbayes.posterior.likelihood import Categorical, Gaussian

Make = Callable[..., Program]
Run = Callable[..., dict[str, Tensor]]


@pytest.mark.parametrize("kind", ["every", "heads", "constant", "wide"])
def test_right_programs_pass(kind: str, make_program: Make) -> None:
    program = make_program(kind)
    assert [found.op for found in verify(program).ops] == [op.name for op in program.ops]


def test_verified_codes_stay_in_their_ranges(make_program: Make, run_ops: Run) -> None:
    """What the proof promises, for random inputs and for those at the ends of their range."""
    for seed in range(3):
        program = make_program(seed=seed)
        verify(program)
        codes = torch.randint(0, 256, (6, 2, 8, 8), dtype=torch.uint8)
        codes[0], codes[1] = 0, 255
        for name, found in run_ops(program, seed % 2, codes).items():
            assert found.dtype == torch.uint8
            assert tuple(found.shape[1:]) == program.values[name].shape
            assert int(found.max()) < 1 << program.values[name].bits, name


def point_linear(build: Make, fan_in: int = 9, bits: int = 8, channels: int = 3, **more: Any) -> Program:
    weights = Weights("point", bits, **more)
    return build([Linear("y", ("x",), "y", weights, fan_in, channels)], {"x": 8, "y": 8}, (fan_in,), channels)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_point_weights_is_reached(affine: bool, seed: int, build_classifier: Make) -> None:
    """Some input, of codes 0 and 255, makes the proven sum of some channel where all weights pull one way."""
    torch.manual_seed(seed)
    program = point_linear(build_classifier, affine=affine)
    held, zero = program.members[0].constants["y"], program.members[0].zeros["x"]
    offset = held["weight_zero"].long()[:, None] if affine else 0
    centred, bias = held["weight"].long() - offset, held["bias"].long()
    far = 255 - zero if 255 - zero >= zero else -zero
    # rows whose signs agree with the weights and the bias: then |x w| adds up.
    signs = (far * centred).sign() * bias.sign()[:, None]
    reached = (centred * signs * far).sum(1) + bias
    (found,) = verify(program).ops
    assert found.accumulator == int(reached.abs().max())
    assert 1 << found.accumulator_bits - 1 > found.accumulator >= 1 << found.accumulator_bits - 2


def test_sums_up_to_the_last_of_int32(build_classifier: Make) -> None:
    program = point_linear(build_classifier, channels=1)
    held = program.members[0].constants["y"]
    held["bias"].zero_()
    (found,) = verify(program).ops
    held["bias"].fill_(-(ACCUMULATOR_LIMIT - found.accumulator))
    assert verify(program).ops[0].accumulator == 2**31 - 1
    held["bias"].sub_(1)
    with pytest.raises(BadInput, match=r"sums of 'y' must fit int32"):
        verify(program)


@pytest.mark.parametrize("grids", [0, 1, 2])
def test_no_draw_passes_the_bound(grids: int, build_classifier: Make) -> None:
    """Sampled weights at their clamp, with noise on the bias, against the sums of 200 draws."""
    weights = Weights("gaussian", 3, affine=grids == 0, per_channel=grids > 0, grids=grids, bias_site=1)
    program = build_classifier([Linear("y", ("x",), "y", weights, 6, 2)], {"x": 8, "y": 8}, (6,), 2)
    held, zero = program.members[0].constants["y"], program.members[0].zeros["x"]
    held["sigma"].fill_(255)
    held["noise_multiplier"].fill_(2**31 - 1)
    if grids == 0:
        held["mix"].fill_(2**31 - 1)
    (found,) = verify(program).ops
    far, largest = max(zero, 255 - zero), 0
    for draw in range(200):
        drawn = weights.draw(held, 0, draw)
        for name in {"weight", "mean", "noise"} & set(drawn):
            codes = drawn[name].long() - (int(held["weight_zero"]) if name == "weight" and not grids else 0)
            bias = 0 if name == "noise" else drawn["bias"].long().abs()
            largest = max(largest, int((far * codes.abs().sum(1) + bias).max()))
    assert largest <= found.accumulator
    assert largest > 0.4 * found.accumulator


def test_two_sums_share_int64(build_classifier: Make) -> None:
    """Each product fits int64, their sum might not."""
    weights = Weights("gaussian", 8, grids=2)
    program = build_classifier([Linear("y", ("x",), "y", weights, 60_000, 1)], {"x": 8, "y": 8}, (60_000,), 1)
    held = program.members[0].constants["y"]
    held["mean"].fill_(127)
    held["multiplier"].fill_(2**31 - 1)
    held["second_multiplier"].fill_(1)
    verify(program)
    held["second_multiplier"].fill_(2**31 - 1)
    with pytest.raises(BadInput, match=r"'y' must stay below 2\^62"):
        verify(program)


def test_products_up_to_the_last_below_2_to_the_62(build_classifier: Make) -> None:
    """With m = 2^31 − 1 for both sums, and Σ + N = 2^31 + 1, they are (2^31 − 1)(2^31 + 1) = 2^62 − 1."""
    weights, m = Weights("gaussian", 8, grids=2), (1 << 31) - 1
    program = build_classifier([Linear("y", ("x",), "y", weights, 1, 1)], {"x": 8, "y": 8}, (1,), 1)
    held, zero = program.members[0].constants["y"], program.members[0].zeros["x"]
    noise = 127 * max(zero, 255 - zero)
    held["mean"].zero_()
    held["bias"].fill_(m + 2 - noise)
    held["multiplier"].fill_(m)
    held["second_multiplier"].fill_(m)
    assert verify(program).ops[0].product == (1 << 62) - 1
    # Σ m + N m' = 2^62, which is 1 modulo m.
    second = pow(noise, -1, m)
    held["second_multiplier"].fill_(second)
    held["bias"].fill_(((1 << 62) - noise * second) // m)
    with pytest.raises(BadInput, match=r"'y' must stay below 2\^62") as caught:
        verify(program)
    assert caught.value.got == str(1 << 62)
    held["bias"].sub_(1)
    assert verify(program).ops[0].product == (1 << 62) - m


def test_the_proof_is_of_the_largest_member(make_program: Make) -> None:
    """Op by op, whichever member it is."""
    program = make_program(members=2)
    alone = [verify(replace(program, members=[member])).ops for member in program.members]
    assert any(one.accumulator > two.accumulator for one, two in zip(*alone, strict=True))
    assert any(one.accumulator < two.accumulator for one, two in zip(*alone, strict=True))
    wanted = [
        (max(one.accumulator, two.accumulator), max(one.product, two.product))
        for one, two in zip(*alone, strict=True)
    ]
    for members in (program.members, program.members[::-1]):
        found = verify(replace(program, members=members)).ops
        assert [(op.accumulator, op.product) for op in found] == wanted


def test_bounds_of_the_other_ops(make_program: Make) -> None:
    program = make_program(members=1)
    member, found = program.members[0], {op.op: op for op in verify(program).ops}

    def far(name: str) -> int:
        return max(member.zeros[name], (1 << program.values[name].bits) - 1 - member.zeros[name])

    first, second = member.constants["add"]["multipliers"].tolist()
    assert found["add"].product == first * far("max") + second * far("noisy")
    assert found["mul"].accumulator == far("rescale") * far("norm")
    assert found["avg"].accumulator == 4 * far("cat")
    norm = member.constants["norm"]
    products = far("sum") * norm["multiplier"].long() + norm["offset"].long().abs()
    assert found["norm"].product == int(products.max())
    assert found["drop"].accumulator == found["drop"].accumulator_bits == found["tanh"].product == 0


# each way to be wrong: a change to a program of every op, and what the error says.


def with_op(which: str, **fields: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        return replace(
            program, ops=tuple(replace(op, **fields) if op.name == which else op for op in program.ops)
        )

    return change


def unchecked(name: str, field: str, value: object) -> Callable[[Program], Program]:
    """A field put past the op's own checks, as code with a fault might."""

    def change(program: Program) -> Program:
        op = next(op for op in program.ops if op.name == name)
        object.__setattr__(op, field, value)
        return program

    return change


def with_constant(op: str, name: str, value: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        held = program.members[1].constants[op]
        assert isinstance(held, dict)
        held[name] = value(held[name]) if callable(value) else torch.full_like(held[name].long(), value)
        return program

    return change


def with_member(**parts: Any) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        old = program.members[1]
        fresh = {key: {**getattr(old, key), **value} for key, value in parts.items()}
        return replace(program, members=[program.members[0], replace(old, **fresh)])

    return change


def without(part: str, name: str) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        held = dict(getattr(program.members[1], part))
        del held[name]
        return replace(program, members=[program.members[0], replace(program.members[1], **{part: held})])

    return change


def with_value(which: str, **fields: Any) -> Callable[[Program], Program]:
    return lambda p: replace(p, values={**p.values, which: replace(p.values[which], **fields)})


def with_signature(**fields: Any) -> Callable[[Program], Program]:
    return lambda p: replace(p, signature=replace(p.signature, **fields))


def reordered(program: Program) -> Program:
    return replace(program, ops=(program.ops[1], program.ops[0], *program.ops[2:]))


def doubled(program: Program) -> Program:
    return replace(program, ops=(*program.ops, program.ops[-1]))


class Foreign(Lookup):
    kind = "lookup"


WRONG: list[tuple[Callable[[Program], Program], str]] = [
    # ops and values
    (reordered, "'drop' must read values that are written before it"),
    (doubled, "every op must have a name of its own"),
    (with_op("add", output="max"), "written once"),
    (with_op("mul", name="cat"), "a name of its own"),
    (with_op("mul", inputs=("rescale", "nothing")), "'mul' must read values"),
    (with_op("mul", name="a\x1b[2J"), "printable"),
    (with_op("mul", name="n" * 201), "1 to 200"),
    (unchecked("slice", "step", True), "'slice': step must be a whole number"),
    (unchecked("slice", "start", 1.0), "'slice': start must be a whole number"),
    (unchecked("drop", "rate", 1), "'drop': rate must be a finite real"),
    (unchecked("flat", "shape", [168]), "'flat'"),
    (lambda p: replace(p, ops=()), "1 to 10000 ops"),
    (lambda p: replace(p, ops=tuple(p.ops) * 501), "1 to 10000 ops"),
    (lambda p: replace(p, members=[]), "1 to 10000 members"),
    (lambda p: replace(p, ops=(*p.ops[:6], Foreign("tanh", ("norm",), "tanh"), *p.ops[7:])), "known kind"),
    (lambda p: replace(p, input="nowhere"), "nothing about 'nowhere'"),
    (lambda p: replace(p, values={**p.values, "extra": Value("extra", (1,), 8)}), "those that the ops make"),
    (with_value("sum", shape=(4, 4, 5)), "those that the ops make"),
    (with_value("sum", name="total"), "those that the ops make"),
    (with_value("sum", bits=9), "'sum' must have codes of 2 to 8 bits"),
    (with_value("sum", bits=1), "2 to 8 bits"),
    (with_value("x", bits=17), "'x' must have codes of 2 to 16 bits"),
    (with_value("hidden", bits=9), "'paper' must read codes of at most 8 bits"),
    (with_value("conv", bits=16), "'drop' must read codes of at most 8 bits"),
    (with_value("head", bits=17), "'head' must have codes of 2 to 16 bits"),
    (with_value("x", bits=True), "whole number"),
    (with_value("max", bits=8), "'max' must keep the bits"),
    (with_op("up", factors=(50_000, 50_000)), r"at most 2\^28"),
    (with_op("conv", padding=(100_000, 100_000), stride=(90_000, 90_000)), "padded row"),
    (with_op("avg", adaptive=(1 << 20, 1 << 20)), r"2\^22 windows"),
    (with_op("pad", amounts=((0, 0), (-9, 20), (0, 1))), "'pad': a cut"),
    (with_op("flat", shape=(1,) * 17 + (168,)), "at most 16 axes"),
    # sites
    (with_op("drop2", site=0), "'drop' and 'drop2': 0"),
    (with_op("drop2", site=1), "different sites"),
    (with_op("drop2", site=4), "different sites"),
    # constants
    (with_constant("add", "shift", 63), "member 1: 'add': shift must lie in 0 … 62"),
    (with_constant("noisy", "noise_shift", 63), "noise_shift must lie in 0 … 62"),
    (with_constant("cat", "shifts", 63), "shifts must lie in 0 … 62"),
    (with_constant("paper", "mix_shift", 63), "mix_shift"),
    (with_constant("mul", "multiplier", -(1 << 31)), "multiplier must lie in"),
    (with_constant("mul", "multiplier", 1 << 31), "multiplier must lie in"),
    (with_constant("paper", "mix", -(1 << 31)), "mix must lie in"),
    (with_constant("conv", "weight", -8), "'conv': weight must lie in -7 … 7"),
    (with_constant("conv", "weight", 8), "weight must lie in -8 … 7"),
    (with_constant("head", "weight_zero", -33), "weight_zero must lie in -32 … 31"),
    (with_constant("paper", "mean_zero", 16), "mean_zero must lie in -16 … 15"),
    (with_constant("noisy", "sigma", 32), "sigma must lie in 0 … 31"),
    (with_constant("noisy", "sigma", -1), "sigma must lie in 0 … 31"),
    (with_constant("tanh", "table", 64), "table must lie in 0 … 63"),
    (with_constant("tanh", "table", lambda t: t[:-1]), r"table must have the shape \(128,\)"),
    (with_constant("rescale", "high", 128), "high must lie in 0 … 127"),
    (lambda p: with_constant("add", "high", 2)(with_constant("add", "low", 3)(p)), "low must be at most"),
    (with_constant("pad", "fill", 128), "fill must lie in 0 … 127"),
    (with_constant("conv", "weight", lambda t: t.float()), "must be integers"),
    (with_constant("conv", "weight", lambda t: t > 0), "must be integers"),
    (with_constant("conv", "weight", lambda t: t.flatten()), "must have the shape"),
    (with_constant("conv", "weight", lambda t: t.tolist()), "must be a tensor"),
    (with_constant("avg", "multiplier", lambda t: t[:1]), r"must have the shape \(9,\)"),
    (with_constant("conv", "bias", ACCUMULATOR_LIMIT), "sums of 'conv' must fit int32"),
    (with_constant("hidden", "bias", -ACCUMULATOR_LIMIT), "sums of 'hidden' must fit int32"),
    (with_member(constants={"nothing": {}}), "ops of the program only"),
    (with_member(constants={"conv": {}}), "'conv' must have"),
    (with_member(constants={"drop": {"x": torch.zeros(1, dtype=torch.int8)}}), "'drop' must have"),
    (without("constants", "conv"), "'conv' must have"),
    # grids
    (with_member(zeros={"sum": 128}), "zero-point of 'sum' must be a code of 7 bits"),
    (with_member(zeros={"sum": -1}), "zero-point of 'sum'"),
    (with_member(zeros={"sum": True}), "zero-point of 'sum'"),
    (with_member(zeros={"sum": 3.0}), "zero-point of 'sum'"),
    (with_member(zeros={"other": 3}), "a zero-point for every value"),
    (with_member(scales={"other": 3.0}), "a scale for every value"),
    (without("zeros", "x"), "a zero-point for every value"),
    (without("scales", "x"), "a scale for every value"),
    (lambda p: with_member(zeros={"up": p.members[1].zeros["up"] ^ 1})(p), "must keep the bits and the zero"),
    *[(with_member(scales={"sum": s}), "scale of 'sum'") for s in (0.0, -1.0, 1e-40, 1e37, math.nan, 1e300)],
    *[(with_member(deviations={"noisy": bad}), "deviation of 'noisy'") for bad in (0.0, math.nan)],
    (with_member(deviations={"conv": 1.0}), "deviations of Gaussian ops only"),
    # outputs and signature
    (lambda p: replace(p, outputs={}), "the one head ''"),
    (lambda p: replace(p, outputs={"mean": "head"}), "the one head ''"),
    (lambda p: replace(p, outputs={"": "paper"}), r"must have the shape \(3,\)"),
    (lambda p: replace(p, outputs={"": "nowhere"}), "must be a value of the program"),
    (lambda p: replace(p, constant_heads={"log_variance": [0.0] * 3}), "the one head ''"),
    (with_signature(likelihood=Categorical(4), labels=()), r"must have the shape \(4,\)"),
    (with_signature(input_shape=(2, 8, 9)), "of the signature"),
    (with_signature(labels=("a",)), "one label"),
    (with_signature(target=None, likelihood=Gaussian((3,))), "must fit each other"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "why"), WRONG, ids=[f"{i}" for i in range(len(WRONG))])
def test_wrong_programs_are_refused(
    change: Callable[[Program], Program], why: str, make_program: Make
) -> None:
    program = make_program()
    verify(program)
    wrong = change(program)
    with pytest.raises(BadInput) as caught:
        verify(wrong)
    assert re.search(why, f"{caught.value.must} {caught.value.got}"), caught.value
    assert caught.value.do


@pytest.mark.parametrize(
    ("numbers", "right"),
    [
        ([0.0, 1.0], True),
        ([0.0, 1.0, 2.0, 3.0], True),
        ([0.0], False),
        ([0.0] * 3, False),
        ([], False),
        ([0.0, math.nan], False),
        ([0, 1], False),
        ((0.0, 1.0), False),
    ],
)
def test_constant_heads(numbers: Any, right: bool, make_program: Make) -> None:
    """One number a target, or as many for each of two members."""
    program = replace(make_program("constant", members=2), constant_heads={"log_variance": numbers})
    if right:
        verify(program)
        return
    with pytest.raises(BadInput, match="constant head"):
        verify(program)


@pytest.mark.parametrize(
    ("outputs", "constant"),
    [
        ({"": "head0"}, {}),
        ({"mean": "head0"}, {}),
        ({"mean": "head0"}, {"variance": [0.0, 0.0]}),
        ({"mean": "head0", "log_variance": "head1"}, {"log_variance": [0.0, 0.0]}),
    ],
)
def test_heads_of_a_regression(outputs: Any, constant: Any, make_program: Make) -> None:
    with pytest.raises(BadInput, match="heads mean and log_variance"):
        verify(replace(make_program("heads"), outputs=outputs, constant_heads=constant))


def test_a_layer_used_twice_has_one_site(build_classifier: Make) -> None:
    """One draw of weights for both uses, as in the float network; other weights are another layer."""

    def program(second: Weights, width: int) -> Program:
        first = Weights("gaussian", 4, site=7)
        ops: list[Op] = [
            Linear("a", ("x",), "a", first, 4, 4),
            Mask("m", ("a",), "m", site=8, rate=0.5),
            Linear("b", ("m",), "b", second, 4, width),
            Mask("n", ("b",), "n", site=8, rate=0.5),
        ]
        return build_classifier(ops, {"x": 8, "a": 8, "m": 8, "b": 8, "n": 8}, (4,), width)

    verify(program(Weights("gaussian", 3, site=7, grids=2), 4))
    with pytest.raises(BadInput, match="'a' and 'b': 7"):
        verify(program(Weights("gaussian", 4, site=7), 3))
    with pytest.raises(BadInput, match="'m' and 'b': 8"):
        verify(program(Weights("gaussian", 4, site=8), 4))


@pytest.mark.parametrize("second", [{"rate": 0.25}, {"channelwise": True}, {}])
def test_masks_of_one_site_are_one_mask(second: dict[str, Any], build_classifier: Make) -> None:
    ops: list[Op] = [
        Mask("m", ("x",), "m", site=8, rate=0.5),
        Mask("n", ("m",), "n", **{"site": 8, "rate": 0.5, **second}),
    ]
    program = build_classifier(ops, {"x": 8, "m": 8, "n": 8}, (4,), 4)
    if not second:
        verify(program)
        return
    with pytest.raises(BadInput, match="'m' and 'n': 8"):
        verify(program)


def test_all_kinds_are_in_the_program_of_every_op(make_program: Make) -> None:
    from qbayes.integer.ops import OPS

    program = make_program()
    assert {op.kind for op in program.ops} == set(OPS)
    assert {(op.weights.kind, op.weights.grids) for op in program.ops if isinstance(op, Weighted)} == {
        ("point", 1), ("gaussian", 0), ("gaussian", 1), ("gaussian", 2)
    }  # fmt: skip
    used = {Add, Affine, AvgPool, Concat, Conv, Mul, Pad, Reshape, Upsample}
    assert used <= {type(op) for op in program.ops}


def test_wide_codes_are_for_answers_of_weighted_ops(make_program: Make) -> None:
    """16 bits pass; a constant, zero-point or scale beyond them does not, nor do they beyond the head."""
    wide = make_program("wide")
    verify(wide)
    for change, why in (
        (with_value("head0", bits=17), "'head0' must have codes of 2 to 16 bits"),
        (with_value("first", bits=9), "'head0' must read codes of at most 8 bits"),
        (with_constant("head0", "high", 1 << 16), "'head0': high must lie in 0 … 65535"),
        (with_constant("head1", "high", 1 << 11), "'head1': high must lie in 0 … 2047"),
        (with_member(zeros={"head1": 1 << 11}), "zero-point of 'head1' must be a code of 11 bits"),
        # 2^119 times 255 is a float32, times 65535 it is none.
        (with_member(scales={"head0": 2.0**119}), "the scale of 'head0'"),
    ):
        with pytest.raises(BadInput, match=re.escape(why)):
            verify(change(make_program("wide")))
    verify(with_member(scales={"head0": 2.0**111, "first": 2.0**119})(wide))
