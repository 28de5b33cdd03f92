"""Jobs on a Ray cluster: a given one, or one that is started here and ends with the study.

Artefacts go through the store's folder where a node sees it, and else through Ray's object store
(``ray_folder``, ``ray_files``). Ray itself lives in a process of its own (``ray_driver``). A node that dies
costs no result: its jobs come back as lost, and whoever leads the study gives them out again.
"""

import contextlib
import importlib.util
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from qbayes.errors import BadInput, RunFailed
from qbayes.lab.study.executors import ray_driver
from qbayes.lab.study.executors.base import EXECUTORS, Child, Conditions, Event, Executor, import_paths, take
from qbayes.lab.study.executors.local import check_workers, workers_that_fit
from qbayes.lab.study.executors.ray_cluster import no_answer
from qbayes.lab.study.store.store import LOGS

# seconds: for a process to import torch; to join a cluster, or to start one; to get ready; to leave.
_WAKE, _JOIN, _START, _READY, _LEAVE = 60.0, 15.0, 60.0, 60.0, 10.0
_ADDRESS = "RAY_ADDRESS"  # where Ray's own tools name the cluster they were started in
_SHOWN = 160  # characters of a line of Ray's log
_ENDED, _SLOTS, _REFUSED = "ended", "slots", "refused"
Message = dict[str, Any]


@EXECUTORS.register("ray")
class Ray(Executor):
    """Each job is a Ray task of ``threads`` CPUs; at most ``workers`` at once, by default all that fit.

    ``address`` is ``auto``, ``host:port`` or ``ray://host:port``; without one, that in ``RAY_ADDRESS``, and
    else a cluster on this machine is started. ``shared=False`` sends artefacts through Ray even to nodes that
    see the store's folder.
    """

    def __init__(
        self,
        conditions: Conditions,
        workers: int | None = None,
        threads: int = 1,
        address: str | None = None,
        shared: bool | None = None,
    ) -> None:
        check_workers(workers)
        if importlib.util.find_spec("ray") is None:
            raise BadInput(
                "the executor ray must have Ray", "it is not installed", "pip install 'qbayes[ray]'"
            )
        self._conditions = conditions
        self._address = address or os.environ.get(_ADDRESS) or None
        self._slots = 1
        self._messages: queue.Queue[Message] = queue.Queue()
        order = {
            **conditions.to_json(),
            "address": self._address,
            "workers": workers,
            "threads": threads,
            "cpus": (workers or workers_that_fit(threads, conditions.device)) * threads,
            "shared": shared,
            "paths": import_paths(),
        }
        # what is printed before the store may be touched.
        self._early: deque[bytes] = deque(maxlen=20)
        # a study tells nobody.
        self._driver = Child(ray_driver.__name__, threads, subprocess.PIPE, RAY_USAGE_STATS_ENABLED="0")
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._listen_early, daemon=True).start()
        try:
            self._driver.send(order)
            self._await("awake", _WAKE)
            self._await("joined", _START if self._address is None else _JOIN)
            self._await("ready", _READY)
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        return self._slots

    def submit(self, job: str, payload: Mapping[str, Any]) -> None:
        self._driver.send({"job": job, "payload": payload})

    def wait(self, seconds: float) -> list[Event]:
        found: list[Event] = []
        deadline = time.monotonic() + seconds
        while not found and (left := deadline - time.monotonic()) > 0:
            events = map(self._hear, take(self._messages, left))
            found = [event for event in events if event is not None]
        return found

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here; a process that does not leave is killed."""
        self._driver.send(None)
        self._driver.stop(_LEAVE)
        self._driver.let_go()

    def _listen(self) -> None:
        for message in self._driver.messages():
            self._messages.put(message)
        self._messages.put({"kind": _ENDED, "code": self._driver.stop(None)})

    def _listen_early(self) -> None:
        """Until the log is in the store."""
        self._early.extend(self._driver.errors())

    def _await(self, kind: str, limit: float) -> None:
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                message = self._messages.get(timeout=left)
                if message["kind"] == kind:
                    return
                self._hear(message)
        self._driver.stop(0)
        if self._address is not None and kind == "joined":
            raise no_answer(self._address, f"no answer within {limit:.0f} s")
        raise RunFailed(
            "Ray must start on this machine",
            f"it had not after {limit:.0f} s: {self._last_words()}",
            "try again when the machine is less busy, or use --executor local",
        )

    def _hear(self, message: Message) -> Event | None:
        kind = message["kind"]
        if kind == _SLOTS:
            self._slots = message["slots"]
            return None
        if kind == _REFUSED:
            raise BadInput(message["must"], message["got"], message["do"])
        if kind == _ENDED:
            raise RunFailed(
                "the Ray cluster must stay within reach",
                f"the connection ended with code {message['code']}: {self._last_words()}",
                "run the same command again when the cluster is there: it goes on where it stopped",
            )
        return Event(message["job"], kind, message["text"], "ray")

    def _last_words(self) -> str:
        """The last line that the process with Ray has printed."""
        log = self._conditions.store / LOGS / ray_driver.LOG
        text = b"".join(self._early) + (log.read_bytes() if log.exists() else b"")
        lines = text.decode(errors="replace").strip().splitlines()
        return lines[-1][:_SHOWN] if lines else "it said nothing"
