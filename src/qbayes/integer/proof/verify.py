"""Proves a program right: whatever its codes and its input, running it meets no surprise.

For every op and member: types, shapes and widths fit, constants and zero-points lie in their ranges, sums
stay in int32 and products in int64 (from the actual codes, or from the clamp where weights are sampled),
clamps stay inside the codes of the output, values exist before they are read, codes wider than a byte are the
input's, read by weighted ops alone (if need be through ops that move them), or made by weighted ops and read
by none, and the outputs are what the likelihood reads. Whoever runs a program may rely on all of it, also for
one that came from a hostile file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import OPS, Constant, Value, Weighted
from qbayes.integer.ops.base import ACCUMULATOR_LIMIT, DO, PRODUCT_LIMIT, Bound, Constants, Grids, Op, require
from qbayes.integer.proof.budget import MOST_OPS, check_members, check_row, propagate
from qbayes.integer.structure.op_record import code_range, decode, encode
from qbayes.integer.structure.program_data import Member, ProgramData
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Signature


def check_codes(op: Op, constants: Constants, grids: Grids) -> None:
    """Raise unless the constants, already of their declared widths, lie in the ranges their roles have."""
    for name, codes in constants.items():
        limits = op.limits(name, grids)
        if limits is not None:
            _within(op, name, codes, *limits)
    if "low" in constants:
        low, high = int(constants["low"]), int(constants["high"])
        if low > high:
            require(False, f"'{op.name}': low must be at most high", f"{low} and {high}")
    if op.keeps_grid:
        before, after = (grids.bits[0], grids.zeros[0]), (grids.out_bits, grids.zero)
        if before != after:
            must = f"'{op.name}' must keep the bits and the zero-point of its codes"
            require(False, must, f"{before} before, {after} after")


def _within(op: Op, name: str, codes: Tensor, low: int, high: int) -> None:
    least, most = extremes(codes)
    if not low <= least <= most <= high:
        require(False, f"'{op.name}': {name} must lie in {low} … {high}", f"{least} … {most}")


def extremes(codes: Tensor) -> tuple[int, int]:
    """The least and the greatest of integers; most constants are a single one."""
    if codes.numel() == 1:
        return (only := int(codes)), only
    return int(codes.min()), int(codes.max())


MOST_MEMBERS = 10_000
# float32 ends at 2^128 and loses digits below 2^−126; with n bits |q − Z| is below 2^n.
SMALLEST_SCALE, LARGEST_NUMBER = 2.0**-100, 2.0**127


@dataclass(frozen=True)
class OpProof:
    """What was proven of one op, over all members: its largest sum in int32 and product in int64."""

    op: str
    accumulator: int
    product: int

    @property
    def accumulator_bits(self) -> int:
        """Bits of a signed integer that holds every sum; 0 for an op without one."""
        return self.accumulator.bit_length() + 1 if self.accumulator else 0


@dataclass(frozen=True)
class Proof:
    """That a program is right, with the numbers that show it, op by op."""

    ops: tuple[OpProof, ...]


def verify(program: ProgramData) -> Proof:
    """The proof of a program; raises BadInput with the op and the constant that fail."""
    _check_counts(program)
    for op in program.ops:
        _check_op(op)
    values = propagate(program.ops, program.values[program.input], _bits(program))
    require(
        values == dict(program.values),
        "the values must be those that the ops make",
        _differing(program, values),
    )
    check_row(program)
    return verify_members(program)


def verify_members(program: ProgramData) -> Proof:
    """The proof of a program whose ops, values and costs of a row are right, as ``read_text`` gives it."""
    check_members(program, len(program.members))
    _check_sites(program.ops)
    _check_signature(program)
    _check_outputs(program)
    bounds = [Bound()] * len(program.ops)
    expected = _Expected.of(program)
    for number, member in enumerate(program.members):
        found = _check_member(program, expected, member, f"member {number}")
        bounds = [
            Bound(max(one.accumulator, two.accumulator), max(one.product, two.product))
            for one, two in zip(bounds, found, strict=True)
        ]
    named = zip(program.ops, bounds, strict=True)
    return Proof(tuple(OpProof(op.name, bound.accumulator, bound.product) for op, bound in named))


def _check_counts(program: ProgramData) -> None:
    count = len(program.ops)
    require(1 <= count <= MOST_OPS, f"a program must have 1 to {MOST_OPS} ops", count)
    count = len(program.members)
    require(1 <= count <= MOST_MEMBERS, f"a program must have 1 to {MOST_MEMBERS} members", count)
    for name in (program.input, *(op.output for op in program.ops)):
        require(name in program.values, "every value must be described", f"nothing about '{name}'")


def _bits(program: ProgramData) -> list[int]:
    return [program.values[op.output].bits for op in program.ops]


def _differing(program: ProgramData, values: Mapping[str, Value]) -> str:
    names = sorted({*values, *program.values})
    first = next((name for name in names if values.get(name) != program.values.get(name)), "")
    return f"{program.values.get(first)}, but the ops make {values.get(first)}"


def _check_op(op: Op) -> None:
    require(
        OPS.get(op.kind) is type(op), f"ops must be of a known kind: {', '.join(OPS)}", f"{type(op).__name__}"
    )
    # only what has exactly the declared types can be written and read again.
    require(decode(type(op), encode(op), f"'{op.name}'") == op, f"'{op.name}' must have tuples for lists", op)


def _check_sites(ops: Sequence[Op]) -> None:
    """Equal sites draw equal noise: only a layer that is used several times may repeat its site."""
    users: dict[int, tuple[object, str]] = {}
    for op in ops:
        for site, user in op.sites():
            first, name = users.setdefault(site, (user, op.name))
            require(
                first == user,
                "different layers must draw from different sites",
                f"'{name}' and '{op.name}': {site}",
            )


def gaussian_ops(program: ProgramData) -> list[str]:
    """The ops that draw weights, in order."""
    return [op.name for op in program.ops if isinstance(op, Weighted) and op.weights.is_gaussian]


def _check_signature(program: ProgramData) -> None:
    signature = program.signature
    Signature.from_json(signature.to_json())  # checks that its parts fit each other
    expected, shape = signature.input_shape, program.values[program.input].shape
    require(shape == expected, f"the input must have the shape {expected} of the signature", shape)


def _check_outputs(program: ProgramData) -> None:
    """``""`` for a classifier; ``mean`` and ``log_variance``, which may be constant, for a regression."""
    likelihood, constant = program.signature.likelihood, program.constant_heads
    heads = set(program.outputs), set(constant)
    if isinstance(likelihood, Categorical):
        shape: tuple[int, ...] = (likelihood.classes,)
        require(
            heads == ({""}, set()),
            "a classifier must have the one head ''",
            f"heads {sorted(heads[0] | heads[1])}",
        )
    else:
        assert isinstance(likelihood, Gaussian)
        shape = likelihood.shape
        split = ({"mean", "log_variance"}, set()), ({"mean"}, {"log_variance"})
        require(
            heads in split,
            "a regression must have the heads mean and log_variance",
            f"computed and constant: {heads}",
        )
    made = {op.output for op in program.ops if op.computes_wide}
    for head, name in program.outputs.items():
        require(name in program.values, f"the head '{head}' must be a value of the program", f"'{name}'")
        bits = program.values[name].bits
        must = f"the head '{head}' must have at most {MOST_BITS} bits, or come from a weighted op"
        require(bits <= MOST_BITS or name in made, must, f"'{name}' with {bits} bits")
        found = program.values[name].shape
        require(found == shape, f"the head '{head}' must have the shape {shape} of the answers", found)
    count = math.prod(shape)
    for head, numbers in constant.items():
        right = isinstance(numbers, list) and all(type(n) is float and math.isfinite(n) for n in numbers)
        must = f"the constant head '{head}' must be {count} finite numbers, or as many for each member"
        require(right and len(numbers) in (count, count * len(program.members)), must, numbers)


@dataclass(frozen=True)
class _Expected:
    """What every member must have: constants of each op by name, and names of values and ops."""

    constants: Mapping[str, Mapping[str, Constant]]
    values: frozenset[str]
    gaussian: frozenset[str]

    @classmethod
    def of(cls, program: ProgramData) -> "_Expected":
        listed = {op.name: op.constants(program.values) for op in program.ops}
        by_name = {name: {one.name: one for one in constants} for name, constants in listed.items()}
        return cls(by_name, frozenset(program.values), frozenset(gaussian_ops(program)))


def _check_member(program: ProgramData, expected: _Expected, member: Member, where: str) -> list[Bound]:
    for what, held in (("zero-point", member.zeros), ("scale", member.scales)):
        if held.keys() != expected.values:
            require(False, f"{where} must have a {what} for every value", sorted(held))
    for name, value in program.values.items():
        _check_grid(name, value.bits, member.zeros[name], member.scales[name], where)
    for name, sigma in member.deviations.items():
        right = math.isfinite(sigma) and sigma > 0
        require(right, f"{where}: the deviation of '{name}' must be finite and above 0", sigma)
    if not member.deviations.keys() <= expected.gaussian:
        require(False, f"{where} must have deviations of Gaussian ops only", sorted(expected.gaussian))
    strange = member.constants.keys() - expected.constants.keys()
    require(not strange, f"{where} must have constants for ops of the program only", sorted(strange)[:1])
    return [_check_constants(program, op, expected.constants[op.name], member, where) for op in program.ops]


# Messages are made where something is wrong: there may be a hundred thousand constants.


def _check_grid(name: str, bits: int, zero: object, scale: float, where: str) -> None:
    if not (type(zero) is int and 0 <= zero < 1 << bits):
        require(False, f"{where}: the zero-point of '{name}' must be a code of {bits} bits", zero)
    if not SMALLEST_SCALE <= scale <= LARGEST_NUMBER / (1 << bits):
        must = f"{where}: the scale of '{name}' must be above 0 and S (q − Z) finite in float32"
        require(False, must, scale)


def _check_constants(
    program: ProgramData, op: Op, declared: Mapping[str, Constant], member: Member, where: str
) -> Bound:
    held = member.constants.get(op.name, {})
    if held.keys() != declared.keys():
        require(False, f"{where}: '{op.name}' must have {sorted(declared)}", sorted(held))
    for name, constant in declared.items():
        _check_constant(held[name], constant, op, where)
    grids, shapes = program.grids(op, member), [program.values[name].shape for name in op.inputs]
    try:
        check_codes(op, held, grids)
        bound = op.bound(held, grids, shapes)
        _check_bound(op, bound)
    except BadInput as error:
        raise BadInput(f"{where}: {error.must}", error.got, error.do) from None
    return bound


def _check_constant(codes: object, constant: Constant, op: Op, where: str) -> None:
    what = (where, op.name, constant.name)
    if not isinstance(codes, Tensor):
        raise _wrong_constant(what, "be a tensor", type(codes).__name__)
    if codes.is_floating_point() or codes.is_complex() or codes.dtype == torch.bool:
        raise _wrong_constant(what, "be integers", codes.dtype)
    if codes.shape != constant.shape:
        raise _wrong_constant(what, f"have the shape {constant.shape}", tuple(codes.shape))
    (low, high), (least, most) = code_range(constant.bits, constant.signed), extremes(codes)
    if not low <= least <= most <= high:
        raise _wrong_constant(what, f"lie in {low} … {high}", f"{least} … {most}")


def _wrong_constant(what: tuple[str, str, str], must: str, got: object) -> BadInput:
    where, op, name = what
    return BadInput(f"{where}: '{op}': {name} must {must}", f"{got}"[:200], DO)


def _check_bound(op: Op, bound: Bound) -> None:
    if bound.accumulator > ACCUMULATOR_LIMIT:
        raise BadInput(
            f"the sums of '{op.name}' must fit int32, whatever the input",
            f"up to {bound.accumulator}, above 2^31 − 1",
            "give the layer fewer inputs a channel, or fewer bits",
        )
    if bound.product > PRODUCT_LIMIT:
        raise BadInput(
            f"the rescaled sums of '{op.name}' must stay below 2^62 before their shift",
            f"{bound.product}",
            DO,
        )
