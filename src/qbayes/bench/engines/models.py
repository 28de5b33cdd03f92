"""ONNX models of one draw in a runtime: what ``onnxruntime_*`` and ``openvino_*`` write and read.

One run is one draw, as with any model that one exports; draw d is of the model of member ``d mod M``.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qbayes.bench.engines.base import Answer, Engine, answers, as_float32, read_signature, write_signature
from qbayes.bench.subjects import Subject
from qbayes.export.float_onnx import OUTPUT, float_pass
from qbayes.export.onnx.write import INPUT
from qbayes.integer.backends.openvino import EXACT, core

# Every name that an output of a pass may have.
_HEADS = frozenset({OUTPUT, "mean", "log_variance"})
# One run of a model: rows in float32 in, the heads by name out.
Run = Callable[[np.ndarray], Mapping[str, np.ndarray]]


class ModelEngine(Engine):
    """Deploys one .onnx file for each member."""

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

    @abstractmethod
    def session(self, path: Path) -> Run:
        """The model of a file in the runtime, on torch's number of threads."""

    def open(self, folder: Path) -> Answer:
        signature = read_signature(folder)
        runs = [self.session(path) for path in sorted(folder.glob("*.onnx"))]

        def answer(x: Tensor, draws: int) -> Tensor:
            rows = as_float32(x)
            found = [runs[draw % len(runs)](rows) for draw in range(draws)]
            heads = {name: torch.from_numpy(np.stack([one[name] for one in found])) for name in found[0]}
            return answers(heads.get(OUTPUT, heads), signature)

        return answer


def onnxruntime_session(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda rows: dict(zip(names, session.run(names, {INPUT: rows}), strict=True))


def openvino_session(path: Path) -> Run:
    """In float32: bfloat16, its own choice on some processors, would not be the same network."""
    options = {**EXACT, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled: Any = core().compile_model(core().read_model(path), "CPU", options)
    request = compiled.create_infer_request()
    # an output goes by every name that the tensor has inside of the graph.
    names = [name for output in compiled.outputs for name in output.get_names() if name in _HEADS]

    def run(rows: np.ndarray) -> dict[str, np.ndarray]:
        found = request.infer({INPUT: rows}, share_inputs=True)
        return {name: np.array(found[name]) for name in names}

    return run
