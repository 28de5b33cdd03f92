"""C8: under shift, ECE rises less for Bayesian methods than for pointwise networks, also at A7W8."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import estimate
from qbayes.lab.analysis.pairs import between
from qbayes.lab.analysis.run_groups import Cell, beside_pointwise, preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Above, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.margins import SHIFTS, level_margin, rises

CLAIM = "Under shift, ECE rises less for Bayesian methods than for pointwise networks, also at A7W8"


@CLAIMS.register("c08_shift_ece")
def judge(frame: Frame) -> Verdict:
    """A claim of a direction: the rise of pointwise networks less that of each Bayesian method is above 0.

    The rise is the mean over the five levels of a shift less the ECE without it, in float and at W8A7, for
    each shift. One that is shown to be larger for a Bayesian method refutes. Rises are equal where they
    differ by less than the margin of ECE beside the pointwise network's ECE under that shift.
    """
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7"]
    comparisons = {
        (one.subject, one.quantity): one
        for pointwise, bayesian in beside_pointwise(cells)
        for one in _compare(pointwise[0], bayesian[0])
    }
    wanted = "W8A7 and float runs of pointwise and of a Bayesian method with scores under shift"
    return conclude("C8", CLAIM, judge_each(list(comparisons.values())), figure="shifts", wanted=wanted)


def _compare(pointwise: Cell, bayesian: Cell) -> list[Comparison]:
    found = []
    for shift in SHIFTS:
        rule = Above(0.0, tie=level_margin([pair.float for pair in pointwise.pairs], shift, "ece"))
        for side in ("float", "quantised"):
            less = between(rises(pointwise, shift, side), rises(bayesian, shift, side))
            if less:
                subject = f"{bayesian.where} float" if side == "float" else bayesian.label
                text = f"rise of ECE under {shift}, pointwise less {bayesian.method}"
                found.append(Comparison(subject, bayesian.method, text, "points", estimate(less), rule))
    return found
