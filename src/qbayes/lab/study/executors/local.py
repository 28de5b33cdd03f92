"""Worker processes on this machine, each with its own torch and a fixed number of threads.

A worker is a fresh interpreter that reads jobs as JSON lines and answers with events. When this process dies,
however it dies, the pipe closes and its workers leave; they are let go in the same way.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.study.executors.base import EXECUTORS, Child, Conditions, Event, Executor, take
from qbayes.lab.study.store.store import LOGS
from qbayes.lab.study.work.worker import PATIENCE

# an interpreter with torch, a network, its optimiser and a data set like MNIST.
_WORKER_BYTES = 1_200_000_000
_MOST_ON_A_GPU = 8
_MOST_WORKERS = 10_000
# a worker stops behind its step, and ends itself after its own patience: this is for one that cannot.
_PATIENCE = 1.5 * PATIENCE


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
        found = take(self._events, seconds)
        for event in found:
            if event.ends and event.job in self._busy:
                worker = self._busy.pop(event.job)
                if event.kind in ("done", "damaged"):
                    self._free.append(worker)
                else:
                    worker.let_go()
                    worker.stop(_PATIENCE)
        return found

    def close(self) -> None:
        workers = (*self._free, *self._busy.values())
        for worker in workers:
            worker.let_go()
        for worker in workers:
            worker.stop(_PATIENCE)

    def _new(self) -> "_Worker":
        self._made += 1
        return _Worker(f"worker-{self._made}", self._conditions, self._threads, self._events)


class _Worker(Child):
    """One process, and the thread that listens to it."""

    def __init__(self, name: str, conditions: Conditions, threads: int, events: "queue.Queue[Event]") -> None:
        self.name, self._events, self._job = name, events, ""
        logs = conditions.store / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            super().__init__("qbayes.lab.study.work.worker", threads, log)
        self.send(conditions.to_json())
        threading.Thread(target=self._listen, daemon=True).start()

    def give(self, job: str, payload: Mapping[str, Any]) -> None:
        self._job = job
        self.send({"job": job, "payload": payload})

    def _listen(self) -> None:
        for message in self.messages():
            event = Event(message["job"], message["kind"], message["text"], self.name)
            self._events.put(event)
            if event.ends:
                self._job = ""
        code = self.stop(None)
        if self._job:
            self._events.put(Event(self._job, "lost", f"its process ended with code {code}", self.name))


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
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
