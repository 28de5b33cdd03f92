"""Worker processes on this machine, each with its own torch and a fixed number of threads.

A worker is a fresh interpreter that reads jobs as JSON lines and answers with events. When this process dies,
however it dies, the pipe closes and its workers leave; they are let go in the same way.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.study.executors.base import EXECUTORS, Conditions, Event, Executor
from qbayes.lab.study.store.store import LOGS
from qbayes.lab.study.work.worker import PATIENCE, send_line

# an interpreter with torch, a network, its optimiser and a data set like MNIST.
_WORKER_BYTES = 1_200_000_000
_MOST_ON_A_GPU = 8
_MOST_WORKERS = 10_000


@EXECUTORS.register("local")
class Local(Executor):
    """``workers`` processes; by default as many as cores and memory allow."""

    def __init__(self, conditions: Conditions, workers: int | None = None, threads: int = 1) -> None:
        check_workers(workers)
        self._conditions, self._threads = conditions, threads
        self._slots = workers or workers_that_fit(threads, conditions.device)
        self._events: queue.Queue[Event] = queue.Queue()
        self._free: list[_Worker] = []
        self._busy: dict[str, _Worker] = {}
        self._made = 0

    @property
    def slots(self) -> int:
        return self._slots

    def submit(self, job: str, payload: Mapping[str, Any]) -> None:
        worker = self._free.pop() if self._free else self._new()
        self._busy[job] = worker
        worker.give(job, payload)

    def wait(self, seconds: float) -> list[Event]:
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=seconds))
            while True:
                found.append(self._events.get_nowait())
        except queue.Empty:
            pass
        for event in found:
            if event.ends and event.job in self._busy:
                worker = self._busy.pop(event.job)
                if event.kind in ("done", "damaged"):
                    self._free.append(worker)
                else:
                    worker.stop()
        return found

    def close(self) -> None:
        workers = (*self._free, *self._busy.values())
        for worker in workers:
            worker.let_go()
        for worker in workers:
            worker.stop()

    def _new(self) -> "_Worker":
        self._made += 1
        return _Worker(f"worker-{self._made}", self._conditions, self._threads, self._events)


class _Worker:
    """One process, and the thread that listens to it."""

    def __init__(self, name: str, conditions: Conditions, threads: int, events: "queue.Queue[Event]") -> None:
        self.name, self._events, self._job = name, events, ""
        logs = conditions.store / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(import_paths()),
        }
        with (logs / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                # -P: what lies in the current folder is nobody's choice, and must not stand in for a module.
                [sys.executable, "-P", "-m", "qbayes.lab.study.work.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the one who leads; workers follow its pipe.
            )
        asked = {
            "store": str(conditions.store.resolve()),
            "data_dir": None if conditions.data_dir is None else str(Path(conditions.data_dir).resolve()),
            "device": conditions.device,
        }
        send_line(self._process, asked)
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, job: str, payload: Mapping[str, Any]) -> None:
        self._job = job
        send_line(self._process, {"job": job, "payload": payload})

    def let_go(self) -> None:
        """It stops behind its step, by the end of its input."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self) -> None:
        """Wait until it is gone; one that does not go is killed."""
        self.let_go()
        try:
            # it ends itself after its patience: this is for one that cannot.
            self._process.wait(1.5 * PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            event = Event(said["job"], said["kind"], said["text"], self.name)
            self._events.put(event)
            if event.ends:
                self._job = ""
        code = self._process.wait()
        if self._job:
            self._events.put(Event(self._job, "lost", f"its process ended with code {code}", self.name))


def import_paths() -> list[str]:
    """Where this process finds qbayes, and networks of the user's own; its workers look nowhere else."""
    return [os.path.abspath(path) for path in sys.path]


def check_workers(workers: int | None) -> None:
    if workers is not None and not 1 <= workers <= _MOST_WORKERS:
        raise BadInput(
            f"workers must be a number from 1 to {_MOST_WORKERS}",
            f"{workers}",
            "leave it out for as many as fit",
        )


def workers_that_fit(threads: int, device: str) -> int:
    """One for each ``threads`` cores, as far as memory goes; a GPU is shared by several."""
    # not every system tells which cores a process may use.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(1, allowed // threads)
    if device.startswith("cuda"):
        cores = min(cores, _MOST_ON_A_GPU)
    return max(1, min(cores, _free_memory() // _WORKER_BYTES))


def _free_memory() -> int:
    """Bytes that are available, as Linux tells; elsewhere all of the memory."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
