"""What a writer of nodes is told of an op, and which writer each op has in each dialect."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.onnx.exact_rescale import Lanes, integers
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.ops import Op
from qbayes.integer.ops.base import Constants, Grids
from qbayes.integer.program import Program
from qbayes.integer.structure.program_data import Member


@dataclass(frozen=True, eq=False)
class Site:
    """An op of one member: shapes of a row without the batch, scales, and constants by name.

    ``noise`` holds the tensors of the graph that the op draws from, by name: ``keep`` (bool) of a mask; of
    Gaussian weights ``weight``, or ``noise`` beside the mean (int8), and ``bias_steps`` (int32), which are
    added to the bias, where it is drawn too.
    """

    op: Op
    grids: Grids
    constants: Constants
    shapes: tuple[tuple[int, ...], ...]
    out_shape: tuple[int, ...]
    scale: float
    out_scale: float
    noise: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def shift(self) -> np.ndarray:
        return integers(self.constants["shift"])

    @property
    def low(self) -> int:
        return int(self.constants["low"])

    @property
    def high(self) -> int:
        return int(self.constants["high"])

    @property
    def reach(self) -> int:
        """The largest code that comes in."""
        return max((1 << bits) - 1 for bits in self.grids.bits)


def site_of(program: Program, member: Member, op: Op, noise: Mapping[str, str] | None = None) -> Site:
    """The site of ``op`` in ``program`` for one member."""
    return Site(
        op,
        program.grids(op, member),
        {name: _values_of(constant) for name, constant in member.constants.get(op.name, {}).items()},
        tuple(program.values[name].shape for name in op.inputs),
        program.values[op.output].shape,
        member.scales[op.inputs[0]],
        member.scales[op.output],
        noise or {},
    )


def dtype_of_codes(bits: int) -> type[np.integer]:
    """As ``type_of_codes``: uint8, or int32 for codes wider than a byte."""
    return np.uint8 if bits <= MOST_BITS else np.int32


def _values_of(constant: Tensor) -> Tensor:
    return constant.detach().cpu()


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
            else "register one (qbayes.integer.onnx.op_context.writes), or change the layer",
        )
    return write
