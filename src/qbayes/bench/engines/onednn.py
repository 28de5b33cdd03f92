"""Ours on oneDNN's int8 kernels and compiled ones: the default backend on CPUs."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.programs import ProgramEngine


@ENGINES.register("onednn")
class OneDnnEngine(ProgramEngine):
    """The backend ``onednn``."""

    title = "qbayes, backend onednn"
    backend = "onednn"
    yardstick = True
