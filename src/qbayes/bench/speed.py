"""One cell of the speed table: a network by a method at a batch size, timed in every way.

- ``loop``: float, a plain Python loop of torch forward passes (``plain``);
- ``predict``: float through ``posterior.predict``;
- ``onednn``: the program through ``predict`` on the backend onednn, noise included;
- ``frozen`` (bbb): the same with the weights of all draws kept from an earlier call;
- ``pointwise`` (mcd): the pointwise program of the same network on onednn, one pass.

A pointwise posterior has one draw. Where all draws would take too long, fewer are timed, and the cell says
how many.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from qbayes.bench.plain import PlainLoop
from qbayes.bench.subjects import Subject, make_subject
from qbayes.bench.timing import Times, Way, affordable_draws, interleaved, stopwatch
from qbayes.integer.int8_ops import Shape, saturates
from qbayes.integer.posterior import ProgramPosterior, load
from qbayes.provenance import versions
from qbayes.quant.precision import Precision

# Aims of the ratio loop / onednn at a batch of 256, and of mcd's draw over a pointwise pass.
AIMS = {"resnet18-standard": (4.0, 3.0), "resnet18-slim": (3.0, 2.5)}
AIM_BATCH = 256
MCD_AIM = 1.2
MCD_NETWORKS = ("lenet", "resnet18-slim", "resnet18-standard")


@dataclass(frozen=True)
class Cell:
    """What was measured, and how."""

    network: str
    method: str
    precision: str
    batch: int
    draws: int
    draws_asked: int
    members: int
    times: dict[str, Times]
    kernels: dict[str, int]

    @property
    def name(self) -> str:
        return f"{self.network}/{self.method}/{self.precision}/batch{self.batch}"

    def ratio(self, slow: str, fast: str) -> float | None:
        """How many times as long ``slow`` takes, per draw and image; None where one was not timed."""
        if slow not in self.times or fast not in self.times:
            return None
        return self.times[slow].best / self.times[fast].best

    @property
    def aim(self) -> float | None:
        """The least ratio of loop to onednn that we want here."""
        if self.batch != AIM_BATCH or self.network not in AIMS:
            return None
        return AIMS[self.network][self.method == "bbb"]

    @property
    def notes(self) -> list[str]:
        """Everything in which this cell differs from a plain reading of its numbers."""
        found: list[str] = []
        if self.method == "pointwise":
            found.append("one draw: a pointwise posterior has no others")
        elif self.draws < self.draws_asked:
            found.append(f"{self.draws} of {self.draws_asked} draws timed")
        if self.members > 1:
            found.append(f"{self.members} members: one network, its weights moved at random")
        slow = {how: count for how, count in self.kernels.items() if how not in ("int8", "compiled")}
        found += [f"{count} × {how}" for how, count in slow.items()]
        return found


def measure_all(
    networks: Sequence[str],
    methods: Sequence[str],
    batches: Sequence[int],
    precision: Precision,
    draws: int,
    seconds: float,
) -> Iterator[Cell]:
    """The cells one after the other; each network is built once a method and let go before the next."""
    for network in networks:
        pointwise = make_subject(network, "pointwise", precision) if "mcd" in methods else None
        for method in methods:
            ready = method == "pointwise" and pointwise is not None
            subject = pointwise if ready else make_subject(network, method, precision, members=draws)
            assert subject is not None
            for batch in batches:
                yield measure(network, subject, pointwise, batch, draws, seconds)


def measure(
    name: str,
    subject: Subject,
    pointwise: Subject | None,
    batch: int,
    draws: int,
    seconds: float,
) -> Cell:
    """Time one cell; ``pointwise`` is the same network without randomness, for mcd."""
    x = subject.network.rows(batch)
    loop, deployed = PlainLoop(subject.posterior), load(subject.program, "onednn")
    loop(x, 1)
    asked = 1 if subject.method == "pointwise" else draws
    # a call of the loop should take no more than a third of the cell's time.
    timed = affordable_draws(asked, stopwatch(lambda: loop(x, 1)), seconds / 3)
    passes = timed * batch
    ways = {
        "loop": Way(lambda: loop(x, timed), passes),
        "predict": Way(lambda: subject.posterior.predict(x, timed), passes),
        "onednn": Way(lambda: deployed.predict(x, timed), passes),
    }
    if subject.method == "bbb":
        frozen = load(subject.program, "onednn", frozen_draws=timed)
        ways["frozen"] = Way(lambda: frozen.predict(x, timed), passes)
    if subject.method == "mcd" and pointwise is not None:
        point = load(pointwise.program, "onednn")
        ways["pointwise"] = Way(lambda: point.predict(x, 1), batch)
    return Cell(
        name,
        subject.method,
        _label(subject),
        batch,
        timed,
        asked,
        min(len(subject.program.members), timed),
        interleaved(ways, seconds),
        _kernels(deployed),
    )


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
        "vector_unit": torch.backends.cpu.get_cpu_capability(),
        "saturates": saturates(probe),
        "threads": torch.get_num_threads(),
    }
