"""C5: as bits fall, Bayesian methods stay unsure about confusion data and keep their entropy on test data."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import POINTWISE, Cell, has_collapsed, preferred, sweeps
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Above, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.margins import NEARLY, change, loss_of, margin

CLAIM = (
    "As bits fall, entropy on confusion data stays or rises and entropy on test data stays, for Bayesian "
    "methods; for pointwise networks on CIFAR-10 entropy on confusion data falls as W falls"
)
ON_TEST, ON_CONFUSION = "entropy", "confusion/entropy"


@CLAIMS.register("c05_entropy_kept")
def judge(frame: Frame) -> Verdict:
    """For Bayesian methods a claim of equality, for pointwise networks one of a direction.

    Wherever the runs stand, as a network at chance has no entropy to judge:

    - Bayesian: a fall of the entropy on confusion data, or any change of that on test data, must be shown to
      be smaller than twice the margin of C1; one that is shown to be larger refutes.
    - Pointwise on CIFAR-10, at its fewest weight bits: the entropy on confusion data must be shown to fall. A
      rise refutes; a change within the margin is no difference that matters.
    """
    measured = [cell for cell in preferred(frame) if all(pair.has(ON_CONFUSION) for pair in cell.pairs)]
    standing = [cell for cell in measured if not any(has_collapsed(pair) for pair in cell.pairs)]
    cells = [cell for cell in standing if cell.bayesian]
    bayesian = [loss_of(frame, cell, name, NEARLY) for cell in cells for name in (ON_CONFUSION, ON_TEST)]
    falling = _pointwise(frame, standing)
    missing = [] if bayesian else ["quantised runs of a Bayesian method with confusion data"]
    missing += [] if falling else ["pointwise runs on cifar10 below W8 at A7, with confusion data"]
    left_out = len(measured) - len(standing)
    return conclude(
        "C5",
        CLAIM,
        judge_each([*bayesian, *falling]),
        figure="detection",
        missing=missing,
        note=f"{left_out} precisions with collapsed runs are left out." if left_out else "",
    )


def _pointwise(frame: Frame, standing: list[Cell]) -> list[Comparison]:
    """The fewest weight bits at which pointwise networks stand on CIFAR-10, in every scheme and recipe."""
    found = []
    own = [cell for cell in standing if cell.method == POINTWISE and cell.task == "cifar10"]
    for setting in sorted({cell.setting for cell in own}):
        widths = sweeps(cell for cell in own if cell.setting == setting)["weight"]
        few = [width for width in widths if width < 8]
        if few:
            cell = widths[min(few)]
            fall = change(frame, cell, ON_CONFUSION).scaled(-1)
            rule = Above(0.0, tie=margin(cell.pairs, ON_CONFUSION))
            found.append(Comparison(cell.label, cell.method, "fall of entropy, confusion", "nat", fall, rule))
    return found
