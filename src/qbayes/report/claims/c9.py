"""C9: float and A7W8 are nearly equal under shift."""

import math

import numpy as np

from qbayes.metrics.scores import metric as metric_named
from qbayes.report.bootstrap import estimate
from qbayes.report.cells import Cell, preferred
from qbayes.report.claims.base import CLAIMS, AtMost, Comparison, Verdict, conclude, judged
from qbayes.report.claims.margins import in_units
from qbayes.report.frame import Frame
from qbayes.report.pairs import differences
from qbayes.tasks.shifts import LEVELS

CLAIM = "Float and A7W8 are nearly equal under shift"
# "Nearly": five times the margin of error and NLL on clean data and twice that of ECE (points, nats), because
# networks under shift are unsure anyway, or 5 % of the float score where that is more.
NEARLY = {"error": 1.0, "nll": 0.05, "ece": 1.0}
SHARE = 0.05


@CLAIMS.register("c9")
def judge(frame: Frame) -> Verdict:
    """Paired differences at every level of every shift; what gets better under quantisation passes."""
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7"]
    comparisons = [one for cell in cells for one in _compared(cell)]
    return conclude(
        "C9",
        CLAIM,
        judged(comparisons),
        figure="shifts",
        missing=[] if comparisons else ["W8A7 runs and their float runs with scores under shift"],
    )


def _compared(cell: Cell) -> list[Comparison]:
    found = []
    for shift, levels in LEVELS.items():
        for level in range(1, len(levels) + 1):
            for name, least in NEARLY.items():
                column = f"{shift}/{level}/{name}"
                apart = differences(cell.pairs, column)
                if apart:
                    unit, scale = in_units(name)
                    size = scale * float(np.mean(list(cell.values(column, "float").values())))
                    # of a float score without end no share says what is near.
                    rule = AtMost(max(least, SHARE * size) if math.isfinite(size) else least)
                    text = f"{metric_named(name).label} at {shift} {level}"
                    found.append(Comparison(cell.label, text, unit, estimate(apart).scaled(scale), rule))
    return found
