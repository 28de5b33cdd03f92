"""C8: under shift, ECE rises less for Bayesian methods than for pointwise networks, also at A7W8."""

from typing import Literal

import numpy as np

from qbayes.metrics.scores import UNSHIFTED
from qbayes.report.bootstrap import Unit, estimate
from qbayes.report.cells import POINTWISE, Cell, by_method, preferred
from qbayes.report.claims.base import CLAIMS, Above, Comparison, Verdict, conclude, judged
from qbayes.report.frame import Frame
from qbayes.report.pairs import between
from qbayes.tasks.shifts import LEVELS

CLAIM = "Under shift, ECE rises less for Bayesian methods than for pointwise networks, also at A7W8"
TIE = 0.5  # points of ECE, as in C1: rises that differ by less are equal
Side = Literal["float", "quantised"]


@CLAIMS.register("c8")
def judge(frame: Frame) -> Verdict:
    """The mean rise over the five levels, pointwise less Bayesian, in float and at W8A7, for each shift."""
    groups = by_method(cell for cell in preferred(frame) if cell.bits == "W8A7").values()
    comparisons = {
        (one.subject, one.quantity): one
        for methods in groups
        for name, cells in methods.items()
        if POINTWISE in methods and name != POINTWISE
        for one in _compared(methods[POINTWISE][0], cells[0])
    }
    wanted = "W8A7 and float runs of pointwise and of a Bayesian method with scores under shift"
    return conclude(
        "C8",
        CLAIM,
        judged(list(comparisons.values())),
        figure="shifts",
        missing=[] if comparisons else [wanted],
    )


def _compared(pointwise: Cell, bayesian: Cell) -> list[Comparison]:
    found = []
    for shift in LEVELS:
        for side in ("float", "quantised"):
            less = between(rises(pointwise, shift, side), rises(bayesian, shift, side))
            if less:
                subject = f"{bayesian.where} float" if side == "float" else bayesian.label
                text = f"rise of ECE under {shift}, pointwise less {bayesian.method}"
                found.append(Comparison(subject, text, "points", estimate(less), Above(0.0, TIE)))
    return found


def rises(cell: Cell, shift: str, side: Side) -> dict[Unit, float]:
    """Points of ECE that a shift adds, the mean over its levels, for each run.

    Where not all rows were shifted, the clean ECE is that of the rows that were. Rises on other numbers of
    rows are rises of other runs: they are not set against each other.
    """
    clean = cell.values("ece", side) | cell.values(f"{UNSHIFTED}/ece", side)
    rows = cell.values("shift_rows", side)
    levels = [cell.values(f"{shift}/{level}/ece", side) for level in range(1, len(LEVELS[shift]) + 1)]
    shared = set(clean).intersection(*levels)
    means = {which: float(np.mean([some[which] for some in levels])) for which in shared}
    return {
        (*which, ("shift_rows", rows.get(which))): 100 * (mean - clean[which])
        for which, mean in means.items()
    }
