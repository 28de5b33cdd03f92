"""C9: float and A7W8 are nearly equal under shift."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import Cell, preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, AtMost, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.margins import NEARLY, SHIFTS, in_units, level_change, level_margin
from qbayes.metrics.scores import metric as metric_named

CLAIM = "Float and A7W8 are nearly equal under shift"
SCORES = ("error", "nll", "ece")


@CLAIMS.register("c09_shift_eight_bits")
def judge(frame: Frame) -> Verdict:
    """A claim of equality, about the mean over the levels of each shift.

    Every loss of error, NLL and ECE must be shown to be smaller than twice its margin beside the float value
    under that shift; one that is shown to be larger refutes. What gets better under quantisation passes.
    """
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7"]
    comparisons = [one for cell in cells for one in _compare(frame, cell)]
    wanted = "W8A7 runs and their float runs with scores under shift"
    return conclude("C9", CLAIM, judge_each(comparisons), figure="shifts", wanted=wanted)


def _compare(frame: Frame, cell: Cell) -> list[Comparison]:
    found, floats = [], [pair.float for pair in cell.pairs]
    for shift in SHIFTS:
        for name in SCORES:
            lost = level_change(frame, cell, shift, name)
            if lost is not None:
                rule = AtMost(level_margin(floats, shift, name, NEARLY))
                text = f"{metric_named(name).label} under {shift}"
                found.append(Comparison(cell.label, cell.method, text, in_units(name)[0], lost, rule))
    return found
