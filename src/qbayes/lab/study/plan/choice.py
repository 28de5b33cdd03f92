"""Hyper-parameters that held-out rows choose: the candidates of a run, and the one that is kept.

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
from qbayes.lab.study.spec.choose_section import BY, CHOOSE, MOST_CANDIDATES, OF_CHOICE, SCORES_OF, VALIDATION
from qbayes.lab.study.spec.sections import FLOAT, named
from qbayes.lab.study.store.table import CANDIDATE, CHOSEN

Section = Mapping[str, Any]
_SHARED = ("draws", "seed", "batch_size")


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
    finite = [
        (score, place) for place, score in enumerate(scores) if score is not None and math.isfinite(score)
    ]
    return min(finite)[1] if finite else None


def _products(lists: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))
