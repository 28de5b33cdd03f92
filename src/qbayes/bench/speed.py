"""Measures the cells: every engine that can run a network by a method, in turn in one run.

In the cells of other methods the engines of int8 also run the pointwise network, one pass: what a draw is
measured against. Beside them runs the large matrix product of ``roofline``. A pointwise posterior has one
draw. Where all draws would take too long, fewer are timed, and the cell says how many.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qbayes.bench.cell import Cell, Row
from qbayes.bench.engines.base import ENGINES, Answer, Engine
from qbayes.bench.memory import Memory, measure_memory
from qbayes.bench.plain import PlainLoop
from qbayes.bench.roofline import operations, roofline, roofline_ways
from qbayes.bench.subjects import Subject, make_subject
from qbayes.bench.timing import CLOCKS, Run, Times, Way, affordable_draws, interleaved, stopwatch
from qbayes.errors import QbayesError
from qbayes.integer.int8_ops import Shape, saturates
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.provenance import processor, versions
from qbayes.quant.precision import Precision

# Seconds that a way is called in its turn: longer than threads spin for work.
_BURST = 0.03


@dataclass(frozen=True)
class Settings:
    """What is measured in every cell: engines, draws, seconds, whether memory too, and by which clock."""

    engines: Sequence[str]
    draws: int
    seconds: float
    memory: bool = False
    clock: str = "wall"


@dataclass(frozen=True)
class _Ready:
    """An engine that has opened what it wrote, with the answer to time."""

    engine: str
    method: str
    draws: int
    folder: Path
    file_bytes: int | None
    answer: Answer

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.method}"


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
            subject = pointwise
            if method != "pointwise":
                subject = make_subject(network, method, precision, members=settings.draws)
            for batch in batches:
                yield measure(network, subject, pointwise, batch, settings)


def measure(network: str, subject: Subject, pointwise: Subject, batch: int, settings: Settings) -> Cell:
    """Time one cell; ``pointwise`` is the same network without randomness."""
    x, method = subject.network.rows(batch), subject.method
    asked = 1 if method == "pointwise" else settings.draws
    draws = _draws(subject, x, asked, settings)
    asked_of = [(name, subject, draws) for name in settings.engines]
    if method != "pointwise":
        asked_of += [(name, pointwise, 1) for name in settings.engines if ENGINES[name].yardstick]
    with tempfile.TemporaryDirectory() as folder:
        found = [
            _ready(name, each, x, count, Path(folder) / f"{at}")
            for at, (name, each, count) in enumerate(asked_of)
        ]
        opened = [one for one in found if isinstance(one, _Ready)]
        ways = {one.name: Way(_call(one, x), one.draws * batch) for one in opened}
        times = interleaved(
            {**ways, **roofline_ways()}, settings.seconds, burst=_BURST, clock=CLOCKS[settings.clock]
        )
        rows = [
            _row(one, times, network, batch, settings) if isinstance(one, _Ready) else one for one in found
        ]
    return Cell(
        network=network,
        method=method,
        precision=_label(subject),
        batch=batch,
        draws=draws,
        draws_asked=asked,
        members=min(len(subject.program.members), draws),
        rows=rows,
        operations=operations(pointwise.program),
        roofline=roofline(times),
        kernels=_kernels(load(subject.program, "onednn")),
    )


def _draws(subject: Subject, x: Tensor, asked: int, settings: Settings) -> int:
    """As many draws that one call of the slowest kind takes no more than a third of the cell's time."""
    in_float = any(ENGINES[name].numbers == "float" for name in settings.engines)
    slowest = PlainLoop(subject.posterior) if in_float else load(subject.program, "auto").predict
    slowest(x, 1)
    return affordable_draws(asked, stopwatch(lambda: slowest(x, 1)), settings.seconds / 3)


def _ready(name: str, subject: Subject, x: Tensor, draws: int, folder: Path) -> _Ready | Row:
    """The engine with its files written, opened and tried once; or the row that says why not."""
    engine = ENGINES[name]()
    why = engine.why_missing() or engine.why_not(subject.method)
    if why is not None:
        return Row(name, subject.method, why=why)
    folder.mkdir()
    # what others raise when they cannot run a network is anything; ours must not fail.
    expected = (QbayesError,) if engine.ours else (QbayesError, RuntimeError, TypeError, ValueError)
    try:
        return _opened(engine, name, subject, x, draws, folder)
    except expected as error:
        return Row(name, subject.method, why=_in_one_line(error))


def _opened(engine: Engine, name: str, subject: Subject, x: Tensor, draws: int, folder: Path) -> _Ready:
    files = engine.write(subject, folder, draws)
    size = sum(path.stat().st_size for path in files) if engine.deploys else None
    answer = engine.open(folder)
    answer(x, draws)
    return _Ready(name, subject.method, draws, folder, size, answer)


def _call(ready: _Ready, x: Tensor) -> Run:
    return lambda: ready.answer(x, ready.draws)


def _row(ready: _Ready, times: dict[str, Times], network: str, batch: int, settings: Settings) -> Row:
    memory: Memory | None = None
    if settings.memory:
        memory = measure_memory(ready.engine, ready.folder, network, batch, ready.draws)
    return Row(ready.engine, ready.method, times[ready.name], "", ready.file_bytes, memory)


def _in_one_line(error: Exception) -> str:
    if isinstance(error, QbayesError):
        return f"{error.must}: {error.got}"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _label(subject: Subject) -> str:
    precision = subject.program.precision
    return f"W{precision['weight']}A{precision['activation']}"


def _kernels(deployed: ProgramPosterior) -> dict[str, int]:
    """How many ops run in which way; ops that only move codes about are exact in any way."""
    moving = ("reshape", "permute", "slice", "pad", "upsample")
    rows = [row for row in deployed.backend.report() if row.kind not in moving]
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
