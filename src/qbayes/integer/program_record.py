"""The parts of a program's file: its JSON text, and the packed constants of a member.

Ops are lists: ``[kind, name, inputs, output, bits of the output, own fields …]``, where ``fields`` names
the own fields of each kind once. Values are numbered, 0 the input and i + 1 the output of op i; ``output``
is null where it is called like its op; shapes are not written, they follow from the ops.

A member's scales are those of its values, then for each Gaussian op the root mean square of σ, 0 where it is
not known. Its bytes are the constants of the ops in order, each packed to its bits and begun on a whole byte,
then the zero-point of every value: one byte, or two (little endian) where its codes have more than 8 bits.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from qbayes.errors import BadFile, BadInput, QbayesError
from qbayes.integer.op_record import decode, encode, field_types
from qbayes.integer.ops import OPS
from qbayes.integer.ops.base import Constant, Op, Value
from qbayes.integer.pack import pack, packed_bytes, unpack
from qbayes.integer.program import Member, Program
from qbayes.integer.verify import MOST_MEMBERS, MOST_OPS, gaussian_ops, propagate
from qbayes.posterior.signature import Signature

FORMAT = "qbayes-program"
VERSION = 1
RESTORE = "restore it from a copy, or export the program again"
_ENTRIES = {"format", "version", "fields", "input", "ops", "outputs", "constant_heads"} | {
    "signature",
    "precision",
    "provenance",
}
LONGEST_ENTRY = 1000  # characters of JSON that an entry of the provenance may take

_SHARED_FIELDS = ("name", "inputs", "output")


def write_text(program: Program) -> str:
    """The one JSON text of a verified program."""
    numbers = {name: number for number, name in enumerate(program.value_order())}
    first = program.values[program.input]
    return _dumped(
        {
            "format": FORMAT,
            "version": VERSION,
            "fields": {kind: _own_fields(kind) for kind in sorted({op.kind for op in program.ops})},
            "input": encode(first),
            "ops": [_encoded(op, program.values[op.output].bits, numbers) for op in program.ops],
            "outputs": {head: numbers[name] for head, name in program.outputs.items()},
            "constant_heads": dict(program.constant_heads),
            "signature": program.signature.to_json(),
            "precision": dict(program.precision),
            "provenance": _short(program.provenance),
        }
    )


def _dumped(data: object) -> str:
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is JSON, but no text that one could print
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(
            "a program's names, precision and provenance must be JSON with finite numbers",
            f"{error}",
            "leave the rest out",
        ) from None


def _short(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Without the long entries: a program goes to small devices; a history of losses stays at home."""
    return {key: entry for key, entry in provenance.items() if len(_dumped(entry)) <= LONGEST_ENTRY}


def _own_fields(kind: str) -> list[str]:
    return [name for name in field_types(OPS[kind]) if name not in _SHARED_FIELDS]


def _encoded(op: Op, bits: int, numbers: Mapping[str, int]) -> list[Any]:
    output = None if op.output == op.name else op.output
    own = [encode(getattr(op, name)) for name in _own_fields(op.kind)]
    return [op.kind, op.name, [numbers[name] for name in op.inputs], output, bits, *own]


def pack_member(program: Program, member: Member) -> bytes:
    """The constants and zero-points of one member."""
    parts = [
        pack(member.constants[op.name][constant.name], constant.bits, constant.signed)
        for op, constant in _all_constants(program)
    ]
    sizes = _zero_bytes(program)
    zeros = [member.zeros[name].to_bytes(size, "little") for name, size in sizes.items()]
    return b"".join([*parts, *zeros])


def _zero_bytes(program: Program) -> dict[str, int]:
    """How many bytes the zero-point of each value takes, in the order of the values."""
    return {name: packed_bytes(1, program.values[name].bits) for name in program.value_order()}


def scale_row(program: Program, member: Member) -> list[float]:
    """The scales of the values in order, then the deviations of the Gaussian ops."""
    deviations = [member.deviations.get(name, 0.0) for name in gaussian_ops(program)]
    return [*(member.scales[name] for name in program.value_order()), *deviations]


def _all_constants(program: Program) -> Iterator[tuple[Op, Constant]]:
    for op in program.ops:
        for constant in op.constants(program.values):
            yield op, constant


def member_bytes(program: Program) -> int:
    """What one member takes in the file's codes."""
    packed = sum(packed_bytes(math.prod(c.shape), c.bits) for _, c in _all_constants(program))
    return packed + sum(_zero_bytes(program).values())


def unpack_members(program: Program, codes: Tensor, scales: Tensor) -> Iterator[Member]:
    """The members of a program from the two tensors of its file."""
    size, names = member_bytes(program), (*program.value_order(), *gaussian_ops(program))
    if codes.ndim != 2 or not 1 <= codes.shape[0] <= MOST_MEMBERS:
        refuse(f"a program must have 1 to {MOST_MEMBERS} members", f"codes of shape {tuple(codes.shape)}")
    if codes.shape[1] != size:
        refuse(f"the codes of a member must take {size} bytes", f"a tensor of {tuple(codes.shape)}")
    if scales.shape != (codes.shape[0], len(names)):
        refuse(f"there must be {len(names)} scales a member", f"a tensor of {tuple(scales.shape)}")
    for blob, row in zip(codes, scales.tolist(), strict=True):
        yield _unpacked(program, blob.numpy().data, row)


