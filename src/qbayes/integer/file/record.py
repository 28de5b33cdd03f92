"""The JSON text of a program's file; ``member_record`` has the rest.

The text has named sections: ``graph``, ``signature``, ``precision`` and ``provenance``. ``needed`` lists
those without which a program is misread. A reader refuses a needed section that it does not know. It keeps
any other one as it is and writes it back. So a later qbayes adds sections, and the version stays.

Ops are lists: ``[kind, name, inputs, output, bits of the output, own fields …]``, where ``fields`` names
the own fields of each kind once. Values are numbered, 0 the input and i + 1 the output of op i; ``output``
is null where it is called like its op; shapes are not written, they follow from the ops.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from qbayes.errors import BadFile, BadInput, QbayesError
from qbayes.integer.ops import OPS
from qbayes.integer.ops.base import Op, Value
from qbayes.integer.proof.budget import MOST_OPS, check_row, propagate
from qbayes.integer.structure.op_record import decode, encode, field_types
from qbayes.integer.structure.program_data import ProgramData
from qbayes.posterior.signature import Signature

FORMAT = "qbayes-program"
VERSION = 2
RESTORE = "restore it from a copy, or export the program again"
NEEDED = ("graph", "signature")
SECTIONS = (*NEEDED, "precision", "provenance")
_ENTRIES = {"format", "version", "needed", "sections"}
_GRAPH = {"fields", "input", "ops", "outputs", "constant_heads"}
MOST_SECTIONS = 64
LONGEST_ENTRY = 1000  # characters of JSON that an entry of the provenance may take

_SHARED_FIELDS = ("name", "inputs", "output")


def write_text(program: ProgramData) -> str:
    """The one JSON text of a verified program."""
    numbers = {name: number for number, name in enumerate(program.value_order())}
    first = program.values[program.input]
    graph = {
        "fields": {kind: _own_fields(kind) for kind in sorted({op.kind for op in program.ops})},
        "input": encode(first),
        "ops": [_encode(op, program.values[op.output].bits, numbers) for op in program.ops],
        "outputs": {head: numbers[name] for head, name in program.outputs.items()},
        "constant_heads": dict(program.constant_heads),
    }
    sections = {
        "graph": graph,
        "signature": program.signature.to_json(),
        "precision": dict(program.precision),
        "provenance": _short(program.provenance),
        **program.sections,
    }
    return _dump({"format": FORMAT, "version": VERSION, "needed": list(NEEDED), "sections": sections})


def _dump(data: object) -> str:
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
    return {key: entry for key, entry in provenance.items() if len(_dump(entry)) <= LONGEST_ENTRY}


@functools.cache
def _own_fields(kind: str) -> list[str]:
    return [name for name in field_types(OPS[kind]) if name not in _SHARED_FIELDS]


def _encode(op: Op, bits: int, numbers: Mapping[str, int]) -> list[Any]:
    output = None if op.output == op.name else op.output
    own = [encode(getattr(op, name)) for name in _own_fields(op.kind)]
    return [op.kind, op.name, [numbers[name] for name in op.inputs], output, bits, *own]


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


def read_text(text: str) -> ProgramData:
    """The program of a JSON text, still without its members.

    Its shapes are right, and a row of them keeps to its budgets; the rest is unproven.
    """
    sections = _sections(parse_json(text, "the program"))
    graph = sections["graph"]
    first = decode(Value, graph["input"], "the input")
    ops, bits = _ops(graph, first)
    names = [first.name, *(op.output for op in ops)]
    heads = decode(dict[str, int], graph["outputs"], "the outputs")
    wrong = [number for number in heads.values() if not 0 <= number < len(names)]
    if wrong:
        refuse(f"an output must be one of the {len(names)} values", f"number {wrong[0]}")
    program = ProgramData(
        values=propagate(ops, first, bits),
        ops=ops,
        input=first.name,
        outputs={head: names[number] for head, number in heads.items()},
        members=[],
        signature=_signature(sections["signature"]),
        constant_heads=decode(dict[str, list[float]], graph["constant_heads"], "the constant heads"),
        precision=decode(dict[str, Any], sections["precision"], "the precision"),
        provenance=decode(dict[str, Any], sections["provenance"], "the provenance"),
        sections={name: data for name, data in sections.items() if name not in SECTIONS},
    )
    check_row(program)
    return program


def _sections(header: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a header of this version, all that are needed known."""
    if header.get("format") != FORMAT:
        refuse("the file must be a qbayes program", f"the format {header.get('format')!r}"[:80])
    version = header.get("version")
    if type(version) is not int or version != VERSION:
        newer = type(version) is int and version > VERSION
        do = (
            "update qbayes, or open it with the qbayes that wrote it"
            if newer
            else "lower the posterior again"
        )
        refuse(f"the version of the format must be {VERSION}", f"{version!r}"[:80], do)
    if set(header) != _ENTRIES:
        refuse(f"a program must have the entries {', '.join(sorted(_ENTRIES))}", f"{sorted(header)}"[:200])
    needed = decode(list[str], header["needed"], "the list of needed sections")
    if unknown := [name for name in needed if name not in SECTIONS]:
        refuse("every section that a program needs must be known", f"'{unknown[0]:.80}'", "update qbayes")
    sections = decode(dict[str, Any], header["sections"], "the sections")
    if missing := [name for name in SECTIONS if name not in sections]:
        refuse(f"a program must have the sections {', '.join(SECTIONS)}", f"no '{missing[0]}'")
    if len(sections) > MOST_SECTIONS:
        refuse(f"a program must have at most {MOST_SECTIONS} sections", f"{len(sections)}")
    graph = sections["graph"]
    if not isinstance(graph, dict) or set(graph) != _GRAPH:
        refuse(f"a graph must have the entries {', '.join(sorted(_GRAPH))}", f"{graph!r}"[:200])
    return sections


@dataclass(frozen=True)
class _Listed:
    """The first places of an op's list, before its own fields."""

    kind: str
    name: str
    inputs: tuple[int, ...]
    output: str | None
    bits: int


_LISTED = 5


def _ops(graph: Mapping[str, Any], first: Value) -> tuple[tuple[Op, ...], list[int]]:
    listed = decode(list[list[Any]], graph["ops"], "the ops")
    if not 1 <= len(listed) <= MOST_OPS:
        refuse(f"a program must have 1 to {MOST_OPS} ops", f"{len(listed)}")
    names, ops, bits = [first.name], [], []
    for number, parts in enumerate(listed):
        head = decode(_Listed, parts[:_LISTED], f"op {number}")
        op = _op(head, parts[_LISTED:], names, number)
        _check_fields(head.kind, graph["fields"])
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
        refuse(
            f"{where} must be of a known kind: {', '.join(sorted(OPS))}",
            f"{head.kind!r:.80}",
            f"import the module that registers it; else {RESTORE}",
        )
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
