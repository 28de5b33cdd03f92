"""The runs of a study with their keys, and the choice of those hyper-parameters that held-out rows choose.

Each candidate is a run like any other, in float: trained on the training rows without the held-out ones, and
scored on those. The run itself then trains anew by the candidate that scored best, on all of its training
rows. No test row has a part in it: a candidate is scored on the split ``validation`` alone.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.study.plan.result_row import identity
from qbayes.lab.study.plan.stages import Keys, Resolver
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.spec.grid import Point
from qbayes.lab.study.spec.sections import (
    BY,
    CHOOSE,
    FLOAT,
    MOST_CANDIDATES,
    OF_CHOICE,
    SCORES_OF,
    VALIDATION,
    check_section,
    named,
)
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.keys import STAGES, canonical, digest
from qbayes.lab.study.store.store import Store
from qbayes.lab.study.store.table import CANDIDATE, CHOSEN
from qbayes.metrics.scores import with_numbers

Section = Mapping[str, Any]
_SHARED = ("draws", "seed", "batch_size")
# what a candidate has not of the run it belongs to.
_LATER = ("precision", "quantize", "evaluate", CHOOSE)


@dataclass(frozen=True)
class Candidate:
    """One point of the grid: what it puts into the sections ``method`` and ``training``."""

    settings: Mapping[str, Mapping[str, Any]]

    @property
    def text(self) -> str:
        """``method.rate=0.1, training.learning_rate=0.003``."""
        pairs = ((section, *item) for section, held in self.settings.items() for item in held.items())
        return ", ".join(f"{section}.{key}={json.dumps(value)}" for section, key, value in pairs)

    def within(self, run: Section, mark: str) -> dict[str, Any]:
        """The run with these settings in it, and no choice left."""
        name, options = named(run["method"], "method", "mcd")
        method = {"name": name, **options, **self.settings["method"]}
        training = {**run["training"], **self.settings["training"]}
        return {**run, "method": method, "training": training, CHOOSE: {mark: self.text}}


def is_open(run: Section) -> bool:
    """Whether some of a run's hyper-parameters are still to be chosen."""
    choose = run.get(CHOOSE, {})
    return bool(choose) and CANDIDATE not in choose and CHOSEN not in choose


def is_candidate(run: Section) -> bool:
    """Whether a run only scores a candidate on held-out rows."""
    return CANDIDATE in run.get(CHOOSE, {})


def candidates(run: Section) -> list[Candidate]:
    """The grid of a run's choice, in the order in which it is written; refused where it is none."""
    choose = run[CHOOSE]
    count = math.prod(len(values) for section in OF_CHOICE for values in choose.get(section, {}).values())
    if not 2 <= count <= MOST_CANDIDATES:
        raise BadInput(
            f"a choice must be among 2 to {MOST_CANDIDATES} candidates",
            f"{count}",
            "write choose = {method = {rate = [0.05, 0.1]}}, for example",
        )
    grids = [list(_products(choose.get(section, {}))) for section in OF_CHOICE]
    return [Candidate(dict(zip(OF_CHOICE, parts, strict=True))) for parts in itertools.product(*grids)]


def candidate_run(run: Section, candidate: Candidate) -> dict[str, Any]:
    """The float run that scores a candidate on the held-out rows."""
    task, options = named(run["task"], "task", "digits")
    choose, evaluate = run[CHOOSE], run["evaluate"]
    share = {VALIDATION: choose[VALIDATION]} if VALIDATION in choose else {}
    return {
        **candidate.within(run, CANDIDATE),
        "task": {"name": task, **options, **share},
        "precision": FLOAT,
        "quantize": {},
        "evaluate": {
            **{name: evaluate[name] for name in _SHARED if name in evaluate},
            "split": VALIDATION,
            "shifts": False,
            "confusion": False,
        },
    }


def check_choice_of(run: Section, kind: str, rows: Mapping[str, int]) -> None:
    """Raise unless the task of a candidate has held-out rows, and the score that is to choose."""
    by = run[CHOOSE].get(BY, SCORES_OF[kind][0])
    name, _ = named(run["task"], "task", "digits")
    if by not in SCORES_OF[kind]:
        raise BadInput(
            f"choose: by must be a score of {kind}",
            f"{by!r} on the task '{name}'",
            f"choose by {' or '.join(SCORES_OF[kind])}",
        )
    if not rows.get(VALIDATION):
        raise BadInput(
            "a choice must have held-out rows",
            f"the task '{name}' has none",
            "write choose = {validation = 0.1, …}, or give the task a share of its training rows",
        )


def best_of(scores: Sequence[float | None]) -> int | None:
    """The place of the lowest score, the first of equals; None where none is a finite number."""
    known = ((score, place) for place, score in enumerate(scores) if score is not None)
    return min((pair for pair in known if math.isfinite(pair[0])), default=(0.0, None))[1]


