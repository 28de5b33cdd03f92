"""ONNX models of one draw in a runtime: the network as one would export it, masks and weights drawn inside.

One run is one draw, as with any model that one exports; draw d is of the model of member ``d mod M``. Static
int8 is by ``onnxruntime.quantization``: what the usual tool makes of a network, from 32 random rows. It knows
point weights only: an ensemble is one model a member, masks and sampled weights it would lose.
"""

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from qbayes.lab.bench.subjects import CALIBRATION_ROWS, Subject

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
            self.write_model(float_pass(posterior, index), subject, folder / f"{index:03}.onnx")
            for index in members
        ]

    def write_model(self, model: bytes, subject: Subject, path: Path) -> Path:
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


@dataclass(frozen=True, kw_only=True)
class StaticInt8(ModelEngine):
    """QDQ with a scale for each channel of the weights, as both runtimes ask for; nothing of it is ours."""

    numbers: Numbers = "int8"
    yardstick: bool = True

    def why_not(self, method: str) -> str | None:
        lost = {"mcd": "masks: it would quantise them away", "bbb": "sampled weights"}
        return f"its quantiser knows no {lost[method]}" if method in lost else None

    def write_model(self, model: bytes, subject: Subject, path: Path) -> Path:
        from onnxruntime import quantization
        from onnxruntime.quantization import shape_inference

        # it warns that it has done part of the work before, on the root logger.
        logging.getLogger().setLevel(logging.ERROR)
        with tempfile.TemporaryDirectory() as folder:
            plain, fused = Path(folder) / "float.onnx", Path(folder) / "fused.onnx"
            plain.write_bytes(model)
            # it folds batch norms into the convolutions, which have to be quantised together.
            shape_inference.quant_pre_process(str(plain), str(fused), skip_symbolic_shape=True)
            quantization.quantize_static(
                str(fused),
                str(path),
                _reader(as_float32(subject.network.rows(CALIBRATION_ROWS))),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        return path


def _reader(rows: np.ndarray) -> Any:
    """Feeds the rows once; made here because its base comes with the extra."""
    from onnxruntime.quantization import CalibrationDataReader

    class Rows(CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[dict[str, np.ndarray]] = iter([{INPUT: rows}])

        def get_next(self) -> dict[str, np.ndarray] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
            return next(self.left, None)

    return Rows()


ENGINES.register("onnxruntime_int8")(
    StaticInt8(title="ONNX Runtime, its int8 model", packages=("onnx", "onnxruntime"), runtime="onnxruntime")
)
ENGINES.register("openvino_int8")(
    StaticInt8(
        title="OpenVINO, its int8 model", packages=("onnx", "onnxruntime", "openvino"), runtime="openvino"
    )
)
