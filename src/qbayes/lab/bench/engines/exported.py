"""Our exported files in the runtimes: what ``qbayes export --target onnx`` writes, one call for all draws."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qbayes.export.onnx import Options, export_onnx, open_exported
from qbayes.lab.bench.engines.base import ENGINES, Answer, Engine, Numbers, as_float32, check_written
from qbayes.lab.bench.subjects import Subject


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
        title="qbayes, exported to OpenVINO",
        packages=("onnx", "openvino"),
        runtime="openvino",
        dialect="qdq",
    )
)
