"""What is measured of a network: times, memory, the share of this processor's peak, the size of its file.

- **Times** of several ways to do the same are taken in turn: what slows the machine slows them all. Other
  load only ever adds time, so each way is judged by its fastest run, and ratios are those of the fastest. On
  a machine that is never idle, the clock ``cpu`` counts the time that the process was given.
- **Memory** is that of a process that only opens what was written: resident after the imports, after the
  network is loaded, and at most during the prediction (the kernel's high-water mark, set back after loading
  where Linux allows it).
- The **roofline** is how many operations a second this processor can do: a large matrix product, timed in the
  same run. The int8 product is oneDNN's, with the kernels that the backend ``onednn`` uses; a
  multiply-accumulate counts as two operations. What a network reaches of it is the share of the operations
  that it *needs*, layer by layer for every draw, whatever an engine computes in truth: work that it saves
  counts as done. Products with the zeros of a padding are not needed; kernels leave them out.
- The **size** of a program's file is set against ``bits / 32`` of its float32 weights (two codes a Gaussian
  weight).
"""

import ctypes
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from qbayes.integer.backends.onednn.primitives import Shape, Target, pack, product
from qbayes.integer.backends.onednn.trial import why_missing
from qbayes.integer.ops import Conv, Weighted
from qbayes.integer.program import Program
from qbayes.integer.structure.cost import cost
from qbayes.lab.bench.subjects import make_subject
from qbayes.quant.precision import Precision

Run = Callable[[], object]
# A turn of one way: the seconds of its calls.
Turn = Callable[[], Sequence[float]]
Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): writing it to clear_refs sets the high-water mark to what is resident now

Opened = TypeVar("Opened")
# Of the product: 17 billion operations, some hundredths of a second. A long sum is what kernels do best.
_ROWS, _INPUTS, _OUTPUTS = 2048, 4096, 1024
INT8, FLOAT = "roofline int8", "roofline float"
# Small codes: the product of large ones may saturate, which takes no less time.
_LARGEST_CODE = 7
BITS = (8, 4, 3)
ALLOWED = 1.05
# Below this many weights the list of ops counts for more than the weights.
LEAST_WEIGHTS = 100_000


@dataclass(frozen=True)
class Times:
    """All timed calls of one way, in seconds."""

    seconds: Sequence[float]
    passes: int

    @property
    def best(self) -> float:
        """Seconds of the fastest call, per draw and image."""
        return min(self.seconds) / self.passes

    @property
    def call(self) -> float:
        """Seconds of the fastest call: a prediction with all its draws."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """Seconds of the middle call, per draw and image: how busy the machine was."""
        return statistics.median_high(self.seconds) / self.passes


def stopwatch(run: Run, clock: Clock = time.perf_counter) -> float:
    """Seconds that one call takes."""
    begun = clock()
    run()
    return clock() - begun


def burst(run: Run, seconds: float, clock: Clock = time.perf_counter) -> list[float]:
    """Call for ``seconds``, at least once: the first calls find their data out of the caches."""
    end = time.perf_counter() + seconds
    found = [stopwatch(run, clock)]
    while time.perf_counter() < end:
        found.append(stopwatch(run, clock))
    return found


def interleaved(turns: Mapping[str, Turn], seconds: float, least_rounds: int = 2) -> dict[str, list[float]]:
    """Rounds over all ways in turn until ``seconds`` are over: the times of all calls."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    deadline, rounds = time.perf_counter() + seconds, 0
    while rounds < least_rounds or time.perf_counter() < deadline:
        for name, turn in turns.items():
            found[name] += turn()
        rounds += 1
    return found


def affordable_draws(wanted: int, seconds_a_draw: float, seconds: float, least: int = 2) -> int:
    """As many of the draws asked for as fit the time of one round, at least ``least``."""
    return max(min(wanted, least), min(wanted, int(seconds / max(seconds_a_draw, 1e-9))))


@dataclass(frozen=True)
class Memory:
    """Bytes resident in the process of one engine."""

    imported: int
    loaded: int
    peak: int

    @property
    def own(self) -> int:
        """The network and its prediction at most, without the libraries themselves."""
        return max(0, self.peak - self.imported)


