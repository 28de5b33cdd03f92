"""Ours in exact integers: the definition of truth, not of speed."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.programs import ProgramEngine


@ENGINES.register("reference")
class ReferenceEngine(ProgramEngine):
    """The backend ``reference``."""

    title = "qbayes, backend reference"
    backend = "reference"
    by_default = False
