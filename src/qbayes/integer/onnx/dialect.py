"""The two dialects in which a program is written as ONNX, and how each writes an op."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qbayes.errors import BadInput, nearest
from qbayes.integer.onnx import elementwise, qdq, qoperator
from qbayes.integer.onnx.exact_rescale import Lanes
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import WRITERS, Site, Write, writer_of
from qbayes.integer.ops import Op

# these modules register the writers of our ops.
_OF_OURS = (elementwise, qdq, qoperator)


@dataclass(frozen=True, eq=False)
class Dialect:
    """A way to spell integer operations in ONNX's standard operators."""

    name: str
    lanes: Lanes

    @property
    def writers(self) -> Mapping[type[Op], Write]:
        """What writes each op that the dialect can express."""
        return WRITERS[self.name]

    def write(self, g: Graph, site: Site, inputs: Sequence[str]) -> str:
        """Add the nodes of one op; gives the name of its codes."""
        with g.scope(site.op.name):
            return writer_of(site.op, self.name)(g, self.lanes, site, inputs)


QOPERATOR = Dialect("qoperator", qoperator.LANES)
QDQ = Dialect("qdq", qdq.LANES)
DIALECTS = {dialect.name: dialect for dialect in (QOPERATOR, QDQ)}


def dialect_of(name: str) -> Dialect:
    if name not in DIALECTS:
        raise BadInput("the dialect must be qoperator or qdq", f"'{name}'", nearest(name, DIALECTS))
    return DIALECTS[name]