def measure_memory(
    load: Callable[[], Opened], predict: Callable[[Opened], object]
) -> tuple[Opened, Memory | None]:
    """What ``load`` gives, after one prediction, and the memory of both; None where there is no /proc."""
    if not _STATUS.exists():
        opened = load()
        predict(opened)
        return opened, None
    imported = _resident()
    opened = load()
    loaded = _resident()
    if _CLEAR.exists():
        _CLEAR.write_text(_RESET_PEAK)
    predict(opened)
    return opened, Memory(imported, loaded, _status("VmHWM"))


def _resident() -> int:
    """Bytes resident, after what is free has been given back."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    return _status("VmRSS")


def _status(entry: str) -> int:
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


@dataclass(frozen=True)
class Roofline:
    """Operations a second of a large product; None where there is no int8 kernel."""

    int8: float | None
    float32: float

    def of(self, numbers: str) -> float | None:
        return self.float32 if numbers == "float" else self.int8


def roofline_names() -> list[str]:
    """The products that this processor has kernels for."""
    return [FLOAT] if why_missing() is not None else [FLOAT, INT8]


def roofline_products() -> dict[str, Run]:
    """What to time beside the engines, by name."""
    a, b = torch.randn(_ROWS, _INPUTS), torch.randn(_INPUTS, _OUTPUTS)
    found: dict[str, Run] = {FLOAT: lambda: torch.mm(a, b)}
    if INT8 in roofline_names():
        shape = Shape(_INPUTS, _OUTPUTS)
        x = torch.randint(0, 1 << 8, (_ROWS, _INPUTS), dtype=torch.uint8)
        codes = torch.randint(-_LARGEST_CODE, _LARGEST_CODE + 1, (_OUTPUTS, _INPUTS), dtype=torch.int8)
        target = Target(torch.full((_OUTPUTS,), 2.0**-12), 0, 0, 255)
        zeros = torch.zeros(_OUTPUTS, dtype=torch.int32)
        packed = pack(shape, codes, zeros, target, 0)
        found[INT8] = lambda: product(shape, x, 0, packed, target, zeros)
    return found


def roofline(seconds: Mapping[str, Sequence[float]]) -> Roofline:
    """From the times of ``roofline_products``."""
    done = 2 * _ROWS * _INPUTS * _OUTPUTS
    return Roofline(done / min(seconds[INT8]) if INT8 in seconds else None, done / min(seconds[FLOAT]))


def operations(program: Program) -> int:
    """Operations that one pass of the network needs for one row; a Gaussian weight counts once."""
    return 2 * sum(_products(program, op) for op in program.ops if isinstance(op, Weighted))


def _products(program: Program, op: Weighted) -> int:
    """Products of a weight with a number of the input that is not padding."""
    products = op.macs(program.values) // op.weights.accumulators
    if isinstance(op, Conv):
        lengths, outputs = program.values[op.inputs[0]].shape[1:], program.values[op.output].shape[1:]
        for axis, (length, out, taps) in enumerate(zip(lengths, outputs, op.kernel, strict=True)):
            first = [place * op.stride[axis] - op.padding[axis] for place in range(out)]
            reached = [start + tap * op.dilation[axis] for start in first for tap in range(taps)]
            # the taps of an axis fall beside the image independently of the other axes.
            products = products * sum(0 <= at < length for at in reached) // len(reached)
    return products


@dataclass(frozen=True)
class Size:
    """The file of one program."""

    network: str
    method: str
    bits: int
    weights: int
    codes: int
    file_bytes: int

    @property
    def float_bytes(self) -> int:
        """Its weights in float32; a Gaussian weight has two numbers."""
        return 4 * self.weights * self.codes

    @property
    def ratio(self) -> float:
        """The file over ``bits / 32`` of the float32 weights: 1 is what the codes alone would take."""
        return self.file_bytes / (self.float_bytes * self.bits / 32)

    @property
    def passes(self) -> bool | None:
        """Whether at most 5 % come on top; None for networks too small for the rule."""
        return None if self.weights < LEAST_WEIGHTS else self.ratio <= ALLOWED


def measure_size(network: str, method: str, bits: int) -> Size:
    """Save the program of one network at ``bits`` for weights and activations, and look at its file."""
    program = make_subject(network, method, Precision(weight=bits, activation=bits), members=1).program
    with tempfile.TemporaryDirectory() as folder:
        path = program.save(Path(folder) / "program.qbayes")
        written = path.stat().st_size
    codes = 2 if method == "bbb" else 1
    return Size(network, method, bits, cost(program, variance=False).weights, codes, written)
