"""The process that speaks with Ray: jobs as JSON lines on standard input, events on standard output.

Ray lives here and not in the user's process: it prints to standard output, takes over signals, tries for
minutes to reach an address, and ends its process when the cluster is gone. None of that may befall a study.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.executors.ray_cluster import connect, device_on, share_for
from qbayes.lab.study.executors.ray_store import Beacon, pack, stages_of, unpack
from qbayes.lab.study.plan.result_row import identity
from qbayes.lab.study.store.store import LOGS, Store, writing
from qbayes.provenance import versions

LOG = "ray.log"
_LEFT_ALONE = 3  # exit code: the process that gave the jobs is gone
_LEAVE = 10.0  # seconds for Ray to end its processes in order, when nobody waits for it
_LOOK = 0.05  # seconds between looks at new jobs
_COUNT = 1.0  # seconds between counts of the nodes
_KEPT = 64  # stages whose files stay in Ray's object store for the next job that needs them
Message = dict[str, Any]


class Driver:
    """Jobs as Ray tasks. A task runs once: whoever leads the study decides what is done again."""

    def __init__(self, order: Mapping[str, Any], events: TextIO) -> None:
        import ray

        self._events, self._order = events, order
        nodes = ray.nodes()
        device = device_on(nodes, order["device"])
        self._share = share_for(nodes, order["threads"], device)
        self._store = Store(order["store"])
        with writing(self._store.folder):
            self._beacon = Beacon(self._store.folder)
        shared = order["shared"] is not False
        self._common = {
            "store": order["store"],
            "data_dir": order["data_dir"],
            "device": device,
            "token": self._beacon.token if shared else "",
            "versions": versions(),
        }
        # until a node says that it does not see the store, nothing is sent with a job.
        self._send = not (shared and self._beacon.token)
        takes = {"num_cpus": self._share.cpus, "num_gpus": self._share.gpus}
        self._task = _task().options(**takes, max_retries=0, scheduling_strategy="SPREAD")
        self._jobs: dict[Any, tuple[str, Mapping[str, Any]]] = {}
        self._references: dict[tuple[str, str], Any] = {}
        self._slots, self._counted = 0, 0.0

    def say(self, kind: str, **values: Any) -> None:
        _say(self._events, kind, **values)

    def count(self) -> None:
        """Say how many jobs the nodes carry, when that has changed: nodes come and go."""
        import ray

        if time.monotonic() - self._counted < _COUNT:
            return
        self._counted = time.monotonic()
        fit = max(1, sum(self._share.fits(node) for node in ray.nodes()))
        slots = min(fit, self._order["workers"] or fit)
        if slots != self._slots:
            self._slots = slots
            self.say("slots", slots=slots)

    def submit(self, job: str, payload: Mapping[str, Any]) -> None:
        order = {**self._common, "job": job, "payload": payload}
        sent = list(self._send_stages(payload)) if self._send else None
        # inside a list, references are not fetched unless the node asks for them.
        self._jobs[self._task.remote(self._order["paths"], order, sent)] = (job, payload)

    def _send_stages(self, payload: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
        """The stages of a job that are done already."""
        import ray

        for stage, key in stages_of(payload):
            if self._store.is_done(stage, key):
                held = self._references.pop((stage, key), None)
                self._references[stage, key] = held or ray.put(pack(self._store, stage, key))
                yield stage, key, self._references[stage, key]
        while len(self._references) > _KEPT:
            self._references.pop(next(iter(self._references)))

    def look(self) -> None:
        """Hear what became of jobs that have ended."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        if not self._jobs:
            return
        ended, _ = ray.wait(list(self._jobs), num_returns=1, timeout=_LOOK, fetch_local=False)
        for reference in ended:
            job, payload = self._jobs.pop(reference)
            try:
                answer = ray.get(reference)
            except RayTaskError as error:
                self._lose(job, error, error.cause)
            except RayError as error:
                self.say("lost", job=job, text=f"{type(error).__name__}: {error}".partition("\n")[0])
            else:
                self._hear(job, payload, answer)

    def _lose(self, job: str, error: Exception, cause: object) -> None:
        """The job raised an error: it is in the log, and the job is lost, as if its process had died."""
        if isinstance(cause, ModuleNotFoundError) and str(cause.name).partition(".")[0] == "qbayes":
            got = f"a node of the cluster has no module '{cause.name}'"
            do = "install the same version of qbayes on every node; what is done is kept"
            self.say("refused", must="every node must have qbayes installed", got=got, do=do)
            return
        traceback.print_exception(error)
        self.say("lost", job=job, text=f"{type(cause).__name__}: {cause}".partition("\n")[0])

    def _hear(self, job: str, payload: Mapping[str, Any], answer: Message) -> None:
        for note in answer.pop("notes"):
            self.say("note", job=job, text=note)
        if answer["kind"] == "unseen":
            self._send = True
            self.submit(job, payload)
        elif answer["kind"] == "refused":
            self.say(**answer)
        elif answer["kind"] == "files":
            self._keep(job, answer["stages"])
        else:
            if answer["kind"] == "damaged":
                # the node had a copy: here is what it was made from.
                self._references.pop((answer["stage"], answer["key"]), None)
                self._store.set_back(answer["stage"], answer["key"])
            self.say(answer["kind"], job=job, text=answer.get("text", ""))

    def _keep(self, job: str, stages: list[tuple[str, str, dict[str, bytes]]]) -> None:
        try:
            with writing(self._store.folder), self._beacon.claimed(job):
                for stage, key, files in stages:
                    unpack(self._store, stage, key, files)
        except BadFile as error:
            self.say("stopped", job=job, text=error.got)
        else:
            self.say("done", job=job, text="")

    def close(self) -> None:
        import ray

        for reference in self._jobs:
            ray.cancel(reference, force=True)
        ray.shutdown()
        self._beacon.close()


