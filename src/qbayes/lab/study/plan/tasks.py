"""The tasks of a study, loaded once; what planning needs of each; and the networks that are made for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qbayes.device import choose_device
from qbayes.errors import BadInput
from qbayes.lab.study.spec.sections import named
from qbayes.lab.study.store.keys import canonical
from qbayes.networks import build_network, is_own
from qbayes.posterior.storage.outline import within
from qbayes.tasks import Task, load_task
from qbayes.tasks.arrays import Kind
from qbayes.training.networks import network, outputs_of

CONFUSION = "confusion"
_AT_ONCE = 1 << 16
# parameters, buffers and modules of a network; bytes of its weights.
_MOST_PARTS, _MOST_BYTES = 3_000, 1 << 33


@dataclass(frozen=True)
class Facts:
    """What planning needs of a task; its rows are not kept."""

    name: str
    kind: Kind
    fingerprint: str
    train_rows: int
    input_shape: tuple[int, ...]
    outputs: tuple[int, ...]
    # where it is trained on: it decides the arithmetic.
    device: torch.device
    # rows of each split, and of the confusion data where there are any.
    rows: Mapping[str, int]
    shifted: bool


class Tasks:
    """Tasks by section, for training on ``device``; the last few stay in memory."""

    def __init__(self, data_dir: Path | None, device: str | torch.device = "cpu", kept: int = 4) -> None:
        self._data_dir, self._kept = data_dir, kept
        self._device = choose_device(device)
        self._held: dict[str, Task] = {}
        self._facts: dict[str, Facts] = {}

    def load(self, section: Any) -> Task:
        key = canonical(section)
        if key not in self._held:
            name, options = named(section, "task", "digits")
            while len(self._held) >= self._kept:
                self._held.pop(next(iter(self._held)))
            self._held[key] = load_task(name, self._data_dir, **options)
        return self._held[key]

    def facts(self, section: Any) -> Facts:
        key = canonical(section)
        if key not in self._facts:
            task = self.load(section)
            shape, outputs = tuple(task.signature.input_shape), outputs_of(task)
            self._facts[key] = Facts(
                task.name,
                task.kind,
                task.fingerprint,
                task.train_rows,
                shape,
                outputs,
                self._device,
                _rows_of(task),
                bool(task.shifts),
            )
        return self._facts[key]


def _rows_of(task: Task) -> dict[str, int]:
    found = {split: sum(len(x) for x, _ in task.batches(split, _AT_ONCE)) for split in task.splits}
    if task.confusion_name is not None:
        found[CONFUSION] = sum(map(len, task.confusion_batches(_AT_ONCE)))
    return found


def make_network(section: Any, task: Task) -> nn.Module:
    name, options = _read(section)
    return network(name, task, **options)


def check_network(section: Any, facts: Facts) -> None:
    """Raise unless a network of ours can be made for such a task: on ``meta``, where it takes no memory."""
    name, options = _read(section)
    if is_own(name):
        return
    try:
        with within(_MOST_PARTS, _MOST_BYTES), torch.device("meta"):
            build_network(name, facts.input_shape, facts.outputs, facts.kind, **options)
    except BadInput:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadInput(
            f"the network '{name}' must be one that can be made",
            f"{type(error).__name__}: {reason}",
            "mend its options",
        ) from None


def _read(section: Any) -> tuple[str, Mapping[str, Any]]:
    name, options = named(section, "network", "lenet")
    return name, {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
