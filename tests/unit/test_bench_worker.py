"""Engines in processes of their own: what is timed, what happens when one ends, and that none is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import needs
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.errors import RunFailed
from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.measure import FLOAT
from qbayes.lab.bench.speed import Settings, measure
from qbayes.lab.bench.subjects import make_subject
from qbayes.lab.bench.worker import Failed, Job, Worker, open_job
from qbayes.quant.precision import Precision

W8A7 = Precision(weight=8, activation=7)
linux_only = needs.unless(sys.platform == "linux", needs.LINUX)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A pass of the mlp on our engine, with its file."""
    ENGINES["onednn"].write(make_subject("mlp", "pointwise", W8A7), tmp_path, 1)
    return Job("onednn", 1, "wall", tmp_path, "mlp", batch=4, draws=1)


def state(pid: int) -> str:
    """One letter: R runs, S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def soon(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize("name", ["loop", "onednn"])
def test_what_is_timed_is_the_engines_answer_to_the_rows_of_the_job(name: str, tmp_path: Path) -> None:
    subject = make_subject("mlp", "sghmc", W8A7, members=3)
    ENGINES[name].write(subject, tmp_path, 3)
    run, memory = open_job(Job(name, 1, "wall", tmp_path, "mlp", batch=4, draws=3))
    wanted = ENGINES[name].open(tmp_path)(subject.network.rows(4), 3)
    found = run()
    assert isinstance(found, torch.Tensor)
    assert found.shape == (3, 4, 1)
    assert torch.equal(found, wanted)
    assert memory is None or memory.peak > 0


def test_a_turn_gives_the_times_of_its_calls(job: Job) -> None:
    with Worker(job) as worker:
        memory = worker.opened()
        assert worker.failed is None
        found = worker.times(0.02)
        assert len(found) > 1
        assert all(seconds > 0 for seconds in found)
        assert len(worker.times(0.0)) == 1
    if sys.platform == "linux":
        assert memory is not None
        assert 0 < memory.imported <= memory.loaded
        assert memory.own > 0


def test_the_products_of_the_roofline_take_turns_too() -> None:
    with Worker(Job(FLOAT, 1, "cpu")) as worker:
        assert worker.opened() is None
        assert worker.failed is None
        assert worker.times(0.0)[0] > 0


@linux_only
def test_an_engine_that_is_not_asked_stands_still_and_is_gone_afterwards(job: Job) -> None:
    with Worker(job) as worker:
        worker.opened()
        assert soon(lambda: state(worker.pid) == "T")
        worker.times(0.0)
        assert soon(lambda: state(worker.pid) == "T")
    assert not Path(f"/proc/{worker.pid}").exists()


@linux_only
def test_a_process_that_ends_says_so(job: Job) -> None:
    with Worker(job) as worker:
        worker.opened()
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.times(0.0) == ()
        assert worker.failed is not None
        assert worker.failed.why == "its process ended with code -9"
        assert worker.times(0.0) == ()


@linux_only
def test_an_engine_whose_process_ends_is_a_row_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, opened, asked = make_subject("mlp", "pointwise", W8A7), Worker.opened, Worker.times

    def ended(self: Worker) -> object:
        if self.job.name == "loop":
            os.kill(self.pid, signal.SIGKILL)
        return opened(self)

    def ended_later(self: Worker, seconds: float) -> object:
        if self.job.name == "predict" and self.failed is None:
            os.kill(self.pid, signal.SIGKILL)
        return asked(self, seconds)

    monkeypatch.setattr(Worker, "opened", ended)
    monkeypatch.setattr(Worker, "times", ended_later)
    found = measure("mlp", subject, subject, 2, Settings(["loop", "predict", "onednn"], draws=1, seconds=0.0))
    assert [one.why for one in found.rows] == ["its process ended with code -9"] * 2 + [""]
    assert [one.times is None for one in found.rows] == [True, True, False]


def test_what_an_engine_of_others_cannot_open_is_a_row_and_ours_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, settings = make_subject("mlp", "pointwise", W8A7), Settings(["loop"], draws=1, seconds=0.0)
    for name in ("loop", "onednn"):
        monkeypatch.setattr(type(ENGINES[name]), "write", lambda self, subject, folder, draws: [])
    found = measure("mlp", subject, subject, 2, settings)
    assert found.rows[0].times is None
    assert found.rows[0].why

    def raised(self: Worker) -> None:
        self.failed = Failed("RuntimeError: no such kernel", raised=True)

    monkeypatch.setattr(Worker, "opened", raised)
    with pytest.raises(RunFailed, match="onednn: RuntimeError: no such kernel"):
        measure("mlp", subject, subject, 2, replace(settings, engines=["onednn"]))


@linux_only
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_benchmark_that_is_ended_leaves_no_process_behind(sent: signal.Signals, tmp_path: Path) -> None:
    words = ["bench", "--networks", "mlp", "--methods", "mcd", "--engines", "loop,onednn", "--seconds", "600"]
    # a shell that starts it in the background would have it ignore Ctrl-C.
    start = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "from qbayes.cli import main; sys.exit(main(sys.argv[1:]))"
    with (tmp_path / "told").open("w") as told:
        command = [sys.executable, "-c", start, *words]
        process = subprocess.Popen(command, stdout=told, stderr=told, start_new_session=True)

    def left() -> list[str]:
        """The states of all processes of its session."""
        found: list[str] = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                after = entry.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if after[3] == str(process.pid) and after[0] != "Z":
                found.append(after[0])
        return found

    try:
        assert soon(lambda: left().count("T") >= 2), (tmp_path / "told").read_text()
        if sent == signal.SIGINT:
            os.killpg(process.pid, sent)  # a terminal sends it to all
        else:
            process.kill()
        process.wait(60)
        assert soon(lambda: left() == [], 30.0)
    finally:
        process.kill()
        process.wait()
