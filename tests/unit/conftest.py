"""Small integer programs, made by hand: every op in one classifier, a regression for each kind of head."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from qbayes.integer.ops import (
    Add,
    Affine,
    AvgPool,
    Concat,
    Conv,
    Linear,
    Lookup,
    Mask,
    MaxPool,
    Mul,
    Noise,
    Op,
    Pad,
    Permute,
    Rescale,
    Reshape,
    Slice,
    Upsample,
    Value,
    Weighted,
    Weights,
)
from qbayes.integer.program import Program
from qbayes.integer.structure.op_record import code_range, code_type
from qbayes.integer.structure.program_data import Member
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Signature, Standardize

PAIR = ((1, 1), (1, 1), (1, 1))


def every_op() -> tuple[list[Op], dict[str, int]]:
    """A network on rows of 2 × 8 × 8 with each op, each kind of weight, and three outputs; and odd widths."""
    gaussian = Weights("gaussian", 3, sigma_bits=5, noise_bits=6, site=1, grids=2)
    with_bias = Weights("gaussian", 8, per_channel=False, site=3, bias_site=4)
    of_paper = Weights("gaussian", 5, affine=True, per_channel=False, site=5, grids=0)
    affine = Weights("point", 6, affine=True)
    ops: list[Op] = [
        Conv("conv", ("x",), "conv", Weights("point", 4), 2, 4, (3, 3), (1, 1), (1, 1), (1, 1)),
        Mask("drop", ("conv",), "drop", site=0, rate=0.25, channelwise=True),
        MaxPool("max", ("drop",), "max", (2, 2), (2, 2), (0, 0), (1, 1)),
        Conv("noisy", ("max",), "noisy", gaussian, 4, 4, (3, 3), (1, 1), (1, 1), (1, 1), groups=2),
        Add("add", ("max", "noisy"), "sum"),
        Affine("norm", ("sum",), "norm", channels=4),
        Lookup("tanh", ("norm",), "tanh"),
        Rescale("rescale", ("tanh",), "rescale"),
        Mul("mul", ("rescale", "norm"), "mul"),
        Concat("cat", ("mul", "sum"), "cat", axis=1),
        AvgPool("avg", ("cat",), "avg", (2, 2), (2, 2), (1, 1), count_include_pad=False),
        Upsample("up", ("avg",), "up", factors=(2, 2)),
        Pad("pad", ("up",), "pad", amounts=((0, 0), (1, 1), (0, 1))),
        Slice("slice", ("pad",), "slice", axis=2, start=1, stop=7, step=2),
        Permute("permute", ("slice",), "permute", order=(0, 2, 1, 3)),
        Reshape("flat", ("permute",), "flat", shape=(168,)),
        Mask("drop2", ("flat",), "drop2", site=2, rate=0.5),
        Linear("hidden", ("drop2",), "hidden", with_bias, 168, 6),
        Linear("paper", ("hidden",), "paper", of_paper, 6, 5),
        Linear("head", ("paper",), "head", affine, 5, 3),
    ]
    bits = {"x": 8, "tanh": 6, "hidden": 5, "paper": 4, "head": 8}
    return ops, {"x": 8, **{op.output: bits.get(op.output, 7) for op in ops}}


def point_ops(outputs: int = 2, wide: bool = False) -> tuple[list[Op], dict[str, int]]:
    """Two point layers; the second one may be split in two heads, of 16 and 11 bits where they are wide."""
    weights = Weights("point", 4)
    ops: list[Op] = [
        Linear("first", ("x",), "first", weights, 4, 5),
        *(Linear(f"head{i}", ("first",), f"head{i}", weights, 5, 2) for i in range(outputs)),
    ]
    heads = {"head0": 16, "head1": 11} if wide else {}
    return ops, {"x": 8, **{op.output: 8 for op in ops}, **heads}


def make_constants(
    op: Op, values: Mapping[str, Value], zero: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Random constants at which codes neither vanish nor all saturate."""

    def numbers(low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    found: dict[str, Tensor] = {}
    for constant in op.constants(values):
        low, high = code_range(constant.bits, constant.signed)
        name = constant.name
        if "multiplier" in name or name == "mix":
            low, high = 1 << 29, (1 << 30) - 1
        elif "shift" in name:
            low = high = _shift(op, name, values)
        elif isinstance(op, Weighted) and name in ("weight", "mean", "weight_zero", "mean_zero"):
            low, high = op.weights.limits
        elif name in ("bias", "offset"):
            low, high = -200, 200
        elif name in ("low", "high"):
            low = high = 0 if name == "low" else (1 << values[op.output].bits) - 1
        elif name == "fill":
            low = high = zero
        found[name] = numbers(low, high, constant.shape).to(code_type(constant.bits, constant.signed))
    return found


def _shift(op: Op, name: str, values: Mapping[str, Value]) -> int:
    """With multipliers near 2^30: a right shift by 30 multiplies by about 1."""
    if isinstance(op, Weighted):
        weights, fan_in = op.weights, math.prod(op.weight_shape[1:])
        if name == "shift":
            # sums of √fan_in · (half of the weights' codes) · (a sixth of the input's), roughly
            wide = weights.bits - 1 + values[op.inputs[0]].bits - values[op.output].bits
            least = 0 if values[op.output].bits <= 8 else -20  # wide codes take more than a sum gives
            return 30 + max(wide + round(math.log2(fan_in) / 2) - 1, least)
        if name == "noise_shift":
            return 30 + max(weights.sigma_bits + weights.noise_bits - 2 - weights.bits, 0)
    return {"mix_shift": 31, "bias_noise_shift": 36}.get(name, 34 if isinstance(op, Mul) else 30)


def build(
    ops: list[Op], bits: Mapping[str, int], shape: tuple[int, ...], signature: Signature, **more: Any
) -> Program:
    """A program of these ops with random constants; ops that move codes keep their zero-point."""
    values = {"x": Value("x", shape, bits["x"])}
    for op in ops:
        values[op.output] = Value(
            op.output, op.out_shape([values[name].shape for name in op.inputs]), bits[op.output]
        )
    generator = torch.Generator().manual_seed(more.pop("seed", 0))
    members = [_member(ops, values, generator) for _ in range(more.pop("members", 1))]
    return Program(values, tuple(ops), "x", more.pop("outputs"), members, signature, **more)


def _member(ops: list[Op], values: Mapping[str, Value], generator: torch.Generator) -> Member:
    def below(bits: int) -> int:
        return int(torch.randint(0, 1 << bits, (), generator=generator))

    zeros, constants = {"x": below(8)}, {}  # the input's anywhere, the others in the middle
    for op in ops:
        moves = isinstance(op, Mask | MaxPool | Upsample | Pad | Slice | Reshape | Permute)
        zeros[op.output] = (
            zeros[op.inputs[0]]
            if moves
            else (1 << values[op.output].bits - 2) + below(values[op.output].bits - 1)
        )
        constants[op.name] = make_constants(op, values, zeros[op.output], generator)
    scales = {name: float(torch.rand((), generator=generator)) + 0.01 for name in values}
    noisy = [op.name for op in ops if isinstance(op, Weighted) and op.weights.is_gaussian]
    return Member(zeros, scales, constants, dict.fromkeys(noisy[:2], 0.125))


def signature(shape: tuple[int, ...], classes: int = 0, targets: int = 2) -> Signature:
    scale = Standardize(torch.linspace(-1, 1, shape[0]), torch.linspace(0.5, 2, shape[0]))
    if classes:
        return Signature("test", shape, scale, Categorical(classes), None, tuple("abcdefghij"[:classes]))
    target = Standardize(torch.zeros(targets), torch.ones(targets))
    return Signature("test", shape, scale, Gaussian((targets,)), target)


ABOUT: dict[str, Any] = {
    "precision": {"weight": 4, "note": "ü"},
    "provenance": {"seed": 3, "method": {"name": "mcd"}},
}


def make_program(kind: str = "every", members: int = 2, seed: int = 0) -> Program:
    """``every``: all ops, a classifier; ``heads``: a regression with two heads, ``wide``: of more than 8 bits
    each; ``constant``: with one.
    """
    more = {"members": members, "seed": seed, **ABOUT}
    if kind == "every":
        ops, bits = every_op()
        return build(ops, bits, (2, 8, 8), signature((2, 8, 8), classes=3), outputs={"": "head"}, **more)
    ops, bits = point_ops(1 if kind == "constant" else 2, wide=kind == "wide")
    outputs = {"mean": "head0"} if kind == "constant" else {"mean": "head0", "log_variance": "head1"}
    heads = {"constant_heads": {"log_variance": [-1.5, 0.25]}} if kind == "constant" else {}
    return build(ops, bits, (4,), signature((4,)), outputs=outputs, **heads, **more)


def run_ops(program: Program, member: int, codes: Tensor, seed: int = 0, draws: int = 2) -> dict[str, Tensor]:
    """Every value by the ops' own definition, draws folded into the batch as its outer part."""
    held = program.members[member]
    noise = Noise(seed, torch.arange(draws), 0, len(codes))
    values = {program.input: codes.repeat(draws, *(1,) * (codes.dim() - 1))}
    for op in program.ops:
        inputs = [values[name] for name in op.inputs]
        values[op.output] = op.run(inputs, program.grids(op, held), held.constants.get(op.name, {}), noise)
    return values


@pytest.fixture(name="make_program")
def make_program_fixture() -> Callable[..., Program]:
    return make_program


@pytest.fixture(name="build_classifier")
def build_classifier_fixture() -> Callable[..., Program]:
    """A program of the given ops (their last output has ``classes`` elements) on rows of a shape."""

    def make(
        ops: list[Op], bits: Mapping[str, int], shape: tuple[int, ...], classes: int, **more: Any
    ) -> Program:
        return build(
            ops, bits, shape, signature(shape, classes=classes), outputs={"": ops[-1].output}, **more
        )

    return make


@pytest.fixture(name="run_ops")
def run_ops_fixture() -> Callable[..., dict[str, Tensor]]:
    return run_ops
