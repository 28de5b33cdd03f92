"""The plan of a study: its runs with their keys, what is there or lent, and the jobs that are left.

A job is as much as one worker does at a stretch. Float posteriors are trained by jobs of their own, alone or
in stacks, and quantised ones where they are trained in stacks; all that starts from a float posterior and
shares a precision is one more job.

The stores of other studies lend float posteriors and scores with the same keys. A key is the hash of all that
a stage depends on, so that what lies under it elsewhere is what would be made here. Two studies that start
from the same networks train them once; a study that went on in pieces, on machines that keep nothing, needs
of the earlier pieces no more than ``study.json`` and ``results.jsonl``.
"""

import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.study.plan.result_row import identity
from qbayes.lab.study.plan.runs import PlannedRun, planned_runs
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.spec.sections import start_of
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.keys import STAGES, canonical
from qbayes.lab.study.store.store import CHECKPOINT, DONE, ROW, Store
from qbayes.lab.study.store.table import AXIS
from qbayes.posterior.storage.save import HEADER, WEIGHTS, write_atomically

Row = Mapping[str, Any]
KEYS = ("run", "float", "status")


@dataclass(frozen=True)
class Job:
    """What one worker does; ``needs`` are the ids of jobs that must be done before."""

    id: str
    needs: tuple[str, ...]
    payload: Mapping[str, Any]
    runs: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return str(self.payload["kind"])


