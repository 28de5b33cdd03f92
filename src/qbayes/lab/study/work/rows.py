"""The rows of a study's results: appended as runs end, complete whatever happened before.

At the end each row takes standard errors over the test rows: what was found for single test rows stays in the
store, while a row of results travels. A float run has the errors of its scores, any other run those of the
differences to its float run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from safetensors.numpy import load

from qbayes.errors import RunFailed
from qbayes.lab.study.plan.plan import Plan
from qbayes.lab.study.plan.runs import why_failed
from qbayes.lab.study.spec.sections import FLOAT
from qbayes.lab.study.store.store import ROWS, Row, Store
from qbayes.lab.study.store.table import CANDIDATE, float_key
from qbayes.metrics.row_errors import ROW_ERROR, Details, standard_errors


class Table:
    """What the store has of each run of a plan, as rows."""

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
        found, own = self.store.scores(key), self.runs[key].row()
        if found is None:
            raise RunFailed(
                "the scores of a run must be readable",
                f"{self.store.stage('scores', key)} was damaged just now",
                "look at the disk, and run the same command again: they are made anew",
            )
        # what a run is, its file does not decide; which backend "auto" took, only the file knows.
        row = {**own, **found, **own, "backend": found.get("backend", own["backend"]), "status": "done"}
        before = self._rows.get(key, {})
        errors = {name: value for name, value in before.items() if name.startswith(ROW_ERROR)}
        # the errors of the same scores stay.
        self._add(row | errors if before == row | errors else row)

    def add_failed(self, key: str, reason: str) -> None:
        self._add({**self.runs[key].row(), "status": "failed", "reason": reason})

    def add_failures(self, plan: Plan) -> None:
        """The runs that a stage before them keeps from being done."""
        for run in plan.runs:
            reason = plan.why_failed(run)
            if reason is not None and run.keys.scores not in self._rows:
                self.add_failed(run.keys.scores, reason)

    def add(self, keys: tuple[str, ...]) -> None:
        """The runs of a job that ended, as the store has them."""
        for key in keys:
            if self.store.is_done("scores", key):
                self.add_done(key)
                continue
            reason = why_failed(self.runs[key], self.store)
            if reason is not None:
                self.add_failed(key, reason)

    def _add(self, row: Row) -> None:
        if self._rows.get(row["run"]) != row:
            self.store.append(row)
            self._rows[row["run"]] = row
            self.last = row

    def finish(self) -> None:
        for row, errors in list(self._missing_errors()):
            self._add(row | {ROW_ERROR + name: value for name, value in errors.items()})
        self.store.write_tables(set(self.runs))

    def _missing_errors(self) -> Iterator[tuple[Row, Mapping[str, float]]]:
        """The rows without errors whose test rows are here, and the errors."""
        # a candidate may have the network of the run that it was chosen for, and was scored on other rows.
        done = [row for row in self._rows.values() if row["status"] == "done" and CANDIDATE not in row]
        floats = {float_key(row): row for row in done if row["precision"] == FLOAT}
        for row in done:
            if any(name.startswith(ROW_ERROR) for name in row):
                continue
            reference = floats.get(float_key(row))
            details = self._details(row)
            if reference is None or details is None:
                continue
            before = None if row["precision"] == FLOAT else self._details(reference)
            if row["precision"] == FLOAT or before is not None:
                yield row, standard_errors(details, before)

    def _details(self, row: Mapping[str, Any]) -> Details | None:
        """What was found for each test row of a run, where the store has it."""
        path = self.store.stage("scores", str(row["run"])) / ROWS
        return load(path.read_bytes()) if path.is_file() else None
