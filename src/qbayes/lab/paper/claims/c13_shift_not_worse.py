"""C13, ours and not the paper's: under shift, entropy and ECE do not get worse at 8 bits."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import Cell, preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, AtMost, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.margins import NEARLY, SHIFTS, in_units, level_change, level_margin

CLAIM = "Under shift, entropy and ECE do not get worse at 8 bits (ours, not the paper's)"
BITS = ("W8A8", "W8A7")


@CLAIMS.register("c13_shift_not_worse")
def judge(frame: Frame) -> Verdict:
    """A claim of equality: what makes a network unsure under shift must outlast its integers.

    For every method, at W8A8 and W8A7, and the mean over the levels of each shift: a fall of the entropy and
    a rise of the ECE must be shown to be smaller than twice the margin beside the float value under that
    shift. One that is shown to be larger refutes; more entropy, or less ECE, passes.
    """
    cells = [cell for cell in preferred(frame) if cell.bits in BITS]
    comparisons = [one for cell in cells for one in _compare(frame, cell)]
    wanted = "runs at W8A8 or W8A7 and their float runs with scores under shift"
    return conclude("C13", CLAIM, judge_each(comparisons), figure="shifts", wanted=wanted)


def _compare(frame: Frame, cell: Cell) -> list[Comparison]:
    found, floats = [], [pair.float for pair in cell.pairs]
    for shift in SHIFTS:
        for name, text, sign in (("entropy", "fall of entropy", -1), ("ece", "rise of ECE", 1)):
            changed = level_change(frame, cell, shift, name)
            if changed is not None:
                rule = AtMost(level_margin(floats, shift, name, NEARLY))
                worse = changed.scaled(sign)
                what, unit = f"{text} under {shift}", in_units(name)[0]
                found.append(Comparison(cell.label, cell.method, what, unit, worse, rule))
    return found