@dataclass
class Plan:
    """All runs of a study, and which of its stages are done or failed.

    ``waiting`` counts the runs that are not among them: their hyper-parameters are still to be chosen.
    """

    runs: list[PlannedRun]
    done: Mapping[str, set[str]] = field(default_factory=dict[str, set[str]])
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    waiting: int = 0

    def keys(self, stage: str) -> list[str]:
        """The distinct keys of a stage, in the order of the runs."""
        runs = [run for run in self.runs if run.reason is None]
        found = [getattr(run.keys, stage) for run in runs]
        if stage == "float":
            found += [run.keys.start for run in runs]
        return list(dict.fromkeys(key for key in found if key is not None))

    def left(self, stage: str) -> list[str]:
        done, failed = self.done.get(stage, set()), self.failed.get(stage, {})
        return [key for key in self.keys(stage) if key not in done and key not in failed]

    def why_failed(self, run: PlannedRun) -> str | None:
        """The reason of the first stage of a run that failed."""
        if run.reason is not None:
            return run.reason
        for stage in STAGES:
            key = getattr(run.keys, stage)
            if key in self.failed.get(stage, {}):
                return f"{stage}: {self.failed[stage][key]}"
        return None

    def jobs(self, stacks: Mapping[str, str] | None = None) -> list[Job]:
        """The jobs that are left; ``stacks`` names the stack of keys that are trained together."""
        done = self.done.get("scores", set())
        waiting = [run for run in self.runs if run.keys.scores not in done and self.why_failed(run) is None]
        done_floats = self.done.get("float", set())
        untrained = [run for run in waiting if run.keys.float not in done_floats]
        # a stack of quantised posteriors is trained whole: it needs the float ones of runs that are done too.
        beside = self._find_stacked_with(waiting, stacks or {})
        untrained += [run for run in beside if run.keys.float not in done_floats]
        wanted = {run.keys.float for run in (*waiting, *beside)} | {run.keys.start for run in untrained}
        floats = self._float_jobs(stacks or {}, wanted - {None})
        makers = {key: job.id for job in floats for key, _ in job.payload["stages"]}
        tuned = self._tuning_jobs(stacks or {}, {run.keys.quantised for run in waiting}, makers)
        makers |= {key: job.id for job in tuned for key, _ in job.payload["stages"]}
        groups: dict[str, list[PlannedRun]] = defaultdict(list)
        for run in waiting:
            groups[run.keys.quantised or run.keys.float].append(run)
        answers = [_answers(key, group, makers) for key, group in groups.items()]
        return [*floats, *tuned, *answers]

    def _find_stacked_with(self, waiting: list[PlannedRun], stacks: Mapping[str, str]) -> list[PlannedRun]:
        """The runs whose quantised posteriors are in one stack with one that is left."""
        done = self.done.get("quantised", set())
        left = {key for run in waiting if (key := run.keys.quantised) is not None and key not in done}
        names = {stacks[key] for key in left if key in stacks}
        return [run for run in self.runs if stacks.get(run.keys.quantised or "") in names]

    def _float_jobs(self, stacks: Mapping[str, str], wanted: set[str | None]) -> list[Job]:
        """A stack is fixed by the plan and trained whole if any of its posteriors is missing."""
        done = self.done.get("float", set())
        runs = {run.keys.start: start_of(run.point.run) for run in self.runs if run.keys.start is not None}
        runs |= {run.keys.float: run.point.run for run in reversed(self.runs)}
        starts = {run.keys.float: run.keys.start for run in self.runs}
        groups: dict[str, list[str]] = defaultdict(list)
        for key in self.keys("float"):
            groups[stacks.get(key, key)].append(key)
        made_by = {key: f"float:{name}" for name, keys in groups.items() for key in keys}
        jobs = []
        for name, keys in groups.items():
            if any(key in wanted and key not in done for key in keys):
                stages = [(key, runs[key]) for key in keys]
                first = runs[keys[0]]
                assert first is not None
                # what starts from another posterior is trained alone.
                start = starts.get(keys[0])
                needs = () if start is None or start in done else (made_by[start],)
                payload = {"kind": "float", "name": name, "stages": stages, "threads": first["threads"]}
                jobs.append(Job(f"float:{name}", needs, payload | {"start": start}))
        return jobs

    def _tuning_jobs(
        self, stacks: Mapping[str, str], wanted: set[str | None], makers: Mapping[str, str]
    ) -> list[Job]:
        """As float jobs, of stacks alone: one posterior by itself is quantised where it is scored."""
        done = self.done.get("quantised", set())
        runs = {run.keys.quantised: run for run in reversed(self.runs)}
        groups: dict[str, list[str]] = defaultdict(list)
        for key in self.keys("quantised"):
            if key in stacks:
                groups[stacks[key]].append(key)
        jobs = []
        for name, keys in groups.items():
            if any(key in wanted and key not in done for key in keys):
                floats = [runs[key].keys.float for key in keys]
                payload = {
                    "kind": "quantised",
                    "name": name,
                    "stages": [(key, runs[key].point.run) for key in keys],
                    "floats": floats,
                    "programs": [runs[key].keys.program for key in keys],
                    "threads": runs[keys[0]].point.run["threads"],
                }
                needs = dict.fromkeys(makers[key] for key in floats if key in makers)
                jobs.append(Job(f"quantised:{name}", tuple(needs), payload))
        return jobs


def _answers(key: str, group: list[PlannedRun], makers: Mapping[str, str]) -> Job:
    first = group[0]
    payload = {
        "kind": "answers",
        "float": first.keys.float,
        "quantised": first.keys.quantised,
        "program": first.keys.program,
        "runs": [(run.keys.scores, run.point.run) for run in group],
        "threads": first.point.run["threads"],
    }
    start = key if key in makers else first.keys.float
    needs = (makers[start],) if start in makers else ()
    return Job(f"answers:{key}", needs, payload, tuple(run.keys.scores for run in group))


def make_plan(study: Study, tasks: Tasks, store: Store | None = None) -> Plan:
    """The runs of a study and the state of its store."""
    runs, waiting = planned_runs(study, tasks, store)
    return Plan(runs, waiting=waiting) if store is None else plan_of(runs, store, waiting)


def plan_of(runs: list[PlannedRun], store: Store, waiting: int = 0) -> Plan:
    """The runs, and what the store has of them."""
    done = {stage: store.done_keys(stage) for stage in STAGES}
    return Plan(runs, done, {stage: store.failed_keys(stage) for stage in STAGES}, waiting)


