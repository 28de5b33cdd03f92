"""Our exported files in the runtimes: what ``qbayes export --target onnx`` writes, one call for all draws."""

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from qbayes.bench.engines.base import Answer, Engine, as_float32, check_written
from qbayes.bench.subjects import Subject
from qbayes.export.onnx import Options, export_onnx, open_exported


class ExportedEngine(Engine):
    """Deploys one .onnx file with the draws, and the noise, inside the graph."""

    numbers = "int8"
    ours = True
    yardstick = True
    runtime: ClassVar[str]
    dialect: ClassVar[str]

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
