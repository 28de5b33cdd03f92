"""What people see while a study runs: counts, rates, time left and the last scores."""

import io

import pytest
from rich.console import Console

from qbayes.cli.commands import study_progress
from qbayes.cli.commands.study import time_text
from qbayes.lab.study.leader import Progress

ROW = {
    "method": "mcd", "task": "digits", "precision": "W4A4", "seed": 2, "status": "done",
    "error": 0.025, "nll": 0.0801, "ece": 0.011,
}  # fmt: skip


def progress(**changes: object) -> Progress:
    base = {
        "runs_done": 30, "runs_failed": 2, "runs": 72, "jobs_done": 20, "jobs": 60,
        "working": {"answers:abc": "bbb on digits, W3A3, seed 1", "float:def": ""},
        "seconds": 120.0, "last": ROW,
    }  # fmt: skip
    return Progress(**{**base, **changes})  # type: ignore[arg-type]


def drawn(of: Progress) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(study_progress.view("digits", of))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_says_how_far_how_fast_and_what_came_last() -> None:
    text = drawn(progress())
    for words in (
        "30 of 72 runs", "2 failed", "15 a minute", "2:00 so far", "about 4:00 left", "━",
        "bbb on digits, W3A3, seed 1", "float …", "mcd on digits, W4A4, seed 2", "error 2.50%", "NLL 0.0801",
    ):  # fmt: skip
        assert words in text, words


def test_a_failed_run_is_shown_with_its_reason() -> None:
    text = drawn(progress(last={**ROW, "status": "failed", "reason": "float: the loss is not finite"}))
    assert "failed: float: the loss is not finite" in text


def test_before_the_first_job_ends_no_time_is_promised() -> None:
    text = study_progress.summary(progress(jobs_done=0, runs_done=0, runs_failed=0))
    assert "left" not in text
    assert "minute" not in text


def test_lines_come_at_intervals_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(study_progress.time, "monotonic", lambda: clock[0])
    with study_progress.watching("digits", enabled=True) as watch:
        assert watch is not None
        for now, done in ((100.0, 1), (101.0, 2), (111.0, 3), (112.0, 60)):
            clock[0] = now
            watch(progress(jobs_done=done))
    assert capsys.readouterr().err.count("digits: 30 of 72 runs") == 3


def test_nothing_is_said_where_nobody_asked() -> None:
    with study_progress.watching("digits", enabled=False) as watch:
        assert watch is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.2, "4 s"), (89.0, "89 s"), (150.0, "2 min"), (5399.0, "1 h 30 min"), (12_000.0, "3 h 20 min")],
)
def test_times_are_shown_as_people_say_them(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
