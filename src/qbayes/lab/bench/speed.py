"""Measures the cells: every engine that can run a network by a method, in turn, each in its own process.

In the cells of other methods the engines of int8 also run the pointwise network, one pass: what a draw is
measured against. Beside them runs the large matrix product of ``roofline``. A pointwise posterior has one
draw. Where all draws would take too long, fewer are timed, and the cell says how many.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from qbayes.errors import QbayesError, RunFailed
from qbayes.integer.backends.onednn.primitives import Shape
from qbayes.integer.backends.onednn.trial import saturates
from qbayes.integer.ops import OPS
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.engines.posteriors import PlainLoop
from qbayes.lab.bench.measure import (
    Memory,
    Times,
    affordable_draws,
    interleaved,
    operations,
    roofline,
    roofline_names,
    stopwatch,
)
from qbayes.lab.bench.result import Cell, Row
from qbayes.lab.bench.subjects import Subject, make_subject
from qbayes.lab.bench.worker import EXPECTED, Job, Worker, in_one_line
from qbayes.provenance import processor, versions
from qbayes.quant.precision import Precision

# Seconds that an engine is called in its turn: short calls find the caches as they left them.
_BURST = 0.03


@dataclass(frozen=True)
class Settings:
    """What is measured in every cell: engines, draws, seconds, and by which clock."""

    engines: Sequence[str]
    draws: int
    seconds: float
    clock: str = "wall"


@dataclass(frozen=True)
class _Ready:
    """An engine that has answered once in its process."""

    method: str
    file_bytes: int | None
    memory: Memory | None
    worker: Worker

    @property
    def name(self) -> str:
        return f"{self.worker.job.name}/{self.method}"


def measure_all(
    networks: Sequence[str],
    methods: Sequence[str],
    batches: Sequence[int],
    precision: Precision,
    settings: Settings,
) -> Iterator[Cell]:
    """The cells one after the other; each network is built once a method and let go before the next."""
    for network in networks:
        pointwise = make_subject(network, "pointwise", precision)
        for method in methods:
            is_pointwise, members = method == "pointwise", settings.draws
            subject = pointwise if is_pointwise else make_subject(network, method, precision, members=members)
            for batch in batches:
                yield measure(network, subject, pointwise, batch, settings)


def measure(network: str, subject: Subject, pointwise: Subject, batch: int, settings: Settings) -> Cell:
    """Time one cell; ``pointwise`` is the same network without randomness."""
    x, method = subject.network.rows(batch), subject.method
    wanted = 1 if method == "pointwise" else settings.draws
    draws = _draws(subject, x, wanted, settings)
    threads = torch.get_num_threads()
    asked_of = [(name, subject, draws) for name in settings.engines]
    if method != "pointwise":
        asked_of += [(name, pointwise, 1) for name in settings.engines if ENGINES[name].yardstick]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        jobs = [
            (Job(name, threads, settings.clock, Path(folder) / f"{at}", network, batch, count), each)
            for at, (name, each, count) in enumerate(asked_of)
        ]
        found = [_ready(stack, job, each) for job, each in jobs]
        workers = {one.name: one.worker for one in found if isinstance(one, _Ready)}
        for name in roofline_names():
            workers[name] = stack.enter_context(Worker(Job(name, threads, settings.clock)))
            workers[name].opened()
        turns = {name: partial(worker.times, _BURST) for name, worker in workers.items()}
        times = interleaved(turns, settings.seconds)
        rows = [_row(one, times) if isinstance(one, _Ready) else one for one in found]
    return Cell(
        network=network,
        method=method,
        precision=_label(subject),
        batch=batch,
        draws=draws,
        draws_asked=wanted,
        members=min(len(subject.program.members), draws),
        rows=rows,
        operations=operations(pointwise.program),
        roofline=roofline(times),
        kernels=_kernels(load(subject.program, "onednn")),
    )


def _draws(subject: Subject, x: Tensor, wanted: int, settings: Settings) -> int:
    """As many draws that one call of the slowest kind takes no more than a third of the cell's time."""
    in_float = any(ENGINES[name].numbers == "float" for name in settings.engines)
    slowest = PlainLoop(subject.posterior) if in_float else load(subject.program, "auto").predict
    slowest(x, 1)
    return affordable_draws(wanted, stopwatch(lambda: slowest(x, 1)), settings.seconds / 3)


def _ready(stack: ExitStack, job: Job, subject: Subject) -> _Ready | Row:
    """The engine with its files written, opened and tried once in a process of its own; or why not."""
    engine, folder = ENGINES[job.name], job.folder
    assert folder is not None
    why = engine.why_missing() or engine.why_not(subject.method)
    if why is not None:
        return Row(job.name, subject.method, why=why)
    folder.mkdir()
    # what others raise when they cannot run a network is anything; ours must not fail.
    expected = (QbayesError,) if engine.ours else EXPECTED
    try:
        files = engine.write(subject, folder, job.draws)
    except expected as error:
        return Row(job.name, subject.method, why=in_one_line(error))
    worker = stack.enter_context(Worker(job))
    memory = worker.opened()
    if worker.failed is not None:
        if engine.ours and worker.failed.raised:
            got = f"{job.name}: {worker.failed.why}"
            raise RunFailed("an engine of ours must run what it wrote", got, "report it")
        return Row(job.name, subject.method, why=worker.failed.why)
    size = sum(path.stat().st_size for path in files) if engine.deploys else None
    return _Ready(subject.method, size, memory, worker)


def _row(ready: _Ready, times: dict[str, list[float]]) -> Row:
    job, failed = ready.worker.job, ready.worker.failed
    if failed is not None:
        return Row(job.name, ready.method, why=failed.why)
    timed = Times(times[ready.name], job.draws * job.batch)
    return Row(job.name, ready.method, timed, "", ready.file_bytes, ready.memory)


def _label(subject: Subject) -> str:
    precision = subject.program.precision
    return f"W{precision['weight']}A{precision['activation']}"


def _kernels(deployed: ProgramPosterior) -> dict[str, int]:
    """How many ops run in which way; ops that only move codes about are exact in any way."""
    rows = [row for row in deployed.backend.report() if not OPS[row.kind].moves_codes]
    return dict(Counter(f"{row.kind} {row.how}" if row.why else row.how for row in rows))


def machine() -> dict[str, object]:
    """What the numbers depend on."""
    probe = Shape(64, 64, (3, 3), (8, 8), (1, 1), (1, 1), (1, 1))
    return {
        **versions(),
        "processor": processor(),
        "vector_unit": torch.backends.cpu.get_cpu_capability(),
        "saturates": saturates(probe),
        "threads": torch.get_num_threads(),
    }
