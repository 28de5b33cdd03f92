"""Checkpoints of a training in progress: safetensors and JSON, written atomically, nothing unpickled."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from qbayes.errors import BadFile
from qbayes.posterior.storage.save import write_atomically

_HEADER_BYTES = 8


@dataclass(frozen=True)
class Checkpoint:
    """The folder in which an interrupted run leaves its state.

    Example:
        >>> Checkpoint("runs/mcd", resume=True).path("chain-0000.checkpoint").name
        'chain-0000.checkpoint'

    Attributes:
        folder: The folder; None keeps no state.
        resume: Whether the run goes on from what lies there. By default it begins anew, and is refused where
            another run's state lies.
    """

    folder: str | Path | None
    resume: bool = False

    @classmethod
    def of(cls, given: "CheckpointLike") -> "Checkpoint":
        """The checkpoint that a folder alone stands for.

        Args:
            given: A folder, None, or a checkpoint, which stays as it is.
        """
        return given if isinstance(given, Checkpoint) else cls(given)

    def path(self, name: str) -> Path | None:
        """A file of the folder; None where no state is kept.

        Args:
            name: The file's name within the folder.
        """
        return None if self.folder is None else Path(self.folder) / name

    def check_overwriting(self, paths: Iterable[Path | None]) -> None:
        """Raise where a new run would replace the state of another.

        Args:
            paths: The files that the run will write; None stands for no file. With ``resume`` any may be
                there.

        Raises:
            BadFile: One of the files is there.
        """
        if not self.resume:
            check_overwriting(paths)


CheckpointLike = str | Path | Checkpoint | None


def check_overwriting(paths: Iterable[Path | None]) -> None:
    """Raise where one of the files is there: a new run must not replace the checkpoint of another."""
    for path in paths:
        if path is not None and path.exists():
            raise BadFile(
                "a new run needs a folder without checkpoints",
                f"{path} is there",
                "go on with Checkpoint(folder, resume=True), or delete it, or give another folder",
            )


class BadCheckpoint(BadFile):
    """A checkpoint from which a run cannot go on: it is damaged, or that of another run."""


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """One file: sha256, length of the JSON, JSON, safetensors. A single rename makes it visible."""
    body = json.dumps(values).encode()
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    payload = len(body).to_bytes(_HEADER_BYTES, "little") + body + save_tensors(contiguous)
    write_atomically(path, hashlib.sha256(payload).digest() + payload)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path} must be readable", f"{error.strerror}", "start again without resume") from None
    digest, payload = whole[:32], whole[32:]
    if hashlib.sha256(payload).digest() != digest:
        raise BadCheckpoint(
            "a checkpoint must be whole", f"{path} is damaged", "delete it and start again without resume"
        )
    size = int.from_bytes(payload[:_HEADER_BYTES], "little")
    try:
        values = json.loads(payload[_HEADER_BYTES : _HEADER_BYTES + size])
        return load_tensors(payload[_HEADER_BYTES + size :]), values
    except (ValueError, RecursionError, SafetensorError) as error:
        raise BadCheckpoint(
            "a checkpoint must be of our format", f"{path}: {error}", "start again without resume"
        ) from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's state as tensors by name, and the numbers beside them."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{key}"] = value
            elif value is not None:
                numbers[f"{index}/{key}"] = value
    return tensors, numbers


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]
) -> None:
    """Put back what ``optimizer_tensors`` took out; the parameter groups are the fresh optimiser's."""
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/", 2)
            state.setdefault(int(index), {})[key] = value
    for name, value in numbers.items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            # fused optimisers need the parameter's own layout (channels_last), which a file does not keep.
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