def _products(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))


@dataclass(frozen=True)
class PlannedRun:
    """One row of the results to be; ``reason`` says why there can be no result, known before it starts."""

    keys: Keys
    point: Point
    reason: str | None = None

    def row(self) -> dict[str, Any]:
        """The columns that are known before it runs."""
        place = {f"axis:{path}": value for path, value in self.point.place.items()}
        return {"run": self.keys.scores, "float": self.keys.float, **identity(self.point.run), **place}


def planned_runs(study: Study, tasks: Tasks, store: Store | None = None) -> tuple[list[PlannedRun], int]:
    """The runs of a study, and how many more wait for a choice; those with the same key are one run.

    While the store lacks the score of any candidate, the candidates alone are planned of what waits. What is
    trained together so does not depend on where a study was stopped.
    """
    resolver, points = Resolver(tasks), list(study.points())
    runs: dict[str, PlannedRun] = {}
    choices = Choices(resolver, tasks, store)
    for point in points:
        for candidate in choices.candidates(point):
            runs.setdefault(candidate.keys.scores, candidate)
    waiting = 0
    for point in points:
        if is_open(point.run) and not choices.made:
            waiting += 1
            continue
        run = choices.chosen(point) if is_open(point.run) else PlannedRun(resolver.keys(point.run), point)
        runs.setdefault(run.keys.scores, run)
    return list(runs.values()), waiting


class Choices:
    """The candidates of runs whose hyper-parameters are to be chosen, and the choice by what they scored."""

    def __init__(self, resolver: Resolver, tasks: Tasks, store: Store | None) -> None:
        self._resolver, self._tasks, self._store = resolver, tasks, store
        # runs that differ by their precision alone share their candidates.
        self._known: dict[str, list[tuple[Candidate, PlannedRun]]] = {}
        self._scores: dict[str, float | None] = {}
        self._open: set[str] = set()

    @property
    def made(self) -> bool:
        """Whether every candidate so far was scored, or failed."""
        return not self._open

    def candidates(self, point: Point) -> list[PlannedRun]:
        return [run for _, run in self._candidates(point)] if is_open(point.run) else []

    def chosen(self, point: Point) -> PlannedRun:
        """The run of a point by its best candidate; one that cannot be where no candidate was scored."""
        given = self._candidates(point)
        best = best_of([self._scores[run.keys.scores] for _, run in given])
        if best is None:
            keys = {"candidates": [run.keys.scores for _, run in given], "run": point.run}
            name = digest("scores", keys)
            return PlannedRun(Keys(name, None, None, name), point, _why_none(given, self._store))
        settled = Point(given[best][0].within(point.run, CHOSEN), point.place)
        return PlannedRun(self._resolver.keys(settled.run), settled)

    def _candidates(self, point: Point) -> list[tuple[Candidate, PlannedRun]]:
        run = point.run
        shared = canonical([candidate_run(run, Candidate({name: {} for name in OF_CHOICE})), run[CHOOSE]])
        if shared not in self._known:
            places = point.place.items()
            place = {path: value for path, value in places if path.partition(".")[0] not in _LATER}
            points = [(one, Point(candidate_run(run, one), place)) for one in candidates(run)]
            self._known[shared] = [(one, self._plan(run, at)) for one, at in points]
        return self._known[shared]

    def _plan(self, run: Mapping[str, Any], point: Point) -> PlannedRun:
        for name in (*OF_CHOICE, "task"):
            check_section(name, point.run[name])
        facts = self._tasks.facts(point.run["task"])
        check_choice_of(run, facts.kind, facts.rows)
        planned = PlannedRun(self._resolver.keys(point.run), point)
        self._score(planned, run[CHOOSE].get(BY, SCORES_OF[facts.kind][0]))
        return planned

    def _score(self, planned: PlannedRun, by: str) -> None:
        key, store = planned.keys.scores, self._store
        row = store.scores(key) if store is not None and store.is_done("scores", key) else None
        self._scores[key] = None if row is None else with_numbers(row).get(by)
        failed = store is not None and why_failed(planned, store) is not None
        if row is None and not failed:
            self._open.add(key)


def why_failed(run: PlannedRun, store: Store) -> str | None:
    """The first stage of a run that failed, with its reason."""
    for stage in STAGES:
        key = getattr(run.keys, stage)
        reason = None if key is None else store.why_failed(stage, key)
        if reason is not None:
            return f"{stage}: {reason}"
    return None


def _why_none(given: Sequence[tuple[Candidate, PlannedRun]], store: Store | None) -> str:
    reasons = [] if store is None else [why_failed(run, store) for _, run in given]
    first = next((reason for reason in reasons if reason), "their scores are not finite")
    return f"choose: none of {len(given)} candidates has a score on the held-out rows: {first}"
