"""ONNX models of one draw in a runtime: the network as one would export it, masks and weights drawn inside.

One run is one draw, as with any model that one exports; draw d is of the model of member ``d mod M``.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qbayes.export.float_onnx import OUTPUT, float_pass
from qbayes.export.onnx.write import INPUT
from qbayes.integer.onnx.runtimes import open_model
from qbayes.lab.bench.engines.base import (
    ENGINES,
    Answer,
    Engine,
    Numbers,
    answers,
    as_float32,
    read_signature,
    write_signature,
)
from qbayes.lab.bench.subjects import Subject

# Every name that an output of a pass may have.
_HEADS = frozenset({OUTPUT, "mean", "log_variance"})


@dataclass(frozen=True, kw_only=True)
class ModelEngine(Engine):
    """Deploys one .onnx file for each member."""

    runtime: str
    numbers: Numbers = "float"

    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        write_signature(subject, folder)
        posterior = subject.posterior
        members = range(min(len(posterior.networks), draws))
        return [
            self.made(float_pass(posterior, index), subject, folder / f"{index:03}.onnx") for index in members
        ]

    def made(self, model: bytes, subject: Subject, path: Path) -> Path:
        """Write the file to deploy, from the float model of a member."""
        path.write_bytes(model)
        return path

    def open(self, folder: Path) -> Answer:
        signature = read_signature(folder)
        files, threads = sorted(folder.glob("*.onnx")), torch.get_num_threads()
        runs = [open_model(path, self.runtime, _HEADS, threads) for path in files]

        def answer(x: Tensor, draws: int) -> Tensor:
            rows = as_float32(x)
            found = [runs[draw % len(runs)]({INPUT: rows}) for draw in range(draws)]
            heads = {name: torch.from_numpy(np.stack([one[name] for one in found])) for name in found[0]}
            return answers(heads.get(OUTPUT, heads), signature)

        return answer


ENGINES.register("onnxruntime_float")(
    ModelEngine(title="ONNX Runtime, float", packages=("onnx", "onnxruntime"), runtime="onnxruntime")
)
ENGINES.register("openvino_float")(
    ModelEngine(title="OpenVINO, float", packages=("onnx", "openvino"), runtime="openvino")
)
