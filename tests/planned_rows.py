"""Rows that a shipped study would write, with scores that a test chooses: a rehearsal before it is run.

What a run is comes from the study's own file, so that columns, places on axes and schemes are the true ones.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from qbayes.lab.study.plan.result_row import identity
from qbayes.lab.study.plan.runs import candidate_run, candidates, is_open
from qbayes.lab.study.spec.grid import Point
from qbayes.lab.study.spec.sections import named
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.table import CHOSEN

STUDIES = Path(__file__).parents[1] / "studies"
Scores = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def planned_rows(name: str, splits: Sequence[int], scores: Scores) -> list[dict[str, Any]]:
    """The rows of some splits of a study; a choice falls on the first candidate."""
    points = _points(name, splits)
    made = [_row(_settled(point), scores) for point in points]
    return list({row["run"]: row for row in made}.values())


def candidate_rows(name: str, splits: Sequence[int], scores: Scores) -> list[dict[str, Any]]:
    """The rows of the candidates of these splits."""
    made = [
        _row(Point(candidate_run(point.run, one), {}), scores)
        for point in _points(name, splits)
        if is_open(point.run)
        for one in candidates(point.run)
    ]
    return list({row["run"]: row for row in made}.values())


def _points(name: str, splits: Sequence[int]) -> Iterator[Point]:
    for point in Study.read(STUDIES / f"{name}.toml").points():
        if named(point.run["task"], "task", "digits")[1].get("split") in splits:
            yield point


def _settled(point: Point) -> Point:
    if not is_open(point.run):
        return point
    return Point(candidates(point.run)[0].within(point.run, CHOSEN), point.place)


def _row(point: Point, scores: Scores) -> dict[str, Any]:
    place = {f"axis:{path}": value for path, value in point.place.items()}
    known = {**identity(point.run), **place}
    trained = [known[name] for name in ("task", "fold", "network", "method", "seed")]
    row = {
        "run": _key(json.dumps(known, sort_keys=True)),
        "float": _key(json.dumps([*trained, known.get("candidate")])),
        **known,
        "status": "done",
        "classes": None,
    }
    return {**row, **scores(row)}


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
