"""C5: as bits fall, Bayesian methods stay unsure about confusion data and keep their entropy on test data."""

from qbayes.report.bootstrap import estimate
from qbayes.report.cells import POINTWISE, Cell, has_collapsed, preferred, sweeps
from qbayes.report.claims.base import CLAIMS, Above, AtMost, Comparison, Verdict, Within, conclude, judged
from qbayes.report.claims.margins import largest
from qbayes.report.frame import Frame
from qbayes.report.pairs import differences

CLAIM = (
    "As bits fall, entropy on confusion data stays or rises and entropy on test data stays, for Bayesian "
    "methods; for pointwise networks on CIFAR-10 entropy on confusion data falls as W falls"
)
# Share of log K that counts as staying over all bits: 0.115 nat for ten classes, five times the margin of C1.
STAYS = 0.05
# Share of log K below which pointwise networks have not fallen.
FALLS = 0.01
ON_TEST, ON_CONFUSION = "entropy", "confusion/entropy"


@CLAIMS.register("c5")
def judge(frame: Frame) -> Verdict:
    """Differences to float wherever the runs stand; a network at chance has no entropy to judge."""
    measured = [cell for cell in preferred(frame) if _measured(cell)]
    standing = [cell for cell in measured if not any(has_collapsed(pair) for pair in cell.pairs)]
    bayesian = [one for cell in standing if cell.bayesian for one in (_on_confusion(cell), _on_test(cell))]
    falling = _pointwise(standing)
    missing = [] if bayesian else ["quantised runs of a Bayesian method with confusion data"]
    missing += [] if falling else ["pointwise runs on cifar10 below W8 at A7, with confusion data"]
    lines = judged([*bayesian, *falling])
    left_out = len(measured) - len(standing)
    return conclude(
        "C5",
        CLAIM,
        lines,
        figure="detection",
        missing=missing,
        note=f"{left_out} precisions with collapsed runs are left out." if left_out else "",
    )


def _measured(cell: Cell) -> bool:
    return all(pair.has(ON_CONFUSION) for pair in cell.pairs)


def _on_confusion(cell: Cell) -> Comparison:
    fall = estimate(differences(cell.pairs, ON_CONFUSION)).scaled(-1)
    return Comparison(cell.label, "fall of entropy, confusion", "nat", fall, AtMost(largest(cell, STAYS)))


def _on_test(cell: Cell) -> Comparison:
    found = estimate(differences(cell.pairs, ON_TEST))
    return Comparison(cell.label, "entropy, test", "nat", found, Within(largest(cell, STAYS)))


def _pointwise(standing: list[Cell]) -> list[Comparison]:
    """The fewest weight bits at which pointwise networks stand on CIFAR-10, in every scheme and recipe."""
    found = []
    own = [cell for cell in standing if cell.method == POINTWISE and cell.task == "cifar10"]
    for setting in sorted({cell.setting for cell in own}):
        widths = sweeps(cell for cell in own if cell.setting == setting)["weight"]
        few = [width for width in widths if width < 8]
        if few:
            cell = widths[min(few)]
            fall = estimate(differences(cell.pairs, ON_CONFUSION)).scaled(-1)
            rule = Above(0.0, tie=largest(cell, FALLS))
            found.append(Comparison(cell.label, "fall of entropy, confusion", "nat", fall, rule))
    return found
