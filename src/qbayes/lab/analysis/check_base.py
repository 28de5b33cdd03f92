"""What a numbered check is, what several of them ask of a study, and how they name runs."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from qbayes.lab.analysis.frame import AXIS, Frame, Row
from qbayes.lab.analysis.pairs import Pair, is_float, paired
from qbayes.lab.analysis.run_groups import POINTWISE, free_axes

READ_DETAILS = 400  # runs whose details are read at most: 10,000 rows each take 0.1 GB
_NAMED = 4


@dataclass(frozen=True)
class Check:
    """``found`` says what must not be believed, or, where ``passed``, what was looked at."""

    id: str
    title: str
    passed: bool
    found: str


class Study:
    """A frame and what several checks ask of it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    @property
    def pairs(self) -> list[Pair]:
        return paired(self.frame)

    @cached_property
    def cells(self) -> dict[str, list[Row]]:
        """Rows that differ by seed and fold alone, under their label."""
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.frame.rows:
            found[label(row)].append(row)
        return dict(sorted(found.items()))

    @cached_property
    def with_details(self) -> list[Row]:
        """The first run of each cell, as many as may be read."""
        first = (rows[0] for rows in self.cells.values())
        kept = (row for row in first if self.frame.details(str(row["run"])) is not None)
        return list(itertools.islice(kept, READ_DETAILS))


Finding = tuple[str, list[str], str]  # what must not be believed about …, these, and what was looked at
CHECKS: list[tuple[str, Callable[[Study], Finding]]] = []


def check(title: str) -> Callable[[Callable[[Study], Finding]], Callable[[Study], Finding]]:
    """Put the decorated function behind the checks before it."""

    def put(function: Callable[[Study], Finding]) -> Callable[[Study], Finding]:
        CHECKS.append((title, function))
        return function

    return put


def listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def label(row: Row) -> str:
    """``mnist lenet mcd W8A7`` and what else tells it from others, besides seed and fold."""
    parts = [str(row.get(name)) for name in ("task", "network", "method", "precision")]
    if not is_float(row):
        usual = {"scheme": "default", "training": "trained"}
        parts += [str(row[name]) for name, value in usual.items() if row.get(name) not in (None, value)]
    parts += ["paper recipe"] if row.get("recipe") == "paper" else []
    parts += [f"{row.get('draws')} draws"] if row.get("method") != POINTWISE else []
    parts += [f"{name.removeprefix(AXIS)} {value}" for name, value in free_axes(row)]
    return " ".join(parts)


def one_run(row: Row) -> str:
    fold = f" fold {row['fold']}" if row.get("fold") is not None else ""
    return f"{label(row)}{fold} seed {row.get('seed')}"
