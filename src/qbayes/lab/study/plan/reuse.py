"""What the stores of other studies lend: float posteriors and scores with the same keys.

A key is the hash of all that a stage depends on, so that what lies under it elsewhere is what would be made
here. Two studies that start from the same networks train them once; a study that went on in pieces, on
machines that keep nothing, needs of the earlier pieces no more than ``study.json`` and ``results.jsonl``.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qbayes.errors import BadInput
from qbayes.lab.study.plan.plan import Plan
from qbayes.lab.study.store.keys import canonical
from qbayes.lab.study.store.store import CHECKPOINT, DONE, ROW, Store
from qbayes.lab.study.store.table import AXIS
from qbayes.posterior.storage.save import HEADER, WEIGHTS, write_atomically

Row = Mapping[str, Any]
KEYS = ("run", "float", "status")


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
            store = _opened(source)
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


def _opened(source: Path) -> Store:
    store = Store(source)
    if not source.is_dir() or store.header() is None:
        raise BadInput(
            "results are lent by the folder of a study, with its study.json and results.jsonl",
            f"{source} has no study.json",
            "give the folder that 'qbayes study run --store' wrote",
        )
    return store
