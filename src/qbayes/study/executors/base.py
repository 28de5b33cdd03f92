"""An executor runs jobs somewhere and says what became of them; it knows nothing of studies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qbayes.registry import Shelf

Kind = Literal["started", "done", "lost", "stopped"]


@dataclass(frozen=True)
class Event:
    """``started`` says what is done; ``lost``: its worker died; ``stopped``: the store takes no files."""

    job: str
    kind: Kind
    text: str = ""
    worker: str = ""


@dataclass(frozen=True)
class Conditions:
    """What every worker needs to know."""

    store: Path
    data_dir: Path | None = None
    device: str = "auto"


class Executor(ABC):
    """``submit`` up to ``slots`` jobs, ``wait`` for events, ``close`` in the end."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many jobs run at once."""

    @abstractmethod
    def submit(self, job: str, payload: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """What happened within so many seconds; returns with the first events."""

    @abstractmethod
    def close(self) -> None:
        """Let all workers go; jobs in progress are left where they can be taken up again."""


EXECUTORS: Shelf[type[Executor]] = Shelf("executor", "qbayes.study.executors")