class Estimate:
    """Seconds that stages take, from those that were measured: of the same method and task, else wider."""

    def __init__(self, store: Store) -> None:
        self._seconds: dict[tuple[str, ...], list[float]] = {}
        for stage in STAGES:
            for record in store.records(stage).values():
                for key in _kinds(stage, record) if "seconds" in record else ():
                    self._seconds.setdefault(key, []).append(float(record["seconds"]))

    def seconds(self, stage: str, run: Mapping[str, Any]) -> float | None:
        known = next((key for key in _kinds(stage, identity(run)) if key in self._seconds), None)
        return None if known is None else statistics.median(self._seconds[known])

    def left(self, plan: Plan) -> tuple[float, int]:
        """The seconds of one worker for all stages that are left, and how many of them are unknown."""
        total, unknown = 0.0, 0
        for stage, run in _stages_left(plan):
            seconds = self.seconds(stage, run)
            total, unknown = total + (seconds or 0.0), unknown + (seconds is None)
        return total, unknown


def _kinds(stage: str, known: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What a stage has in common with others, the narrowest first."""
    whole = (stage, str(known.get("method", "")), str(known.get("task", "")))
    return [whole, whole[:2], whole[:1]]


def _stages_left(plan: Plan) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for stage in STAGES:
        left = set(plan.left(stage))
        for run in plan.runs:
            key = getattr(run.keys, stage)
            if key in left:
                left.discard(key)
                yield stage, run.point.run


@dataclass(frozen=True)
class Loan:
    """The stores that have a float posterior or the scores of a run that the plan lacks, by key."""

    floats: Mapping[str, Store]
    scores: Mapping[str, tuple[Store, Row]]

    @classmethod
    def of(cls, plan: Plan, sources: Sequence[Path]) -> "Loan":
        """All that ``sources`` have of what is left; the first that has it lends it."""
        floats: dict[str, Store] = {}
        scores: dict[str, tuple[Store, Row]] = {}
        wanted_floats, wanted_scores = set(plan.left("float")), set(plan.left("scores"))
        for source in sources:
            store = _open(source)
            for key in wanted_floats & store.done_keys("float"):
                if all((store.stage("float", key) / name).is_file() for name in (HEADER, WEIGHTS)):
                    floats.setdefault(key, store)
            # what cannot be read is not lent, and is made here.
            rows, _ = store.read_lines()
            for key, row in rows.items():
                if key in wanted_scores and row.get("status") == "done":
                    scores.setdefault(key, (store, row))
        return cls(floats, scores)

    def noted(self, plan: Plan) -> Plan:
        """The plan with what is lent as done."""
        more = {"float": set(self.floats), "scores": set(self.scores)}
        done = {stage: {*keys, *more.get(stage, ())} for stage, keys in plan.done.items()}
        return replace(plan, done=done)

    def take(self, store: Store) -> None:
        """Copy all of it; a stage is there when its ``done.json`` is, which comes last."""
        for key, lender in self.floats.items():
            _copy(lender, store, "float", key)
        for key, (lender, row) in self.scores.items():
            if lender.scores(key) is not None and lender.is_done("scores", key):
                _copy(lender, store, "scores", key)
                continue
            # what a run is, and where it lies on the axes, this study says itself.
            own = {name for name in row if name in KEYS or name.startswith(AXIS)}
            found = {name: value for name, value in row.items() if name not in own}
            folder = store.begin("scores", key)
            write_atomically(folder / ROW, canonical(found).encode())
            told = {name: row.get(name) for name in ("method", "task")}
            store.finish("scores", key, {**told, "versions": (lender.header() or {}).get("versions")})


def _copy(lender: Store, store: Store, stage: str, key: str) -> None:
    source, folder = lender.stage(stage, key), store.begin(stage, key)
    for path in source.iterdir():
        if path.is_file() and path.name not in (DONE, CHECKPOINT):
            shutil.copyfile(path, folder / path.name)
    store.finish(stage, key, lender.record(stage, key))


def _open(source: Path) -> Store:
    store = Store(source)
    if not source.is_dir() or store.header() is None:
        raise BadInput(
            "results are lent by the folder of a study, with its study.json and results.jsonl",
            f"{source} has no study.json",
            "give the folder that 'qbayes study run --store' wrote",
        )
    return store
