"""Who leads a study: gives out jobs whose needs are met, and hears what became of them."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qbayes.errors import RunFailed
from qbayes.lab.study.executors.base import Event, Executor
from qbayes.lab.study.plan.plan import Job
from qbayes.lab.study.store.store import Row, StoreFull
from qbayes.lab.study.work.rows import Table

# a worker that dies may have been unlucky; a job that kills three is at fault itself.
_ATTEMPTS = 3
# … but if nothing comes to an end between so many deaths, it is not the jobs' fault.
_IN_A_ROW = 10
_PATIENCE = 0.5  # seconds between looks at the clock


@dataclass(frozen=True)
class Progress:
    """What a display needs: jobs and runs so far, what is being done, and the last row."""

    runs_done: int
    runs_failed: int
    runs: int
    jobs_done: int
    jobs: int
    working: Mapping[str, str]
    seconds: float
    last: Row | None = None


Watch = Callable[[Progress], None]


class Leader:
    """Hands out jobs whose needs are met, and hears what became of them."""

    def __init__(self, jobs: list[Job], table: Table, watch: Watch | None) -> None:
        self._jobs = {job.id: job for job in jobs}
        self._table, self._watch = table, watch
        self._needs = {job.id: {need for need in job.needs if need in self._jobs} for job in jobs}
        self._ready = [job.id for job in jobs if not self._needs[job.id]]
        self._users: dict[str, list[str]] = defaultdict(list)
        for job in jobs:
            for need in self._needs[job.id]:
                self._users[need].append(job.id)
        # stages that were set back, with the reason, and what else was said.
        self.damaged: dict[str, str] = {}
        self.notes: list[str] = []
        self._lost = Counter[str]()
        self._lost_in_a_row = 0
        self._ended: set[str] = set()
        self._working: dict[str, str] = {}
        self._begun = time.monotonic()

    @property
    def left(self) -> int:
        return len(self._jobs) - len(self._ended)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def lead(self, hands: Executor, seconds: float) -> None:
        while self.left and self.seconds < seconds:
            while self._ready and len(self._working) < hands.slots:
                # the most recent first: what starts from a posterior runs before the next one is trained,
                # and rows come early.
                job = self._jobs[self._ready.pop()]
                self._working[job.id] = ""
                hands.submit(job.id, job.payload)
            for event in hands.wait(_PATIENCE):
                self._hear(event)
            if self._watch is not None:
                self._watch(self._progress())

    def _hear(self, event: Event) -> None:
        if event.kind == "started":
            self._working[event.job] = event.text
            return
        if event.kind == "note":
            self.notes.append(event.text)
            return
        self._working.pop(event.job, None)
        if event.kind == "stopped":
            raise StoreFull(
                "the store must take files",
                event.text,
                "free space or rights there and run the same command again: it goes on where it stopped",
            )
        if event.kind == "lost":
            self._lose(event)
            return
        self._lost_in_a_row = 0
        if event.kind == "damaged":
            which, _, reason = event.text.partition(": ")
            self.damaged.setdefault(which, reason)
            self._set_aside(event.job)
            return
        self._end(self._jobs[event.job])

    def _set_aside(self, job: str) -> None:
        """Until what it starts from was made again; what starts from it waits too."""
        self._ended.add(job)
        for user in self._users[job]:
            if user not in self._ended:
                self._set_aside(user)

    def _lose(self, event: Event) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= _IN_A_ROW:
            raise RunFailed(
                "workers must live to do their jobs",
                f"{self._lost_in_a_row} died one after the other; the last: {event.text}",
                "look at logs/ in the store and at the device, and run the same command again: it goes on",
            )
        self._lost[event.job] += 1
        times = self._lost[event.job]
        if times < _ATTEMPTS:
            # behind all others: where every worker dies, few have their three before the study stops.
            self._ready.insert(0, event.job)
            return
        job = self._jobs[event.job]
        for stage, key in _stages_to_blame(job):
            if not self._table.store.is_done(stage, key):
                self._table.store.fail(stage, key, f"its worker died {times} times: {event.text}")
        self._end(job)

    def _end(self, job: Job) -> None:
        self._ended.add(job.id)
        self._table.add(job.runs)
        for user in self._users[job.id]:
            self._needs[user].discard(job.id)
            if self._needs[user]:
                continue
            if self._can_start(self._jobs[user]):
                self._ready.append(user)
            else:
                self._end(self._jobs[user])

    def _can_start(self, job: Job) -> bool:
        """Whether what a job starts from came to be; of a stack, any of it."""
        store = self._table.store
        if job.kind == "float":
            # it says itself what it lacks: that is the reason which its runs are given.
            return True
        if job.kind == "quantised":
            return any(store.is_done("float", key) for key in job.payload["floats"])
        key = job.payload["quantised"]
        failed = key is not None and store.why_failed("quantised", key) is not None
        return store.is_done("float", job.payload["float"]) and not failed

    def _progress(self) -> Progress:
        table, ended = self._table, len(self._ended)
        counts = (table.done, len(table.reasons), len(table.runs), ended, len(self._jobs))
        return Progress(*counts, dict(self._working), self.seconds, table.last)


def _stages_to_blame(job: Job) -> list[tuple[str, str]]:
    """The stages that fail where a job's workers died: those that it begins with."""
    if job.kind in ("float", "quantised"):
        return [(job.kind, key) for key, _ in job.payload["stages"]]
    if job.payload["quantised"] is not None:
        return [("quantised", job.payload["quantised"])]
    return [("scores", key) for key in job.runs]
