"""Ours: the program on each backend, and what ``qbayes export --target onnx`` writes, noise included."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qbayes.export.onnx import Options, export_onnx, open_exported
from qbayes.integer.posterior import load
from qbayes.lab.bench.engines.base import ENGINES, Answer, Engine, Numbers, as_float32, check_written
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


@dataclass(frozen=True, kw_only=True)
class ExportedEngine(Engine):
    """Deploys one .onnx file with the draws, and the noise, inside the graph."""

    runtime: str
    dialect: str
    numbers: Numbers = "int8"
    ours: bool = True
    yardstick: bool = True

    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        options = Options(dialect=self.dialect, draws=draws, outputs=("draws",))
        return export_onnx(subject.program, folder / "program.onnx", options)

    def open(self, folder: Path) -> Answer:
        model = open_exported(folder / "program.onnx", self.runtime, torch.get_num_threads())

        def answer(x: Tensor, draws: int) -> Tensor:
            found = model(as_float32(x))["draws"]
            check_written(len(found), draws)
            return torch.from_numpy(found)

        return answer


ENGINES.register("exported_onnxruntime")(
    ExportedEngine(
        title="qbayes, exported to ONNX Runtime",
        packages=("onnx", "onnxruntime"),
        runtime="onnxruntime",
        dialect="qoperator",
    )
)
ENGINES.register("exported_openvino")(
    ExportedEngine(
        title="qbayes, exported to OpenVINO", packages=("onnx", "openvino"), runtime="openvino", dialect="qdq"
    )
)
