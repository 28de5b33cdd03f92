"""C1: A7W8 does not degrade error, NLL, ECE or entropy of any Bayesian method."""

from qbayes.report.cells import preferred
from qbayes.report.claims.base import CLAIMS, Verdict, judged
from qbayes.report.claims.conclude import conclude
from qbayes.report.claims.margins import loss_of, scores_of
from qbayes.report.frame import Frame

CLAIM = "A7W8 does not degrade error, NLL, ECE or entropy of any Bayesian method"


@CLAIMS.register("c1")
def judge(frame: Frame) -> Verdict:
    """A claim of equality: every loss must be shown to be smaller than its margin.

    It refutes it that a loss is shown to be larger than its margin; a gain never does. Entropy on test rows
    and the width of intervals must stay, as neither direction is a merit. One that is merely above 0 decides
    nothing. A third answer there is none: no difference that matters is what the claim says.
    """
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7" and cell.bayesian]
    comparisons = [loss_of(frame, cell, name) for cell in cells for name in scores_of(cell)]
    missing = [] if comparisons else ["runs of a Bayesian method at W8A7 with their float runs"]
    return conclude("C1", CLAIM, judged(comparisons), figure="activation_bits", missing=missing)
