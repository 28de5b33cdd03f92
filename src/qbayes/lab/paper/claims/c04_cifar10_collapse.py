"""C4: on CIFAR-10, all methods collapse at A ≤ 4 and at W ≤ 3."""

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Verdict
from qbayes.lab.paper.judge.losses import Part, collapses_of_all

CLAIM = "On CIFAR-10, all methods collapse at A ≤ 4 and at W ≤ 3"
METHODS = ("pointwise", "mcd", "bbb", "sghmc")


@CLAIMS.register("c04_cifar10_collapse")
def judge(frame: Frame) -> Verdict:
    """Both parts must be shown for each of the four methods: most runs collapsed at 4, and at 3 bits.

    One method that stands on either side refutes it, by exact bounds.
    """
    cells = [cell for cell in preferred(frame) if cell.task == "cifar10"]
    parts = [part for name in METHODS for part in (Part(name, "activation", 4), Part(name, "weight", 3))]
    lines, missing = collapses_of_all(parts, cells, "cifar10")
    return conclude("C4", CLAIM, lines, figure="activation_bits", missing=missing)
