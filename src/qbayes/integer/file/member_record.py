"""The packed constants of a member in a program's file.

A member's scales are those of its values, then for each Gaussian op the root mean square of σ, 0 where it is
not known. Its bytes are the constants of the ops in order, each packed to its bits and begun on a whole byte,
then the zero-point of every value: one byte, or two (little endian) where its codes have more than 8 bits.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from qbayes.integer.file.record import refuse
from qbayes.integer.ops.base import Constant, Op
from qbayes.integer.proof.budget import check_members
from qbayes.integer.proof.verify import MOST_MEMBERS, gaussian_ops
from qbayes.integer.structure.op_record import bytes_packed, pack, refuse_unused_bits, unpack_rows
from qbayes.integer.structure.program_data import Member, ProgramData

_SMALL = 64  # bytes of a constant


def pack_member(program: ProgramData, member: Member) -> bytes:
    """The constants and zero-points of one member."""
    parts = [
        pack(member.constants[op.name][constant.name], constant.bits, constant.signed)
        for op, constant in _all_constants(program)
    ]
    sizes = _zero_bytes(program)
    zeros = [member.zeros[name].to_bytes(size, "little") for name, size in sizes.items()]
    return b"".join([*parts, *zeros])


def _zero_bytes(program: ProgramData) -> dict[str, int]:
    """How many bytes the zero-point of each value takes, in the order of the values."""
    return {name: bytes_packed(1, program.values[name].bits) for name in program.value_order()}


def scale_row(program: ProgramData, member: Member) -> list[float]:
    """The scales of the values in order, then the deviations of the Gaussian ops."""
    deviations = [member.deviations.get(name, 0.0) for name in gaussian_ops(program)]
    return [*(member.scales[name] for name in program.value_order()), *deviations]


def _all_constants(program: ProgramData) -> Iterator[tuple[Op, Constant]]:
    for op in program.ops:
        for constant in op.constants(program.values):
            yield op, constant


def member_bytes(program: ProgramData) -> int:
    """What one member takes in the file's codes."""
    return _bytes(program, _packings(program))


def _bytes(program: ProgramData, constants: Sequence["_Packed"]) -> int:
    packed = constants[-1].start + constants[-1].width if constants else 0
    return packed + sum(_zero_bytes(program).values())


@dataclass(frozen=True)
class _Packed:
    """A constant among the bytes of a member."""

    op: str
    constant: Constant
    start: int
    width: int


def _packings(program: ProgramData) -> list[_Packed]:
    found, start = list[_Packed](), 0
    for op, constant in _all_constants(program):
        width = bytes_packed(math.prod(constant.shape), constant.bits)
        found.append(_Packed(op.name, constant, start, width))
        start += width
    return found


def unpack_members(program: ProgramData, codes: Tensor, scales: Tensor) -> Iterator[Member]:
    """The members of a program from the two tensors of its file."""
    if codes.ndim != 2 or not 1 <= codes.shape[0] <= MOST_MEMBERS:
        refuse(f"a program must have 1 to {MOST_MEMBERS} members", f"codes of shape {tuple(codes.shape)}")
    check_members(program, codes.shape[0])
    packed, values, gaussian = _packings(program), program.value_order(), gaussian_ops(program)
    size, count = _bytes(program, packed), len(values) + len(gaussian)
    if codes.shape[1] != size:
        refuse(f"the codes of a member must take {size} bytes", f"a tensor of {tuple(codes.shape)}")
    if scales.shape != (codes.shape[0], count):
        refuse(f"there must be {count} scales a member", f"a tensor of {tuple(scales.shape)}")
    found, zeros = _unpack(program, packed, codes), _zeros(program, codes)
    for member, row in enumerate(scales.tolist()):
        sigmas = zip(gaussian, row[len(values) :], strict=True)
        yield Member(
            zeros=dict(zip(values, zeros[member], strict=True)),
            scales=dict(zip(values, row, strict=False)),
            constants={
                op: {name: tensors[member] for name, tensors in held.items()} for op, held in found.items()
            },
            deviations={name: sigma for name, sigma in sigmas if sigma != 0},
        )


def _unpack(
    program: ProgramData, constants: Sequence[_Packed], codes: Tensor
) -> dict[str, dict[str, Sequence[Tensor]]]:
    """The constants of each op, by name: one tensor for each member.

    Small ones of one form are read at once: there may be a hundred thousand of them.
    """
    found: dict[str, dict[str, Sequence[Tensor]]] = {op.name: {} for op in program.ops}
    groups: dict[object, list[_Packed]] = {}
    for one in constants:
        found[one.op][one.constant.name] = ()  # in the order in which the op declares them
        form = (one.constant.shape, one.constant.bits, one.constant.signed)
        groups.setdefault(form if one.width <= _SMALL else one.start, []).append(one)
    for group in groups.values():
        for one, tensors in zip(group, _read_group(group, codes), strict=True):
            found[one.op][one.constant.name] = tensors
    return found


def _read_group(group: Sequence[_Packed], codes: Tensor) -> list[Sequence[Tensor]]:
    """The tensors of every member for constants of one form."""
    form, width = group[0].constant, group[0].width
    if len(group) == 1:
        rows = codes.numpy()[:, group[0].start : group[0].start + width]
    else:
        starts = np.array([one.start for one in group])
        rows = codes.numpy()[:, starts[:, None] + np.arange(width)].reshape(-1, width)
    found, right = unpack_rows(rows, math.prod(form.shape), form.bits, form.signed)
    if not right.all():
        one, error = group[int(np.argmin(right)) % len(group)], refuse_unused_bits()
        refuse(f"'{one.op}': {one.constant.name}: {error.must}", error.got)
    if len(rows) == 1:
        return [(found.view(form.shape),)]
    # each with memory of its own: a part of a larger one would be pickled with the whole.
    tensors = cast(Sequence[Tensor], torch.unbind_copy(found.view(-1, *form.shape)))
    return [tensors[place :: len(group)] for place in range(len(group))]


def _zeros(program: ProgramData, codes: Tensor) -> list[list[int]]:
    """The zero-points of every member, in the order of the values."""
    sizes = np.array(list(_zero_bytes(program).values()))
    last = codes.numpy()[:, -sizes.sum() :].astype(np.int32)
    places, wide = sizes.cumsum() - sizes, sizes > 1
    zeros = last[:, places]
    zeros[:, wide] += last[:, places[wide] + 1] << 8
    return zeros.tolist()
