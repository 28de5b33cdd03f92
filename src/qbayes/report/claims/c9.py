"""C9: float and A7W8 are nearly equal under shift."""

from qbayes.metrics.scores import metric as metric_named
from qbayes.report.cells import Cell, preferred
from qbayes.report.claims.base import CLAIMS, Comparison, Verdict, judged
from qbayes.report.claims.conclude import conclude
from qbayes.report.claims.margins import NEARLY, in_units
from qbayes.report.claims.rules import AtMost
from qbayes.report.claims.shift import SHIFTS, level_change, level_margin
from qbayes.report.frame import Frame

CLAIM = "Float and A7W8 are nearly equal under shift"
SCORES = ("error", "nll", "ece")


@CLAIMS.register("c9")
def judge(frame: Frame) -> Verdict:
    """A claim of equality, about the mean over the levels of each shift.

    Every loss of error, NLL and ECE must be shown to be smaller than twice its margin beside the float value
    under that shift; one that is shown to be larger refutes. What gets better under quantisation passes.
    """
    cells = [cell for cell in preferred(frame) if cell.bits == "W8A7"]
    comparisons = [one for cell in cells for one in _compared(frame, cell)]
    return conclude(
        "C9",
        CLAIM,
        judged(comparisons),
        figure="shifts",
        missing=[] if comparisons else ["W8A7 runs and their float runs with scores under shift"],
    )


def _compared(frame: Frame, cell: Cell) -> list[Comparison]:
    found, floats = [], [pair.float for pair in cell.pairs]
    for shift in SHIFTS:
        for name in SCORES:
            lost = level_change(frame, cell, shift, name)
            if lost is not None:
                rule = AtMost(level_margin(floats, shift, name, NEARLY))
                text = f"{metric_named(name).label} under {shift}"
                found.append(Comparison(cell.label, cell.method, text, in_units(name)[0], lost, rule))
    return found
