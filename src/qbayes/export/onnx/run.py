"""Exported models in ONNX Runtime or OpenVINO from Python; clear words where a file or an input is wrong.

A service needs nothing of this: the runtime alone loads the file. Here a file is checked against its hash
first, inputs against what the model declares, and noise for the form ``inputs`` is drawn as the library does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qbayes.errors import BadFile, BadInput, nearest
from qbayes.export.onnx.metadata import HASH, content_hash, read_metadata
from qbayes.export.onnx.noise import NoiseSite, noise_sites
from qbayes.export.onnx.write import INPUT
from qbayes.integer.arithmetic.epsilon_table import epsilon_codes
from qbayes.integer.onnx.graph import require_onnx
from qbayes.integer.onnx.runtimes import RUNTIMES, Arrays, Run, open_model, require
from qbayes.integer.program import Program
from qbayes.noise import check_seed, keep_masks, keep_threshold

_DAMAGED = "export it again"


class ExportedModel:
    """A model in a runtime: named arrays in, named arrays out."""

    def __init__(self, model: Any, run: Run, runtime: str) -> None:
        self.metadata = read_metadata(model)
        self.runtime = runtime
        self.inputs = {value.name: _declaration(model, value) for value in model.graph.input}
        self.outputs = tuple(value.name for value in model.graph.output)
        self._run = run

    def __call__(self, x: np.ndarray | torch.Tensor, noise: Arrays | None = None) -> dict[str, np.ndarray]:
        """Every output by name, for raw inputs ``x`` in float32 and the ``noise`` that the model asks for."""
        given = x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x
        feeds = {INPUT: given, **(noise or {})}
        for name in feeds:
            if name not in self.inputs:
                raise BadInput("an input must be one of the model's", f"'{name}'", nearest(name, self.inputs))
        lengths: dict[str, int] = {}
        for name in self.inputs:
            self._check(name, feeds.get(name), lengths)
        if not np.isfinite(given).all():
            raise BadInput("inputs must be finite", "NaN or infinity in x", "fill or leave out such rows")
        return self._run({name: np.ascontiguousarray(array) for name, array in feeds.items()})

    def _check(self, name: str, array: Any, lengths: dict[str, int]) -> None:
        """Type and shape of one input; axes of one name have one length."""
        dtype, axes = self.inputs[name]
        wanted = f"'{name}' must be {dtype} of shape {_spell(axes)}"
        if array is None:
            raise BadInput(wanted, "no such input", "give it: noise_feeds draws what the model asks for")
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise BadInput(wanted, f"{got}", f"convert it with .astype(numpy.{dtype})")
        right = array.ndim == len(axes)
        for axis, length in zip(axes, array.shape, strict=False):
            known = lengths.setdefault(axis, length) if isinstance(axis, str) else axis
            right = right and known == length and length > 0
        if not right:
            raise BadInput(wanted, f"shape {array.shape}", "change the input's shape")


def open_exported(path: str | Path, runtime: str = "onnxruntime", threads: int = 0) -> ExportedModel:
    """Load a file that ``qbayes export --target onnx`` wrote; with ``threads`` 0 the runtime chooses."""
    if runtime not in RUNTIMES:
        raise BadInput(
            f"the runtime must be {' or '.join(RUNTIMES)}", f"'{runtime}'", nearest(runtime, RUNTIMES)
        )
    require("onnx", runtime)
    model = read_model(path)
    names = [output.name for output in model.graph.output]
    return ExportedModel(model, open_model(model.SerializeToString(), runtime, names, threads), runtime)


def read_model(path: str | Path) -> Any:
    """The model in a file, whole as it was written."""
    onnx = require_onnx()
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(Path(path).read_bytes())
    except OSError as error:
        raise BadFile(
            "the model's file must be readable", f"{path}: {error.strerror or error}", "check the path"
        ) from None
    except (DecodeError, UnicodeDecodeError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise BadFile("the file must be an ONNX model", f"{path}: {first}", _DAMAGED) from None
    hashes = [entry.value for entry in model.metadata_props if entry.key == HASH]
    if not hashes:
        raise BadFile("the model must be one that qbayes exported", f"{path} has no entry {HASH}", _DAMAGED)
    if hashes != [content_hash(model)]:
        raise BadFile("the model must be as it was written", f"{path} was changed or damaged", _DAMAGED)
    return model


def noise_feeds(
    program: Program, rows: int, draws: Sequence[int], seed: int = 0, first_row: int = 0
) -> dict[str, np.ndarray]:
    """Inputs of a model with ``--noise inputs``: the noise that ``predict`` has in these draws."""
    ids = torch.tensor(list(draws), dtype=torch.int64)
    key = check_seed(seed)
    return {site.name: _noise(site, ids, key, rows, first_row) for site in noise_sites(program).values()}


def _noise(site: NoiseSite, draws: torch.Tensor, seed: int, rows: int, first_row: int) -> np.ndarray:
    if site.kind == "mask":
        threshold = keep_threshold(site.rate)
        return (
            keep_masks(draws, seed, site.site, first_row, rows, site.shape[0], threshold)
            .to(torch.uint8)
            .numpy()
        )
    return epsilon_codes(seed, site.site, draws, site.shape, site.bits).numpy()


def _declaration(model: Any, value: Any) -> tuple[np.dtype[Any], tuple[str | int, ...]]:
    onnx = require_onnx()
    tensor = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return dtype, tuple(axis.dim_param or axis.dim_value for axis in tensor.shape.dim)


def _spell(axes: Sequence[str | int]) -> str:
    return "(" + ", ".join(map(str, axes)) + ")"
