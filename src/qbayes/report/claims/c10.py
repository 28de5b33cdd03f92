"""C10: 8 bits need a quarter of the memory, and a half to a quarter of the time."""

import math

import numpy as np

from qbayes.report.bootstrap import Estimate
from qbayes.report.cells import Cell, preferred
from qbayes.report.claims.base import CLAIMS, Above, Comparison, Verdict, conclude, judged
from qbayes.report.frame import Frame

CLAIM = "8 bits: memory ÷ 4, latency ÷ 2 to ÷ 4"
# Of the fourfold, an eighth is left for biases (32 bits), scales and the file's header.
MEMORY = 3.5
LATENCY = 2.0
NO_TIMES = "latencies (results hold no times: 'qbayes bench' measures them)"


@CLAIMS.register("c10")
def judge(frame: Frame) -> Verdict:
    """Bytes of float weights over bytes of the program; the same for a column ``latency`` if there is one."""
    cells = [cell for cell in preferred(frame) if cell.weight == 8]
    memory = [one for cell in cells for one in _ratio(cell, "bytes", "memory, float over quantised", MEMORY)]
    times = [
        one for cell in cells for one in _ratio(cell, "latency", "latency, float over quantised", LATENCY)
    ]
    missing = [] if memory else ["runs with 8-bit weights and their float runs, with their bytes"]
    missing += [] if times else [NO_TIMES]
    return conclude(
        "C10",
        CLAIM,
        judged([*memory, *times]),
        figure="pareto",
        missing=missing,
    )


def _ratio(cell: Cell, column: str, quantity: str, least: float) -> list[Comparison]:
    quantised, reference = cell.values(column), cell.values(column, "float")
    ratios = [
        reference[which] / quantised[which] for which in quantised if which in reference and quantised[which]
    ]
    if not ratios or not all(map(math.isfinite, ratios)):
        return []
    # sizes are counted, not sampled: the spread over seeds is none, and one run suffices.
    spread = float(np.std(ratios) / math.sqrt(len(ratios)))
    found = Estimate(float(np.mean(ratios)), spread, max(1, len(ratios) - 1), len(ratios))
    return [Comparison(cell.label, quantity, "×", found, Above(least))]
