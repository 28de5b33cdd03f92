"""C1: A7W8 does not degrade error, NLL, ECE or entropy of any Bayesian method."""

from qbayes.report.cells import preferred
from qbayes.report.claims.base import CLAIMS, Verdict, conclude, judged
from qbayes.report.claims.margins import loss_of, scores_of
from qbayes.report.frame import Frame

CLAIM = "A7W8 does not degrade error, NLL, ECE or entropy of any Bayesian method"


@CLAIMS.register("c1")
def judge(frame: Frame) -> Verdict:
    """Every paired difference to float must be shown to lie within its margin, for every method and score."""
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7" and cell.bayesian]
    comparisons = [loss_of(frame, cell, name) for cell in cells for name in scores_of(cell)]
    missing = [] if comparisons else ["runs of a Bayesian method at W8A7 with their float runs"]
    return conclude("C1", CLAIM, judged(comparisons), figure="activation_bits", missing=missing)
