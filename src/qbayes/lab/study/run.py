"""``run_study``: plan, hand out jobs, keep the table; and ``results``, the table for one's own analysis.

Running a study again goes on where it stopped.
"""

import importlib.util
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.device import choose_device
from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.executors.base import EXECUTORS, Conditions, Executor
from qbayes.lab.study.executors.local import check_workers
from qbayes.lab.study.leader import Leader, Watch
from qbayes.lab.study.plan.plan import Job, Loan, Plan, plan_of
from qbayes.lab.study.plan.runs import PlannedRun, is_candidate, planned_runs
from qbayes.lab.study.plan.stacks import MOST, MOST_ON_A_GPU, stacks_of
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.repair import mend
from qbayes.lab.study.store.store import Store
from qbayes.lab.study.store.table import columns, is_table, read_table
from qbayes.lab.study.work.rows import Table
from qbayes.metrics.scores import with_numbers

if TYPE_CHECKING:
    import pandas as pd

Hands = Callable[[list[Job], list[PlannedRun]], Executor | None]
# a stage that is damaged so often is not worth another try.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Outcome:
    """How a study ended; ``notes`` say what was found damaged, and made again."""

    done: int
    failed: int
    planned: int
    seconds: float
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """Runs that are neither done nor failed: time was up."""
        return self.planned - self.done - self.failed


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
    """Do all that is left of a study, and write its tables; the next call goes on where this one stopped.

    What is damaged in the store is made again where something needs it.

    Example:
        >>> import tempfile, qbayes as qb
        >>> run = {"task": "digits", "network": "mlp", "method": "mcd", "training": {"epochs": 1}}
        >>> run["evaluate"] = {"draws": 2, "shifts": False}
        >>> study = qb.Study.from_content({"study": {"name": "small"}, "run": run})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     outcome = qb.run_study(study, folder, workers=1, device="cpu")
        >>> outcome.done, outcome.failed
        (1, 0)

    Args:
        study: What is run.
        folder: The store: a new or an empty folder, or that of the same study.
        data_dir: The folder of the data files; by default ``$QBAYES_DATA``, else the cache folder.
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda``, …
        workers: Jobs at once; by default as many as cores and memory allow.
        executor: ``local`` runs jobs in processes on this machine, ``ray`` on a cluster.
        options: Options of the executor, such as ``address`` of ``ray``; none by default.
        retry: Whether runs that failed before are tried again; they are not by default.
        stack: Whether small networks of one shape are trained together where that is faster.
        lenders: Stores of other studies: what they trained or scored by the same settings is copied, not made
            again. None by default.
        minutes: Stops after so many as at Ctrl-C, but returns: trainings leave checkpoints. By default it
            ends when nothing is left.
        watch: Called with the progress as the study goes on; None by default.

    Returns:
        How many runs were done, failed and planned, with the reasons of failures.

    Raises:
        BadInput: An argument is out of range, the folder is the store of another study, or another run works
            on it.
        BadFile: The folder holds other files, or files of the data are missing.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise BadInput("a study needs some minutes", f"{minutes!r}", "give more, or leave minutes out")
    check_workers(workers)
    store = Store(folder)
    store.check(study)
    data = None if data_dir is None else Path(data_dir)
    # every task is loaded here once: what is missing or wrong is named before anything is made.
    place = choose_device(device)
    tasks = Tasks(data, place)
    runs, waiting = planned_runs(study, tasks)
    store.prepare(study)
    with store.locked():
        # whoever held the lock until now may have made a new folder the store of another study.
        store.check_study(study)
        if retry:
            store.forget_failures()
        notes = mend(store)
        most = MOST_ON_A_GPU if place.type == "cuda" else MOST

        def hands(jobs: list[Job], runs: list[PlannedRun]) -> Executor | None:
            """A cluster that does not answer is refused before the store is written to."""
            threads = max((run.point.run["threads"] for run in runs), default=1)
            with_options = {"workers": workers, "threads": threads, **(options or {})}
            conditions = Conditions(store.folder, data, device)
            return EXECUTORS[executor](conditions, **with_options) if jobs else None  # type: ignore[call-arg]

        begun = time.monotonic()
        limit = math.inf if minutes is None else 60 * minutes
        while True:
            if waiting:
                runs, waiting = planned_runs(study, tasks, store)
            work = _Work(study, store, tasks, runs, waiting, most if stack else 0, notes)
            seconds = limit - (time.monotonic() - begun)
            outcome = work.do([Path(lender) for lender in lenders], hands, seconds, watch)
            # the candidates come first; what waits for them is planned when all of them were scored.
            if not waiting or outcome.left > waiting or time.monotonic() - begun >= limit:
                return replace(outcome, seconds=time.monotonic() - begun)


@dataclass(frozen=True)
class _Work:
    """What is left to do, planned again where a stage that was done turns out to be damaged."""

    study: Study
    store: Store
    tasks: Tasks
    runs: list[PlannedRun]
    waiting: int  # runs whose hyper-parameters are still to be chosen
    most: int  # networks in a stack, or none
    notes: list[str]

    def plan(self) -> Plan:
        return plan_of(self.runs, self.store, self.waiting)

    def jobs(self, plan: Plan) -> list[Job]:
        return plan.jobs(stacks_of(plan, self.tasks, self.most) if self.most else {})

    def do(self, lenders: Sequence[Path], hands: Hands, seconds: float, watch: Watch | None) -> Outcome:
        """Take what is lent, and do what is left of the plan within so many seconds."""
        loan = Loan.of(self.plan(), lenders)
        plan = loan.noted(self.plan())
        jobs = self.jobs(plan)
        executor = hands(jobs, plan.runs)
        try:
            candidates = sum(is_candidate(run.point.run) for run in plan.runs)
            planned = len(plan.runs) - candidates + plan.waiting
            self.store.write_header(self.study, (run.keys.scores for run in plan.runs), planned)
            loan.take(self.store)
            return self.lead(jobs, Table(self.store, plan), executor, seconds, watch)
        finally:
            if executor is not None:
                executor.close()

    def lead(
        self, jobs: list[Job], table: Table, hands: Executor | None, limit: float, watch: Watch | None
    ) -> Outcome:
        begun = time.monotonic()
        damaged = Counter[str]()
        try:
            while jobs and hands is not None:
                leader = Leader(jobs, table, watch)
                leader.lead(hands, limit - (time.monotonic() - begun))
                self._hear_of(leader, damaged)
                # what was set back is in no job of before: those that make it are planned now.
                plan = self.plan()
                table.add_failures(plan)
                jobs = self.jobs(plan) if leader.damaged and not leader.left else []
        finally:
            table.finish()
        planned, seconds = len(self.runs) + self.waiting, time.monotonic() - begun
        reasons = table.reasons
        return Outcome(table.done, len(reasons), planned, seconds, reasons, tuple(self.notes))

    def _hear_of(self, leader: Leader, damaged: Counter[str]) -> None:
        self.notes.extend(leader.notes)
        for which, reason in leader.damaged.items():
            damaged[which] += 1
            stage, key = which.split(" ")
            if damaged[which] >= _ATTEMPTS:
                self.store.fail(stage, key, f"it was damaged {damaged[which]} times: {reason}")
            self.notes.append(f"{which}: {reason}; it was made again")


def results(store: str | Path) -> "pd.DataFrame":
    """The results of a study as a pandas table: one row a run, with the types of the numbers kept.

    Failed runs have a row too; the column ``status`` tells.

    Example:
        >>> import tempfile, qbayes as qb
        >>> run = {"task": "digits", "network": "mlp", "method": "mcd", "training": {"epochs": 1}}
        >>> run["evaluate"] = {"draws": 2, "shifts": False}
        >>> study = qb.Study.from_content({"study": {"name": "small"}, "run": run})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = qb.run_study(study, folder, workers=1, device="cpu")
        ...     qb.results(folder)["status"].tolist()
        ['done']

    Args:
        store: The folder of a study; or a CSV: a study's ``results.csv``, or one that ``qbayes study export``
            wrote.

    Returns:
        A ``pandas.DataFrame``.

    Raises:
        BadInput: pandas is not installed.
        BadFile: The folder is not that of a study, or the CSV is damaged.
    """
    if importlib.util.find_spec("pandas") is None:
        raise BadInput(
            "results come as a pandas table", "pandas is not installed", "pip install 'qbayes[report]'"
        )
    import pandas as pd

    rows = _rows(Path(store))
    return pd.DataFrame(rows, columns=columns(rows))


def _rows(store: Path) -> list[dict[str, Any]]:
    if is_table(store):
        return list(read_table(store).rows)
    held = Store(store)
    if held.header() is None:
        raise BadFile(
            "a store must be the folder of a study", f"{store} has no study.json", "run the study there first"
        )
    return [with_numbers(row) for _, row in sorted(held.rows().items())]
