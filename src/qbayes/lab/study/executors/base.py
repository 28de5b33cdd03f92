"""An executor runs jobs somewhere and says what became of them; it knows nothing of studies."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qbayes.registry import Registry

Kind = Literal["started", "note", "done", "lost", "stopped", "damaged"]


@dataclass(frozen=True)
class Event:
    """``started`` says what is done, ``note`` what else the user should know; the others end the job.

    ``lost``: its worker died; ``stopped``: the store takes no files; ``damaged``: a stage that it starts from
    was not what had been written, and was set back. The text is then ``STAGE KEY: reason``.
    """

    job: str
    kind: Kind
    text: str = ""
    worker: str = ""

    @property
    def ends(self) -> bool:
        """Whether its job is over."""
        return self.kind not in ("started", "note")


@dataclass(frozen=True)
class Conditions:
    """What every worker needs to know."""

    store: Path
    data_dir: Path | None = None
    device: str = "auto"


class Executor(ABC):
    """``submit`` up to ``slots`` jobs, ``wait`` for events, ``close`` in the end.

    Example:
        >>> executor = EXECUTORS["local"](Conditions(Path("runs/study")), workers=2)
        >>> executor.slots, executor.wait(0.0)
        (2, [])
        >>> executor.close()
    """

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many jobs run at once."""

    @abstractmethod
    def submit(self, job: str, payload: Mapping[str, Any]) -> None:
        """Start a job; an event tells how it ends.

        Args:
            job: The job's name, which its events carry.
            payload: What the worker must know, as JSON.
        """

    @abstractmethod
    def wait(self, seconds: float) -> list[Event]:
        """What happened; returns with the first events.

        Args:
            seconds: The longest wait.
        """

    @abstractmethod
    def close(self) -> None:
        """Let all workers go; jobs in progress are left where they can be taken up again."""


EXECUTORS: Registry[type[Executor]] = Registry("executor", "qbayes.lab.study.executors")
