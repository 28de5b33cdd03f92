"""Ours on ``onednn`` with the sampled weights of all draws kept from an earlier call: memory for speed."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES, Answer
from qbayes.bench.engines.programs import ProgramEngine
from qbayes.integer.posterior import load

# More draws than a benchmark is asked for in earnest; only those that are drawn are kept.
_MOST_KEPT = 1 << 20


@ENGINES.register("frozen")
class Frozen(ProgramEngine):
    """The backend ``onednn`` with ``frozen_draws``."""

    title = "qbayes, backend onednn, weight draws kept"
    backend = "onednn"

    def why_not(self, method: str) -> str | None:
        return None if method == "bbb" else "only sampled weights can be kept: bbb"

    def open(self, folder: Path) -> Answer:
        deployed = load(self.file(folder), self.backend, frozen_draws=_MOST_KEPT)
        return lambda x, draws: deployed.predict(x, draws).draws
