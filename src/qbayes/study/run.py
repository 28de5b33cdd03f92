"""``run_study``: plan, hand out jobs, keep the table. Running it again goes on where it stopped."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput, RunFailed
from qbayes.study.answers import ROW
from qbayes.study.executors.base import EXECUTORS, Conditions, Event, Executor
from qbayes.study.lend import Loan
from qbayes.study.plan import Job, Plan, make_plan
from qbayes.study.spec import Study
from qbayes.study.stacks import MOST, MOST_ON_A_GPU, stacks_of
from qbayes.study.stages import STAGES, Tasks
from qbayes.study.store import Row, Store, StoreFull
from qbayes.training.fit import choose_device

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


@dataclass(frozen=True)
class Outcome:
    """How a study ended."""

    done: int
    failed: int
    planned: int
    seconds: float
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def left(self) -> int:
        """Runs that are neither done nor failed: time was up."""
        return self.planned - self.done - self.failed


Watch = Callable[[Progress], None]


def run_study(
    study: Study,
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    executor: str = "local",
    options: Mapping[str, Any] | None = None,
    retry: bool = False,
    stack: bool = True,
    lenders: Sequence[str | Path] = (),
    minutes: float | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Do all that is left of ``study`` in the store ``folder``, and write its tables.

    With ``stack`` small networks of one shape are trained together where that is faster. ``lenders`` are the
    stores of other studies: what they trained or scored by the same settings is copied, not made again.
    After ``minutes`` it stops as at Ctrl-C, but returns: trainings leave checkpoints, the next call goes on.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise BadInput("a study needs some minutes", f"{minutes!r}", "give more, or leave minutes out")
    store = Store(folder)
    store.prepare(study)
    with store.locked():
        # whoever held the lock until now may have made a new folder the store of another study.
        store.check_study(study)
        data = None if data_dir is None else Path(data_dir)
        if retry:
            store.forget_failures()
        store.mend()
        # every task is loaded here once: a data set that is missing is named before anything runs.
        tasks = Tasks(data)
        plan = make_plan(study, tasks, store)
        loan = Loan.of(plan, [Path(lender) for lender in lenders])
        plan = loan.noted(plan)
        most = MOST_ON_A_GPU if choose_device(device).type == "cuda" else MOST
        jobs = plan.jobs(stacks_of(plan, tasks, most) if stack else {})
        threads = max((run.point.run["threads"] for run in plan.runs), default=1)
        with_options = {"workers": workers, "threads": threads, **(options or {})}
        conditions = Conditions(store.folder, data, device)
        # a cluster that does not answer is refused before the store is written to.
        hands = EXECUTORS[executor](conditions, **with_options) if jobs else None  # type: ignore[call-arg]
        try:
            store.write_header(study, (run.keys.scores for run in plan.runs))
            loan.take(store)
            table = _Table(store, plan)
            leader = _Leader(jobs, table, watch)
            try:
                if hands is not None:
                    leader.lead(hands, math.inf if minutes is None else 60 * minutes)
            finally:
                table.finish()
        finally:
            if hands is not None:
                hands.close()
        return Outcome(table.done, len(table.reasons), len(plan.runs), leader.seconds, table.reasons)


class _Table:
    """The rows of the results: appended as runs end, complete whatever happened before."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self.store = store
        self.runs = {run.keys.scores: run for run in plan.runs}
        self._rows = {key: row for key, row in store.rows().items() if key in self.runs}
        self.last: Row | None = None
        for key, run in self.runs.items():
            if key in plan.done.get("scores", set()):
                self.add_done(key)
            elif (reason := plan.why_failed(run)) is not None:
                self.add_failed(key, reason)

    @property
    def done(self) -> int:
        return sum(row["status"] == "done" for row in self._rows.values())

    @property
    def reasons(self) -> dict[str, str]:
        return {key: row["reason"] for key, row in self._rows.items() if row["status"] == "failed"}

    def add_done(self, key: str) -> None:
        found = json.loads((self.store.stage("scores", key) / ROW).read_bytes())
        self._add({**self.runs[key].row(), **found, "status": "done"})

    def add_failed(self, key: str, reason: str) -> None:
        self._add({**self.runs[key].row(), "status": "failed", "reason": reason})

    def add(self, keys: tuple[str, ...]) -> None:
        """The runs of a job that ended, as the store has them."""
        for key in keys:
            if self.store.is_done("scores", key):
                self.add_done(key)
                continue
            held = self.runs[key].keys
            for stage in STAGES:
                stage_key = getattr(held, stage)
                reason = None if stage_key is None else self.store.why_failed(stage, stage_key)
                if reason is not None:
                    self.add_failed(key, f"{stage}: {reason}")
                    break

    def _add(self, row: Row) -> None:
        if self._rows.get(row["run"]) != row:
            self.store.append(row)
            self._rows[row["run"]] = row
            self.last = row

    def finish(self) -> None:
        self.store.write_tables(set(self.runs))


class _Leader:
    """Hands out jobs whose needs are met, and hears what became of them."""

    def __init__(self, jobs: list[Job], table: _Table, watch: Watch | None) -> None:
        self._jobs = {job.id: job for job in jobs}
        self._table, self._watch = table, watch
        self._needs = {job.id: {need for need in job.needs if need in self._jobs} for job in jobs}
        self._ready = [job.id for job in jobs if not self._needs[job.id]]
        self._users: dict[str, list[str]] = {}
        for job in jobs:
            for need in self._needs[job.id]:
                self._users.setdefault(need, []).append(job.id)
        self._lost: dict[str, int] = {}
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
        self._end(self._jobs[event.job])

    def _lose(self, event: Event) -> None:
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= _IN_A_ROW:
            raise RunFailed(
                "workers must live to do their jobs",
                f"{self._lost_in_a_row} died one after the other; the last: {event.text}",
                "look at logs/ in the store and at the device, and run the same command again: it goes on",
            )
        times = self._lost[event.job] = self._lost.get(event.job, 0) + 1
        if times < _ATTEMPTS:
            # behind all others: where every worker dies, few have their three before the study stops.
            self._ready.insert(0, event.job)
            return
        job = self._jobs[event.job]
        for stage, key in _blamed(job):
            if not self._table.store.is_done(stage, key):
                self._table.store.fail(stage, key, f"its worker died {times} times: {event.text}")
        self._end(job)

    def _end(self, job: Job) -> None:
        self._ended.add(job.id)
        self._table.add(job.runs)
        for user in self._users.get(job.id, []):
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
        table = self._table
        return Progress(
            table.done,
            len(table.reasons),
            len(table.runs),
            len(self._ended),
            len(self._jobs),
            dict(self._working),
            self.seconds,
            table.last,
        )


def _blamed(job: Job) -> list[tuple[str, str]]:
    """The stages that fail where a job's workers died: those that it begins with."""
    if job.kind in ("float", "quantised"):
        return [(job.kind, key) for key, _ in job.payload["stages"]]
    if job.payload["quantised"] is not None:
        return [("quantised", job.payload["quantised"])]
    return [("scores", key) for key in job.runs]
