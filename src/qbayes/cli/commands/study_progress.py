"""How a study looks while it runs: a live table for people at a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from qbayes.cli.console import note

if TYPE_CHECKING:
    from qbayes.lab.study.leader import Progress

Watch = Callable[["Progress"], None]
_BETWEEN_LINES = 10.0  # seconds, where no terminal looks on
_SHOWN_SCORES = ("error", "rmse", "nll", "ece")


@contextlib.contextmanager
def watching(name: str, *, enabled: bool) -> Iterator[Watch | None]:
    """What a run may be told to call with its progress."""
    if not enabled:
        yield None
    elif sys.stderr.isatty():
        with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
            yield lambda progress: live.update(view(name, progress))
    else:
        yield _Lines(name)


class _Lines:
    """A line when a run ends, but not more than one in ten seconds."""

    def __init__(self, name: str) -> None:
        self._name, self._said_at = name, 0.0

    def __call__(self, progress: "Progress") -> None:
        now = time.monotonic()
        ended = progress.jobs_done == progress.jobs
        if now - self._said_at < _BETWEEN_LINES and not ended:
            return
        self._said_at = now
        note(f"{self._name}: {summary(progress)}")


def summary(progress: "Progress") -> str:
    """One line: runs, failures, time so far and left."""
    timed, left = progress.jobs_done and progress.seconds, seconds_left(progress)
    parts = (
        f"{progress.runs_done:,} of {progress.runs:,} runs",
        f"{progress.runs_failed} failed" if progress.runs_failed else "",
        f"{60 * progress.runs_done / progress.seconds:.3g} a minute" if timed else "",
        f"{_clock(progress.seconds)} so far",
        "" if left is None else f"about {_clock(left)} left",
    )
    return ", ".join(filter(None, parts))


def seconds_left(progress: "Progress") -> float | None:
    """By the rate of the jobs so far; None before the first has ended."""
    if not progress.jobs_done:
        return None
    return progress.seconds / progress.jobs_done * (progress.jobs - progress.jobs_done)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def view(name: str, progress: "Progress") -> RenderableType:
    """The live table: a bar, what the workers do, and the scores that came last."""
    ended = progress.runs_done + progress.runs_failed
    head = Table.grid(padding=(0, 1))
    head.add_row(name, ProgressBar(total=max(1, progress.runs), completed=ended, width=40), summary(progress))
    working = Table.grid(padding=(0, 1))
    for job, text in list(progress.working.items())[:8]:
        working.add_row(" ", "▸", text or f"{job.partition(':')[0]} …")
    rows: list[RenderableType] = [head, working]
    if progress.last is not None:
        rows.append(_last(progress.last))
    return Group(*rows)


def _last(row: dict[str, object]) -> str:
    from qbayes.metrics import metric

    scores = [
        f"{metric(name).label} {metric(name).show(value)}"
        for name in _SHOWN_SCORES
        if isinstance(value := row.get(name), float)
    ]
    found = ", ".join(scores) if row["status"] == "done" else f"failed: {row.get('reason')}"
    return f"  last: {row['method']} on {row['task']}, {row['precision']}, seed {row['seed']}: {found}"
