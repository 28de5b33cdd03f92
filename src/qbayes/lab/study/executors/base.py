"""An executor runs jobs somewhere and says what became of them; it knows nothing of studies."""

import contextlib
import json
import os
import queue
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from qbayes.registry import Registry

T = TypeVar("T")

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

    def to_json(self) -> dict[str, Any]:
        """For a process that may be anywhere."""
        data = None if self.data_dir is None else str(Path(self.data_dir).resolve())
        return {"store": str(self.store.resolve()), "data_dir": data, "device": self.device}


class Child:
    """A process of our own with its pipes: it reads JSON lines, and leaves when its input ends."""

    def __init__(self, module: str, threads: int, log: int | BinaryIO, **environment: str) -> None:
        own = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(import_paths())}
        self._process = subprocess.Popen(
            # -P: what lies in the current folder is nobody's choice, and must not stand in for a module.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **own, **environment},
            start_new_session=True,  # Ctrl-C is for the one who leads; it follows its pipe.
        )

    def send(self, message: Mapping[str, Any] | None) -> None:
        """One JSON line; a process that has ended is told of by the thread that listens to it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            yield from map(json.loads, lines)

    def let_go(self) -> None:
        """The end of its input."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def errors(self) -> Iterator[bytes]:
        """What it prints as errors, where that is not a file."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            yield from lines

    def stop(self, patience: float | None) -> int:
        """Its exit code, once it is gone; one that does not go within so many seconds is killed."""
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def import_paths() -> list[str]:
    """Where this process finds qbayes, and networks of the user's own; its workers look nowhere else."""
    return [os.path.abspath(path) for path in sys.path]


def take(messages: "queue.Queue[T]", seconds: float) -> list[T]:
    """The messages that are there, or the first to come within so many seconds."""
    taken: list[T] = []
    with contextlib.suppress(queue.Empty):
        taken.append(messages.get(timeout=seconds))
        while True:
            taken.append(messages.get_nowait())
    return taken


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
