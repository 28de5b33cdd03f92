"""C2: in regression, pointwise and SGHMC collapse at A ≤ 3, SGHMC at W ≤ 4."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Verdict
from qbayes.lab.paper.judge.losses import Part, collapses_of_all

CLAIM = "In regression, pointwise networks and SGHMC collapse at A ≤ 3, and SGHMC at W ≤ 4"
PARTS = (Part("pointwise", "activation", 3), Part("sghmc", "activation", 3), Part("sghmc", "weight", 4))


@CLAIMS.register("c02_regression_collapse")
def judge(frame: Frame) -> Verdict:
    """Each of the three parts must be shown: of all regression tasks of the study most must have collapsed.

    A part is refuted where exact bounds show that most tasks stand.
    """
    cells = [cell for cell in preferred(frame) if cell.is_regression]
    tasks = sorted({cell.task for cell in cells})
    subject = f"{len(tasks)} tasks" if len(tasks) > 1 else None
    lines, missing = collapses_of_all(PARTS, cells, "regression", subject)
    return conclude("C2", CLAIM, lines, figure="regression_boxes", missing=missing)
