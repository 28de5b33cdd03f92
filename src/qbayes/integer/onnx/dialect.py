"""The two dialects in which a program is written as ONNX, and how each writes an op."""

from collections.abc import Sequence
from dataclasses import dataclass

from qbayes.errors import BadInput, nearest
from qbayes.integer.onnx import qdq, qoperator
from qbayes.integer.onnx.between import BETWEEN, Write
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.lanes import Lanes
from qbayes.integer.onnx.site import Site
from qbayes.integer.ops import Conv, Linear, Op


@dataclass(frozen=True, eq=False)
class Dialect:
    """A way to spell integer operations in ONNX's standard operators."""

    name: str
    lanes: Lanes
    weighted: Write

    @property
    def writers(self) -> dict[type[Op], Write]:
        return {**BETWEEN, Conv: self.weighted, Linear: self.weighted}

    def write(self, g: Graph, site: Site, inputs: Sequence[str]) -> str:
        """Add the nodes of one op; gives the name of its codes."""
        with g.scope(site.op.name):
            return self.writers[type(site.op)](g, self.lanes, site, inputs)


QOPERATOR = Dialect("qoperator", qoperator.LANES, qoperator.write_weighted)
QDQ = Dialect("qdq", qdq.LANES, qdq.write_weighted)
DIALECTS = {dialect.name: dialect for dialect in (QOPERATOR, QDQ)}


def dialect_of(name: str) -> Dialect:
    if name not in DIALECTS:
        raise BadInput("the dialect must be qoperator or qdq", f"'{name}'", nearest(name, DIALECTS))
    return DIALECTS[name]
