"""C10: 8 bits need a quarter of the memory, and a half to a quarter of the time."""

import math

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Estimate, Unit, estimate
from qbayes.lab.analysis.run_groups import Cell, preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Above, Comparison, Verdict, judge_each

CLAIM = "8 bits: memory ÷ 4, latency ÷ 2 to ÷ 4"
# Of the fourfold, an eighth is left for biases (32 bits), scales and the file's header.
MEMORY = 3.5
LATENCY = 2.0
NO_TIMES = "latencies (results hold no times: 'qbayes bench' measures them)"


@CLAIMS.register("c10_memory_time")
def judge(frame: Frame) -> Verdict:
    """Bytes of float weights over bytes of the program, and the same for a column ``latency``.

    Memory must be a 3.5th or less, and time a half or less, wherever weights have 8 bits. Bytes are counted:
    they have no interval, and one run decides. Times are measured, and judged by the interval over runs. A
    program that needs more memory refutes the claim without any time.
    """
    cells = [cell for cell in preferred(frame) if cell.weight == 8]
    memory = [one for cell in cells for one in _memory(cell)]
    times = [one for cell in cells for one in _latency(cell)]
    return conclude(
        "C10",
        CLAIM,
        judge_each([*memory, *times]),
        figure="pareto",
        missing=[] if memory else ["runs with 8-bit weights and their float runs, with their bytes"],
        missing_of_each=[] if times else [NO_TIMES],
    )


def _memory(cell: Cell) -> list[Comparison]:
    ratios = list(_ratios(cell, "bytes").values())
    if not ratios:
        return []
    found = Estimate.counted(sum(ratios) / len(ratios), len(ratios))
    return [_comparison(cell, "memory, float over quantised", found, MEMORY)]


def _latency(cell: Cell) -> list[Comparison]:
    ratios = _ratios(cell, "latency")
    return [_comparison(cell, "latency, float over quantised", estimate(ratios), LATENCY)] if ratios else []


def _ratios(cell: Cell, column: str) -> dict[Unit, float]:
    quantised, reference = cell.values(column), cell.values(column, "float")
    both = [which for which in quantised if which in reference and quantised[which]]
    found = {which: reference[which] / quantised[which] for which in both}
    return found if all(map(math.isfinite, found.values())) else {}


def _comparison(cell: Cell, quantity: str, found: Estimate, least: float) -> Comparison:
    return Comparison(cell.label, cell.method, quantity, "×", found, Above(least))
