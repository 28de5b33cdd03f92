"""The rows of a study's results: appended as runs end, complete whatever happened before."""

from qbayes.errors import RunFailed
from qbayes.study.plan import Plan
from qbayes.study.stages import STAGES
from qbayes.study.store import Row, Store


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
        # what a run is, its file does not decide.
        self._add({**own, **found, **own, "status": "done"})

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
