"""What writes each op as ONNX nodes, by dialect. A dialect can express the ops that have a writer here."""

from collections.abc import Callable, Sequence

from qbayes.errors import BadInput
from qbayes.integer.onnx.exact_rescale import Lanes
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site
from qbayes.integer.ops import Op

# Adds the nodes of one op that reads these tensors, and gives the name of its codes.
Write = Callable[[Graph, Lanes, Site, Sequence[str]], str]
WRITERS: dict[str, dict[type[Op], Write]] = {"qoperator": {}, "qdq": {}}


def writes(*ops: type[Op], dialects: Sequence[str] = tuple(WRITERS)) -> Callable[[Write], Write]:
    """Register a function as what writes these ops in these dialects, by default in all."""

    def register(write: Write) -> Write:
        for dialect in dialects:
            WRITERS[dialect].update(dict.fromkeys(ops, write))
        return write

    return register


def writer_of(op: Op, dialect: str) -> Write:
    """What writes an op in a dialect; refuses an op that nothing writes there."""
    write = WRITERS[dialect].get(type(op))
    if write is None:
        able = [name for name, writers in WRITERS.items() if type(op) in writers]
        raise BadInput(
            f"every op must have a writer in the dialect {dialect}",
            f"'{op.name}', a {op.kind}",
            f"use the dialect {' or '.join(able)}"
            if able
            else "register one (qbayes.integer.onnx.writers.writes), or change the layer",
        )
    return write
