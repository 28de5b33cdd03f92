"""An executor runs jobs somewhere and says what became of them; it knows nothing of studies."""

import contextlib
import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qbayes.registry import Shelf

Kind = Literal["started", "note", "done", "lost", "stopped", "damaged"]
# seconds that a worker has to stop by itself; then it is left, or killed.
PATIENCE = 20.0


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


def send_line(process: "subprocess.Popen[bytes]", message: Mapping[str, Any] | None) -> None:
    """One JSON line to a process; one that has ended is told of by the thread that listens to it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()


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
