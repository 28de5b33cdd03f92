"""What becomes of a stage that fails: its own fault is recorded, a lost device is another worker's turn."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from qbayes.errors import BadInput, Interrupted
from qbayes.lab.study.store.store import CHECKPOINT, StageDamaged, Store
from qbayes.lab.study.work.worker_context import PROGRAM, DeviceLost, Spent, Workplace
from qbayes.posterior.storage.save import HEADER
from qbayes.training.checkpoint import BadCheckpoint

KEY = "0" * 16


def raising(error: Exception) -> Any:
    def do(folder: Path) -> NoReturn:
        raise error

    return do


@pytest.mark.parametrize("error", [RuntimeError("sizes do not match"), ValueError("CUDA error, in words")])
def test_the_fault_of_a_run_is_recorded(error: Exception, tmp_path: Path) -> None:
    at = Workplace(Store(tmp_path))
    assert not at.attempt("float", KEY, raising(error))
    assert str(error) in (at.store.why_failed("float", KEY) or "")


FAULT = "CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(
    "fault",
    [RuntimeError(FAULT), BadInput("the device must exist on this machine", f"cuda: {FAULT}", "use auto")],
)
def test_a_lost_device_fails_no_run(fault: Exception, tmp_path: Path) -> None:
    """After such a fault every call of the process fails: the next runs would be blamed for it too."""
    at = Workplace(Store(tmp_path))
    with pytest.raises(DeviceLost):
        at.attempt("float", KEY, raising(fault))
    with pytest.raises(DeviceLost):
        at.attempt_stack("float", "stack", [(KEY, RUN)], raising(fault))
    assert at.store.why_failed("float", KEY) is None
    assert not at.store.is_done("float", KEY)


def test_a_checkpoint_of_another_run_is_left_once(tmp_path: Path) -> None:
    """What it says is told; the second try has none, and what it raises is the run's own fault."""
    at, notes = Workplace(Store(tmp_path)), list[str]()
    at.note = notes.append

    def do(folder: Path) -> Mapping[str, Any]:
        if (folder / CHECKPOINT).exists():
            raise BadCheckpoint("a run can be resumed only as it was", "another run's", "start again")
        return {"made": True}

    checkpoint = at.store.begin("float", KEY) / CHECKPOINT
    checkpoint.mkdir()
    (checkpoint / "chain-0000.checkpoint").write_bytes(b"of another run")
    assert at.attempt("float", KEY, do)
    assert at.store.record("float", KEY)["made"]
    (note,) = notes
    assert "another run's" in note
    assert "from the beginning" in note


@pytest.mark.parametrize("stage", ["float", "quantised", "program"])
def test_a_stage_that_is_damaged_is_set_back_and_told(stage: str, tmp_path: Path) -> None:
    at = Workplace(Store(tmp_path))
    folder = at.store.begin(stage, KEY)
    (folder / HEADER).write_bytes(b"{")
    (folder / PROGRAM).write_bytes(b"x" * 100)
    at.store.finish(stage, KEY, {})
    with pytest.raises(StageDamaged, match=f"^{stage} {KEY}: ") as caught:
        at.program(KEY) if stage == "program" else at.posterior(stage, KEY, RUN)
    assert (caught.value.stage, caught.value.key) == (stage, KEY)
    at.store.set_back(stage, KEY)
    assert not at.store.is_done(stage, KEY)
    assert (folder / HEADER).exists(), "until it is made again"
    # a stage that is set back is no failure, wherever it comes to light.
    with pytest.raises(StageDamaged):
        at.attempt("scores", KEY, raising(caught.value))
    assert at.store.why_failed("scores", KEY) is None


RUN: Mapping[str, Any] = {"network": "mlp", "method": "mcd", "task": "digits", "precision": "float"}


def test_a_stage_counts_the_seconds_of_attempts_that_were_stopped(tmp_path: Path) -> None:
    at = Workplace(Store(tmp_path))

    def work(folder: Path) -> Mapping[str, Any]:
        begun = time.process_time()
        while time.process_time() - begun < 0.1:
            pass
        return {}

    def stopped(folder: Path) -> NoReturn:
        work(folder)
        raise Interrupted("a run must go on", "a stop", "run it again")

    with pytest.raises(Interrupted):
        at.attempt("float", KEY, stopped)
    kept = Spent(at.store.stage("float", KEY) / CHECKPOINT).so_far()
    assert kept["core_seconds"] >= 0.1
    assert at.attempt("float", KEY, work)
    record = at.store.record("float", KEY)
    assert record["core_seconds"] >= 0.1 + kept["core_seconds"] - 0.01
    assert record["seconds"] >= 0.2
    assert not (at.store.stage("float", KEY) / CHECKPOINT).exists()


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"seconds": "x", "core_seconds": -1}', b"{"])
def test_what_cannot_be_read_of_earlier_attempts_counts_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "spent.json").write_bytes(content)
    assert all(0 <= value < 1 for value in Spent(tmp_path).so_far().values())