def _unpacked(program: Program, blob: memoryview, row: list[float]) -> Member:
    constants: dict[str, dict[str, Tensor]] = {op.name: {} for op in program.ops}
    start = 0
    for op, constant in _all_constants(program):
        count = math.prod(constant.shape)
        stop = start + packed_bytes(count, constant.bits)
        try:
            found = unpack(blob[start:stop], count, constant.bits, constant.signed)
        except BadFile as error:
            refuse(f"'{op.name}': {constant.name}: {error.must}", error.got)
        constants[op.name][constant.name] = found.view(constant.shape)
        start = stop
    names = program.value_order()
    zeros: dict[str, int] = {}
    for name, width in _zero_bytes(program).items():
        zeros[name] = int.from_bytes(blob[start : start + width], "little")
        start += width
    scales = dict(zip(names, row, strict=False))
    sigmas = dict(zip(gaussian_ops(program), row[len(names) :], strict=True))
    return Member(zeros, scales, constants, {name: sigma for name, sigma in sigmas.items() if sigma != 0})


def refuse(must: str, got: str, do: str = RESTORE) -> NoReturn:
    raise BadFile(must, got, do)


def parse_json(text: bytes | str, what: str) -> dict[str, Any]:
    """A JSON object in which no name stands twice and every number is one."""
    try:
        data = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        refuse(f"{what} must be readable JSON", f"{error}"[:200])
    return data if isinstance(data, dict) else refuse(f"{what} must be a JSON object", type(data).__name__)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_text(text: str) -> Program:
    """The program of a JSON text, still without its members; its shapes are right, the rest is unproven."""
    header = parse_json(text, "the program")
    _check_version(header)
    first = decode(Value, header["input"], "the input")
    ops, bits = _ops(header, first)
    names = [first.name, *(op.output for op in ops)]
    heads = decode(dict[str, int], header["outputs"], "the outputs")
    wrong = [number for number in heads.values() if not 0 <= number < len(names)]
    if wrong:
        refuse(f"an output must be one of the {len(names)} values", f"number {wrong[0]}")
    return Program(
        values=propagate(ops, first, bits),
        ops=ops,
        input=first.name,
        outputs={head: names[number] for head, number in heads.items()},
        members=[],
        signature=_signature(header["signature"]),
        constant_heads=decode(dict[str, list[float]], header["constant_heads"], "the constant heads"),
        precision=decode(dict[str, Any], header["precision"], "the precision"),
        provenance=decode(dict[str, Any], header["provenance"], "the provenance"),
    )


def _check_version(header: Mapping[str, Any]) -> None:
    if header.get("format") != FORMAT:
        refuse("the file must be a qbayes program", f"the format {header.get('format')!r}"[:80])
    version = header.get("version")
    if type(version) is not int or version != VERSION:
        newer = "open it with the qbayes that wrote it, or update qbayes"
        refuse(f"the version of the format must be {VERSION}", f"{version!r}"[:80], newer)
    if set(header) != _ENTRIES:
        refuse(f"a program must have the entries {', '.join(sorted(_ENTRIES))}", f"{sorted(header)}"[:200])


@dataclass(frozen=True)
class _Listed:
    """The first places of an op's list, before its own fields."""

    kind: str
    name: str
    inputs: tuple[int, ...]
    output: str | None
    bits: int


_LISTED = 5


def _ops(header: Mapping[str, Any], first: Value) -> tuple[tuple[Op, ...], list[int]]:
    listed = decode(list[list[Any]], header["ops"], "the ops")
    if not 1 <= len(listed) <= MOST_OPS:
        refuse(f"a program must have 1 to {MOST_OPS} ops", f"{len(listed)}")
    names, ops, bits = [first.name], [], []
    for number, parts in enumerate(listed):
        head = decode(_Listed, parts[:_LISTED], f"op {number}")
        op = _op(head, parts[_LISTED:], names, number)
        _check_fields(head.kind, header["fields"])
        names.append(op.output)
        ops.append(op)
        bits.append(head.bits)
    return tuple(ops), bits


def _check_fields(kind: str, fields: object) -> None:
    if not isinstance(fields, dict) or fields.get(kind) != _own_fields(kind):
        refuse(f"the fields of '{kind}' must be those of this version", "others")


def _op(head: _Listed, own: list[Any], names: list[str], number: int) -> Op:
    where = f"op {number} ({head.name!r:.80})"
    if head.kind not in OPS:
        refuse(f"{where} must be of a known kind: {', '.join(sorted(OPS))}", f"{head.kind!r:.80}")
    if any(not 0 <= place < len(names) for place in head.inputs):
        refuse(f"the inputs of {where} must be computed before it", f"values {list(head.inputs)}"[:200])
    shared = [head.name, [names[place] for place in head.inputs], head.output or head.name]
    return decode(OPS[head.kind], [*shared, *own], where)


def _signature(data: Any) -> Signature:
    try:
        return Signature.from_json(decode(dict[str, Any], data, "the signature"))
    except QbayesError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        return refuse(
            "the signature must hold every entry of the format", f"{type(error).__name__}: {error}"[:200]
        )
