"""C4: on CIFAR-10, all methods collapse at A ≤ 4 and at W ≤ 3."""

from qbayes.report.cells import preferred
from qbayes.report.claims.base import CLAIMS, Verdict, conclude, judged
from qbayes.report.claims.collapse import Part, collapses
from qbayes.report.frame import Frame

CLAIM = "On CIFAR-10, all methods collapse at A ≤ 4 and at W ≤ 3"
METHODS = ("pointwise", "mcd", "bbb", "sghmc")


@CLAIMS.register("c4")
def judge(frame: Frame) -> Verdict:
    """For each of the four methods and both sides, most runs must have collapsed at every such width."""
    cells = [cell for cell in preferred(frame) if cell.task == "cifar10"]
    parts = [part for name in METHODS for part in (Part(name, "activation", 4), Part(name, "weight", 3))]
    found = {part: collapses(part, cells) for part in parts}
    return conclude(
        "C4",
        CLAIM,
        judged([one for some in found.values() for one in some]),
        figure="activation_bits",
        missing=[f"cifar10 runs of {part.text}" for part, some in found.items() if not some],
    )
