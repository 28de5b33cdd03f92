"""Two stores of results: what moved between them, paired by what the runs are, with intervals.

Runs are the same where task, fold, network, method, recipe, precision, scheme, training, draws, seed and
every axis agree, whatever their keys: another version of the code gives other keys to the same runs.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from qbayes.errors import BadInput, unknown_name
from qbayes.lab.analysis.checks import label, one_run
from qbayes.lab.analysis.frame import AXIS, Frame, Row, natural
from qbayes.lab.analysis.intervals import Estimate, estimate, several_folds
from qbayes.lab.analysis.pairs import score, unit
from qbayes.lab.analysis.run_groups import free_axes
from qbayes.lab.study.store.table import csv_text
from qbayes.metrics.row_errors import row_error
from qbayes.metrics.scores import METRICS

SAME = (
    "task", "fold", "network", "method", "recipe", "precision", "scheme", "training", "backend", "seed",
    "draws",
)  # fmt: skip
READ_DETAILS = 400  # paired runs above which test rows are not resampled: reading them would take minutes
_FIELDS = ("subject", "metric", "before", "after", "difference", "low", "high", "runs", "moved", "better")


@dataclass(frozen=True)
class Change:
    """One score of one condition in both stores; ``difference`` is ``after − before`` over paired runs.

    ``moved``: the 95 % interval excludes 0 (one in twenty does by chance alone), or the difference is not
    finite. ``better`` is None where it did not move, or where neither direction is a merit.
    """

    subject: str
    metric: str
    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    runs: int
    moved: bool
    better: bool | None


@dataclass(frozen=True)
class Comparison:
    """``changes`` by condition and metric; ``only_before`` and ``only_after`` name runs without a partner."""

    before: str
    after: str
    changes: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    paired: int

    @property
    def moved(self) -> tuple[Change, ...]:
        """What moved, the largest change in units of its interval first."""
        return tuple(sorted((one for one in self.changes if one.moved), key=_clearness, reverse=True))

    def to_json(self) -> dict[str, Any]:
        """Plain values; a number that is not finite is "inf", "-inf" or "nan", as JSON has none."""
        return {
            "before": self.before,
            "after": self.after,
            "paired": self.paired,
            "changes": [_plain(one) for one in self.changes],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
        }

    def to_csv(self) -> str:
        return csv_text(_FIELDS, (list(_plain(one).values()) for one in self.changes))


def compare(before: Frame, after: Frame, metrics: tuple[str, ...] = ()) -> Comparison:
    """What moved from ``before`` to ``after``: all scores that both have, or the ``metrics`` named.

    Intervals are over seeds, or folds where there are several; and over test rows, the same in both stores,
    where both kept their details and no more than ``READ_DETAILS`` runs are paired.
    """
    for name in metrics:
        if name not in METRICS:
            raise unknown_name("metric", name, METRICS)
    varied = _axes(before) & _axes(after)
    first, second = _by_identity(before, varied), _by_identity(after, varied)
    shared = [key for key in first if key in second]
    sides = (before, after) if len(shared) <= READ_DETAILS else None
    groups: dict[str, list[tuple[Row, Row]]] = defaultdict(list)
    for key in shared:
        groups[label(first[key])].append((first[key], second[key]))
    changes = tuple(
        _change(subject, metric, rows, sides)
        for subject, rows in sorted(groups.items(), key=lambda item: natural(item[0]))
        for metric in (metrics or METRICS)
        if any(metric in one and metric in two for one, two in rows)
    )
    alone = _only(first, second), _only(second, first)
    return Comparison(before.name, after.name, changes, *alone, paired=len(shared))


def _axes(frame: Frame) -> set[str]:
    return {name for name in frame.columns() if name.startswith(AXIS)}


def _by_identity(frame: Frame, shared_axes: set[str]) -> dict[Hashable, Row]:
    found: dict[Hashable, Row] = {}
    for row in frame.rows:
        key = _identity(row, shared_axes)
        if key in found:
            raise BadInput(
                "the runs of a store must differ in what they are",
                f"{one_run(row)} is twice in '{frame.name}': {found[key]['run']} and {row['run']}",
                "vary what differs on an axis of the study, so that its rows name it",
            )
        found[key] = row
    return found


def _identity(row: Row, shared_axes: set[str]) -> Hashable:
    """What a run is. An axis that one study lacks counts only where no column tells what it sets."""
    shared = ((name, str(row[name])) for name in row if name in shared_axes)
    return tuple(str(row.get(name)) for name in SAME), frozenset(shared) | frozenset(free_axes(row))


def _only(some: Mapping[Hashable, Row], others: Mapping[Hashable, Row]) -> tuple[str, ...]:
    return tuple(sorted((one_run(row) for key, row in some.items() if key not in others), key=natural))


def _change(
    subject: str, metric: str, rows: list[tuple[Row, Row]], frames: tuple[Frame, Frame] | None
) -> Change:
    both = [(one, two) for one, two in rows if metric in one and metric in two]
    before, after = ({unit(pair[0]): score(pair[side], metric) for pair in both} for side in (0, 1))
    se_rows = None
    if frames is not None and not several_folds(before):
        old, new = frames
        sides = ((old.details(str(one["run"])), new.details(str(two["run"]))) for one, two in both)
        se_rows = row_error(sides, metric, relative=False) or None
    found = estimate({which: _apart(before[which], after[which]) for which in before}, se_rows)
    moved = _has_moved(found)
    return Change(
        subject=subject,
        metric=metric,
        before=estimate(before).value,
        after=estimate(after).value,
        difference=found.value,
        low=found.low,
        high=found.high,
        runs=found.runs,
        moved=moved,
        better=_better(metric, found.value) if moved else None,
    )


def _apart(before: float, after: float) -> float:
    """0 also where both are infinite, or both not a number."""
    return 0.0 if before == after or (math.isnan(before) and math.isnan(after)) else after - before


def _has_moved(found: Estimate) -> bool:
    if found.low is None or found.high is None:
        # without end, or the same in every run.
        return not math.isfinite(found.value) or (found.freedom > 0 and found.value != 0)
    return found.low > 0 or found.high < 0


def _better(metric: str, difference: float) -> bool | None:
    direction = METRICS[metric].better
    if direction == "neither" or math.isnan(difference):
        return None
    return (difference < 0) == (direction == "lower")


def _clearness(one: Change) -> float:
    if one.low is None or one.high is None or one.high == one.low:
        return math.inf
    return abs(one.difference) / (one.high - one.low)


def _plain(one: Change) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in _FIELDS}
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
