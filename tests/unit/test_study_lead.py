"""Who leads a study: deaths of workers are a job's fault or the machine's, and time can be up."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qbayes.errors import RunFailed
from qbayes.lab.study import run as leading
from qbayes.lab.study.executors.base import Conditions, Event, Executor
from qbayes.lab.study.run import Outcome, run_study
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.store import Store

CONTENT: Mapping[str, Any] = {
    "study": {"name": "lead", "question": "?"},
    "run": {
        "task": "digits",
        "network": {"name": "mlp", "hidden": [4]},
        "method": "pointwise",
        "training": {"epochs": 1},
        "quantize": {"epochs": 0},
        "evaluate": {"draws": 1, "shifts": False, "confusion": False},
    },
    "axes": {"seed": [0, 1, 2, 3, 4, 5]},
}


class Mortal(Executor):
    """Its workers die of the jobs that ``kills`` names, or of all, and do the others in their own way."""

    kills: tuple[str, ...] | None = ()
    # jobs that find what they start from damaged, so many times; and what the first job has to say.
    finds: ClassVar[dict[str, int]] = {}
    damage = "float 0123"
    given: list[str]

    def __init__(self, conditions: Conditions, workers: int | None = None, threads: int = 1) -> None:
        self._events: list[Event] = []
        type(self).given = []

    @property
    def slots(self) -> int:
        return 2

    def submit(self, job: str, payload: Mapping[str, Any]) -> None:
        self.given.append(job)
        dies = self.kills is None or job in self.kills
        if type(self).finds.get(job, 0):
            type(self).finds[job] -= 1
            self._events.append(Event(job, "note", "by the way"))
            self._events.append(Event(job, "damaged", f"{self.damage}: it was cut: short"))
            return
        self._events.append(Event(job, "lost" if dies else "done", "its process ended with code -9"))

    def wait(self, seconds: float) -> list[Event]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        self._events = []


def led(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Outcome:
    monkeypatch.setattr(leading, "EXECUTORS", {"mortal": Mortal})
    study = Study.from_content(CONTENT)
    return run_study(study, tmp_path / "store", device="cpu", executor="mortal", stack=False, **more)


def test_where_every_worker_dies_the_study_stops_and_blames_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mortal, "kills", None)
    with pytest.raises(RunFailed, match="workers must live") as error:
        led(tmp_path, monkeypatch)
    assert "10 died one after the other" in error.value.got
    assert max(map(Mortal.given.count, set(Mortal.given))) == 2
    assert not list((tmp_path / "store").glob("*/*/failed.json"))
    assert not Store(tmp_path / "store").rows()


def test_a_job_that_kills_three_workers_is_at_fault_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led(tmp_path / "first", monkeypatch)
    one, *others = dict.fromkeys(Mortal.given)
    monkeypatch.setattr(Mortal, "kills", (one,))
    outcome = led(tmp_path, monkeypatch)
    assert Mortal.given.count(one) == 3
    assert {Mortal.given.count(other) for other in others} == {1}
    assert outcome.failed == 1
    assert all("its worker died 3 times" in reason for reason in outcome.reasons.values())


def test_time_that_is_up_leaves_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 10_000, 40))
    monkeypatch.setattr(leading.time, "monotonic", lambda: float(next(times)))
    outcome = led(tmp_path, monkeypatch, minutes=1)
    assert (outcome.planned, outcome.failed) == (6, 0)
    assert outcome.left == 6 - outcome.done > 0
    assert len(Mortal.given) <= 2


def test_a_job_that_finds_damage_is_planned_again_and_its_users_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was set back is in no job of before: the study is planned anew, once all others have ended."""
    led(tmp_path / "first", monkeypatch)
    one = Mortal.given[0]
    users = [job for job in dict.fromkeys(Mortal.given) if job != one]
    monkeypatch.setattr(Mortal, "finds", {one: 2})
    outcome = led(tmp_path, monkeypatch)
    assert Mortal.given.count(one) == 3
    assert set(Mortal.given) == {one, *users}
    assert [note for note in outcome.notes if "cut" in note] == [
        "float 0123: it was cut: short; it was made again",
    ] * 2
    assert outcome.notes.count("by the way") == 2
    assert outcome.failed == 0


def test_what_is_damaged_again_and_again_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led(tmp_path / "first", monkeypatch)
    one = Mortal.given[0]
    key = one.partition(":")[2]
    monkeypatch.setattr(Mortal, "finds", {one: 100})
    monkeypatch.setattr(Mortal, "damage", f"float {key}")
    outcome = led(tmp_path, monkeypatch)
    assert Mortal.given.count(one) == 3
    assert outcome.failed == 1
    (reason,) = outcome.reasons.values()
    assert "damaged 3 times: it was cut" in reason


def test_time_that_is_up_plans_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    led(tmp_path / "first", monkeypatch)
    monkeypatch.setattr(Mortal, "finds", {Mortal.given[0]: 1})
    times = iter(range(0, 10_000, 40))
    monkeypatch.setattr(leading.time, "monotonic", lambda: float(next(times)))
    outcome = led(tmp_path, monkeypatch, minutes=1)
    assert outcome.left > 0
    assert len(Mortal.given) <= 2