def _say(events: TextIO, kind: str, **values: Any) -> None:
    events.write(json.dumps({"kind": kind, **values}) + "\n")


def _task() -> Any:
    """The task of a job. Defined here, it travels whole; the node finds qbayes where this process did."""
    import ray

    def perform(paths: list[str], order: dict[str, Any], sent: list[Any] | None) -> dict[str, Any]:
        import os
        import sys

        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))
        from qbayes.lab.study.executors.ray_cluster import work

        return work(order, sent)

    return ray.remote(perform)


def title(payload: Mapping[str, Any]) -> str:
    """What a job does, in a few words."""
    trains = payload["kind"] in ("float", "quantised")
    runs = payload["stages" if trains else "runs"]
    known, more = identity(runs[0][1]), len(runs) - 1 if trains else 0
    bits, others = "" if trains else f" {known['precision']},", f" and {more} more" if more else ""
    return f"{known['method']} on {known['task']},{bits} seed {known['seed']}{others}"


def main() -> None:
    # what Ray prints must not come between the events.
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    messages: queue.Queue[Message | None] = queue.Queue()
    threading.Thread(target=_read, args=(messages,), daemon=True).start()
    order = messages.get()
    assert order is not None
    _say(events, "awake")
    try:
        connect(order["address"], order["cpus"])
        _say(events, "joined")
        driver = Driver(order, events)
    except BadInput as error:
        _say(events, "refused", must=error.must, got=error.got, do=error.do)
        return
    _log_into(Path(order["store"]) / LOGS)
    driver.say("ready")
    _serve(driver, messages)
    driver.close()


def _serve(driver: Driver, messages: "queue.Queue[Message | None]") -> None:
    while True:
        driver.count()
        driver.look()
        try:
            message = messages.get(timeout=_LOOK)
        except queue.Empty:
            continue
        if message is None:
            return
        driver.say("started", job=message["job"], text=title(message["payload"]))
        driver.submit(message["job"], message["payload"])


def _read(messages: "queue.Queue[Message | None]") -> None:
    """``null`` asks to leave; so does a pipe that closes without it, when the other side was killed."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        messages.put(message)
        if message is None:
            return
    messages.put(None)
    time.sleep(_LEAVE)
    os._exit(_LEFT_ALONE)


def _log_into(folder: Path) -> None:
    """From here on, what this process and Ray print goes into the store's logs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


if __name__ == "__main__":
    main()
