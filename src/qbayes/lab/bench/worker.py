"""One engine in a process of its own, asked in turn with the others, and silent while it waits.

Engines in one process share cores with each other's threads, which spin for work long after a call. Here an
engine that is not asked is stopped by a signal: it cannot take anything from the one that is. Processes are
forked from a server that has imported torch and run nothing, so each is as good as fresh, in milliseconds.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from qbayes.errors import QbayesError
from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.measure import CLOCKS, Memory, Run, burst, measure_memory, roofline_products
from qbayes.lab.bench.subjects import network_choice

# What may go wrong in an engine of others when it opens or runs a network it cannot run.
EXPECTED = (QbayesError, RuntimeError, TypeError, ValueError)
# Linux ends a process with its parent if asked to; elsewhere one that is stopped might be left behind.
_STOPS = sys.platform == "linux"
_END_WITH_PARENT = 1  # prctl(2): PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Job:
    """What a process is for: an engine with the folder it wrote, or a product of the roofline by its name."""

    name: str
    threads: int
    clock: str
    folder: Path | None = None
    network: str = ""
    batch: int = 1
    draws: int = 1


@dataclass(frozen=True)
class Failed:
    """Why there is no answer; ``raised`` by an error that this library did not raise on purpose."""

    why: str
    raised: bool = False


class Worker:
    """The process of one job, for a ``with``; ``failed`` says what went wrong, once something has."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.failed: Failed | None = None
        forks = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload([__name__, *{type(ENGINES[name]).__module__ for name in ENGINES}])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, job))
        self._process.start()
        theirs.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        # a stopped process heeds no other signal.
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def opened(self) -> Memory | None:
        """Wait until it has answered once: the memory that this took."""
        return self._heard()

    def times(self, seconds: float) -> Sequence[float]:
        """Its turn: calls for that long, at least one, and how long each took; none once it has failed."""
        return () if self.failed else self._heard(seconds) or ()

    def _heard(self, *questions: float) -> Any:
        """What it says, to a question if there is one; it is silent before and after."""
        try:
            for question in questions:
                self._signal("SIGCONT")
                self._pipe.send(question)
            found = self._pipe.recv()
            if not isinstance(found, Failed):
                self._signal("SIGSTOP")
                return found
        except (EOFError, OSError):
            self._process.join()
            found = Failed(f"its process ended with code {self._process.exitcode}")
        self.failed = found
        return None

    @property
    def pid(self) -> int:
        return self._process.pid

    def _signal(self, name: str) -> None:
        if _STOPS:
            os.kill(self.pid, getattr(signal, name))


def _serve(pipe: Connection, job: Job) -> None:
    """What the process does: open, answer once, then take its turns until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asking process hears it too, and ends all others.
    _end_with_the_asking_process()
    # what an engine starts by itself (OpenVINO's telemetry does) must not fork from servers of its own.
    multiprocessing.set_start_method(None, force=True)
    torch.set_num_threads(job.threads)
    try:
        run, memory = open_job(job)
        pipe.send(memory)
        while True:
            pipe.send(burst(run, pipe.recv(), CLOCKS[job.clock]))
    except EOFError:
        return
    except EXPECTED as error:
        pipe.send(Failed(in_one_line(error), raised=not isinstance(error, QbayesError)))


def _end_with_the_asking_process() -> None:
    """Even if that is killed: its end is the server's, and the server's is ours, be we stopped or not.

    The server ends when nobody holds the other end of a pipe. ``multiprocessing`` hands that end to every
    process, and one that is stopped would hold it for ever.
    """
    if _STOPS:
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
        os.close(forkserver._forkserver._forkserver_alive_fd)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def open_job(job: Job) -> tuple[Run, Memory | None]:
    """What to time, after its first call."""
    if job.folder is None:
        run = roofline_products()[job.name]
        run()
        return run, None
    engine, folder = ENGINES[job.name], job.folder
    for package in engine.packages:
        importlib.import_module(package)
    x = network_choice(job.network).rows(job.batch)
    answer, memory = measure_memory(lambda: engine.open(folder), lambda opened: opened(x, job.draws))
    return lambda: answer(x, job.draws), memory


def in_one_line(error: Exception) -> str:
    if isinstance(error, QbayesError):
        return f"{error.must}: {error.got}"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
