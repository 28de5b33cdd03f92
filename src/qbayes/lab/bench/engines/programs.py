"""Ours: the program on each backend, noise included."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qbayes.integer.posterior import load
from qbayes.lab.bench.engines.base import ENGINES, Answer, Engine, Numbers
from qbayes.lab.bench.subjects import Subject

# More draws than a benchmark is asked for in earnest; only those that are drawn are kept.
_MOST_KEPT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ProgramEngine(Engine):
    """The program's file on one backend.

    With ``frozen`` the sampled weights of all draws are kept from an earlier call: memory for speed.
    """

    backend: str
    numbers: Numbers = "int8"
    ours: bool = True
    frozen: bool = False

    def why_not(self, method: str) -> str | None:
        return None if method == "bbb" or not self.frozen else "only sampled weights can be kept: bbb"

    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        program = replace(subject.program, members=subject.program.members[:draws])
        return [program.save(_file(folder))]

    def open(self, folder: Path) -> Answer:
        deployed = load(_file(folder), self.backend, frozen_draws=_MOST_KEPT if self.frozen else 0)
        return lambda x, draws: deployed.predict(x, draws).draws


def _file(folder: Path) -> Path:
    return folder / "program.qbayes"


def _engine(backend: str, *packages: str, **more: Any) -> ProgramEngine:
    return ProgramEngine(title=f"qbayes, backend {backend}", backend=backend, packages=packages, **more)


# exact integers: the definition of truth, not of speed.
ENGINES.register("reference")(_engine("reference", by_default=False))
# the default backend on CPUs.
ENGINES.register("onednn")(_engine("onednn", yardstick=True))
ENGINES.register("onnxruntime")(_engine("onnxruntime", "onnx", "onnxruntime"))
ENGINES.register("openvino")(_engine("openvino", "onnx", "openvino"))
ENGINES.register("frozen")(
    ProgramEngine(title="qbayes, backend onednn, weight draws kept", backend="onednn", frozen=True)
)
