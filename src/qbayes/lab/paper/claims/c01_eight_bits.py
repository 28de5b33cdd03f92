"""C1: A7W8 does not degrade error, NLL, ECE or entropy of any Bayesian method."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Verdict, judge_each
from qbayes.lab.paper.judge.margins import loss_of, scores_of

CLAIM = "A7W8 does not degrade error, NLL, ECE or entropy of any Bayesian method"


@CLAIMS.register("c01_eight_bits")
def judge(frame: Frame) -> Verdict:
    """A claim of equality: every loss must be shown to be smaller than its margin.

    It refutes it that a loss is shown to be larger than its margin; a gain never does. Entropy on test rows
    and the width of intervals must stay, as neither direction is a merit. One that is merely above 0 decides
    nothing. A third answer there is none: no difference that matters is what the claim says.
    """
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7" and cell.bayesian]
    comparisons = [loss_of(frame, cell, name) for cell in cells for name in scores_of(cell)]
    wanted = "runs of a Bayesian method at W8A7 with their float runs"
    return conclude("C1", CLAIM, judge_each(comparisons), figure="activation_bits", wanted=wanted)
