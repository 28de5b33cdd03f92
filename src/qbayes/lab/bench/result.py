"""What a cell of the benchmark holds: a network by a method at a batch size, one row for each engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.measure import Memory, Roofline, Times

BASELINE, OURS = "loop", "onednn"
# Least ratio of loop to onednn at a batch of 256, for point weights and for sampled ones.
AIMS = {"resnet18-standard": (4.0, 3.0), "resnet18-slim": (3.0, 2.5)}
AIM_BATCH = 256
# A draw of ours over the fastest pointwise int8 pass of any engine, at most.
DRAW_AIMS = {"mcd": 1.2, "sghmc": 1.2, "bbb": 1.6}
DRAW_NETWORKS = ("lenet", "resnet18-slim", "resnet18-standard")
SHARE_AIM, SHARE_NETWORK = 0.60, "resnet18-standard"


@dataclass(frozen=True)
class Row:
    """One engine in a cell: its times, or why there are none.

    ``method`` is the cell's, or ``pointwise`` for a pass that the draws are measured against.
    """

    engine: str
    method: str
    times: Times | None = None
    why: str = ""
    file_bytes: int | None = None
    memory: Memory | None = None

    @property
    def numbers(self) -> str:
        return ENGINES[self.engine].numbers

    @property
    def ours(self) -> bool:
        return ENGINES[self.engine].ours


@dataclass(frozen=True)
class Cell:
    """What was measured, and how; ``operations`` are those of one row and one draw."""

    network: str
    method: str
    precision: str
    batch: int
    draws: int
    draws_asked: int
    members: int
    rows: Sequence[Row]
    operations: int
    roofline: Roofline
    kernels: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.network}/{self.method}/{self.precision}/batch{self.batch}"

    def row(self, engine: str, method: str | None = None) -> Row | None:
        """The row of an engine by the cell's method, or by another; None where it was not asked for."""
        wanted = (engine, method or self.method)
        return next((row for row in self.rows if (row.engine, row.method) == wanted), None)

    def seconds(self, engine: str, method: str | None = None) -> float | None:
        """Of the fastest call, per draw and image."""
        row = self.row(engine, method)
        return None if row is None or row.times is None else row.times.best

    def ratio(self, slow: str, fast: str) -> float | None:
        """How many times as long ``slow`` takes, per draw and image; None where one was not timed."""
        one, other = self.seconds(slow), self.seconds(fast)
        return None if one is None or other is None else one / other

    def speed(self, row: Row) -> float | None:
        """How many times as fast as the float loop a row is."""
        loop = self.seconds(BASELINE)
        return None if loop is None or row.times is None else loop / row.times.best

    def share(self, row: Row) -> float | None:
        """Of the operations a second of a large product in the row's numbers, those that the row reaches."""
        peak = self.roofline.of(row.numbers)
        return None if peak is None or row.times is None else self.operations / row.times.best / peak

    def fastest_pointwise(self) -> Row | None:
        """The fastest pointwise pass in int8, of any engine."""
        passes = [row for row in self.rows if row.method == "pointwise" and row.numbers == "int8"]
        timed = [(row.times.best, row) for row in passes if row.times is not None]
        return min(timed, key=lambda pair: pair[0])[1] if timed else None

    @property
    def draw_over_pass(self) -> float | None:
        """A draw of ours over the fastest pointwise int8 pass."""
        fastest, own = self.fastest_pointwise(), self.seconds(OURS)
        if fastest is None or fastest.times is None or own is None or self.method == "pointwise":
            return None
        return own / fastest.times.best

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
