"""A program for people: ``print(program)``, and the table that ``qbayes inspect`` shows."""

from collections.abc import Sequence

from qbayes.integer.ops.fields import lengths_text
from qbayes.integer.proof.verify import OpProof, verify
from qbayes.integer.structure.cost import Cost, OpCost, cost
from qbayes.integer.structure.program_data import ProgramData

COLUMNS = (
    *("layer", "kind", "output", "bits", "weights", "bytes", "MACs", "bit-ops", "runs", "sum", "Var/σ²"),
)
_LEFT = 3  # the first columns are texts; the others are numbers and stand on the right


def table(program: ProgramData, found: Cost | None = None) -> list[tuple[str, ...]]:
    """The cells below ``COLUMNS``, one row an op.

    bits: of the output's codes; weights: their bits, μ + σ for a Gaussian; bytes: of one member, packed; MACs
    and bit-operations: of one row and run; runs: once for all draws, or every draw; sum: bits of the largest
    sum, proven; Var/σ²: the share of the posterior's variance that the integer weights keep.
    """
    costs = found or cost(program)
    pairs = zip(costs.ops, verify(program).ops, strict=True)
    return [_cells(op, proof) for op, proof in pairs]


def describe(program: ProgramData) -> str:
    """The program as text: what it answers, its members, every op and the totals."""
    found = cost(program)
    signature = program.signature
    members = f"{found.members} member{'s' if found.members > 1 else ''}"
    first = program.values[program.input]
    row = lengths_text(first.shape)
    heads = ", ".join(head or "logits" for head in (*program.outputs, *program.constant_heads))
    lines = [
        f"program of '{signature.task}': {row} at {first.bits} bits → {heads}; {members}",
        *_align([COLUMNS, *table(program, found)]),
        _totals(found),
    ]
    return "\n".join(lines)


def _cells(op: OpCost, proof: OpProof) -> tuple[str, ...]:
    ratio = "" if op.variance_ratio is None else f"{op.variance_ratio:.3f}"
    return (
        op.name,
        op.kind,
        lengths_text(op.shape),
        f"{op.bits}",
        "+".join(map(str, op.weight_bits)),
        _number(op.bytes),
        _number(op.macs),
        _number(op.bit_operations),
        "once" if op.once else "draw",
        _number(proof.accumulator_bits),
        ratio,
    )


def _totals(found: Cost) -> str:
    once = sum(op.macs for op in found.ops if op.once)
    return (
        f"{found.weights:,} weights a member, {found.bytes:,} bytes in all; a row takes {once:,} MACs once a "
        f"member and {found.macs() - once:,} a draw ({found.bit_operations():,} bit-operations for one draw)"
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(_place(row, widths)).rstrip() for row in rows]


def _place(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    cells = enumerate(zip(row, widths, strict=True))
    return [cell.ljust(width) if place < _LEFT else cell.rjust(width) for place, (cell, width) in cells]
