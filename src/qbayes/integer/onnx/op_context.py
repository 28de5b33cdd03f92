"""What a writer of nodes is told of an op: its place in the program, its constants and its noise."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.onnx.exact_rescale import integers
from qbayes.integer.ops.base import Constants, Grids, Op
from qbayes.integer.program.program import Member, Program


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
        {name: _held(constant) for name, constant in member.constants.get(op.name, {}).items()},
        tuple(program.values[name].shape for name in op.inputs),
        program.values[op.output].shape,
        member.scales[op.inputs[0]],
        member.scales[op.output],
        noise or {},
    )


def dtype_of_codes(bits: int) -> type[np.integer]:
    """As ``type_of_codes``: uint8, or int32 for codes wider than a byte."""
    return np.uint8 if bits <= MOST_BITS else np.int32


def _held(constant: Tensor) -> Tensor:
    return constant.detach().cpu()
