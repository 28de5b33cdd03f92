"""What the engines of the benchmark have in common.

An engine first writes what it would deploy to a folder and then opens that folder, so that its file can be
weighed and its memory measured in a process that has never seen the network being made. Opened, it answers
as ``predict`` does: for raw rows the answer of every draw, class probabilities or means in the task's units.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.lab.bench.subjects import Subject
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.predictive import predictive_from_outputs
from qbayes.posterior.signature import Signature
from qbayes.registry import Registry

# Raw rows and a number of draws in, ``(draws, rows, …)`` out.
Answer = Callable[[Tensor, int], Tensor]
Numbers = Literal["float", "int8"]

EXTRA = "pip install 'qbayes[bench]'"
_SIGNATURE = "signature.json"


@dataclass(frozen=True, kw_only=True)
class Engine(ABC):
    """One way to run a network.

    Args:
        title: what tables call it.
        numbers: float or int8.
        ours: an error of ours is a bug and ends the benchmark; one of another engine is a row that says so.
        packages: what must be installed.
        by_default: whether it belongs to a benchmark that names no engines: some take minutes to get ready.
        yardstick: whether its pointwise pass is timed beside the draws of the other methods.
        deploys: whether what it writes is what a user would deploy; others convert when they load.
    """

    title: str
    numbers: Numbers
    ours: bool = False
    packages: tuple[str, ...] = ()
    by_default: bool = True
    yardstick: bool = False
    deploys: bool = True

    def why_missing(self) -> str | None:
        """Which package is not installed, with the line that installs it; None if all are there."""
        absent = [package for package in self.packages if find_spec(package) is None]
        return f"{absent[0]} is not installed: {EXTRA}" if absent else None

    def why_not(self, method: str) -> str | None:
        """Why it cannot run a method, whatever is installed; None if it can."""
        return None

    @abstractmethod
    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        """Put all that ``open`` needs for ``draws`` draws into ``folder``, and name the files to deploy."""

    @abstractmethod
    def open(self, folder: Path) -> Answer:
        """The network of ``folder``, ready to answer with the draws written, on torch's threads."""


ENGINES: Registry[Engine] = Registry("engine", "qbayes.lab.bench.engines")


def all_engines() -> list[str]:
    """Every engine: those of others before ours, float before int8."""
    return sorted(ENGINES, key=lambda name: (ENGINES[name].ours, ENGINES[name].numbers == "int8"))


def default_engines() -> list[str]:
    return [name for name in all_engines() if ENGINES[name].by_default]


def write_signature(subject: Subject, folder: Path) -> None:
    (folder / _SIGNATURE).write_text(json.dumps(subject.posterior.signature.to_json()), encoding="utf-8")


def read_signature(folder: Path) -> Signature:
    return Signature.from_json(json.loads((folder / _SIGNATURE).read_text(encoding="utf-8")))


def answers(outputs: Outputs, signature: Signature) -> Tensor:
    """The answer of every draw, from the network's outputs in network units."""
    return predictive_from_outputs(outputs, signature).draws


def as_float32(x: Tensor) -> np.ndarray:
    """Raw rows as runtimes take them."""
    return np.ascontiguousarray(x.to(torch.float32).numpy())


def check_written(found: int, wanted: int) -> None:
    """A model whose draws are part of its graph answers with those, and no others."""
    if found != wanted:
        raise BadInput(
            f"the model must be asked for the {found} draws it was written with", f"{wanted}", "write it anew"
        )
