"""C3: on MNIST, MCD collapses at A ≤ 3; judged with the paper's rounded masks and with exact ones."""

from collections.abc import Sequence

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.run_groups import Cell, option, preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Line, Verdict
from qbayes.lab.paper.judge.losses import Part, collapses

CLAIM = "On MNIST, MC dropout collapses at A ≤ 3"
PART = Part("mcd", "activation", 3)
SCHEMES = ("default", "paper", "default, mask=product", "paper, mask=exact")


@CLAIMS.register("c03_mask_collapse")
def judge(frame: Frame) -> Verdict:
    """It must collapse with rounded masks and with exact ones.

    A collapse with rounded masks alone is the masks', not the method's: it does not support the claim. Runs
    that stand with either kind refute it, by exact bounds.
    """
    cells = [cell for cell in preferred(frame, SCHEMES.__contains__) if cell.task == "mnist"]
    rounded = collapses(PART, [cell for cell in cells if rounds_masks(cell)])
    exact = collapses(PART, [cell for cell in cells if not rounds_masks(cell)])
    missing = [] if exact else [f"mnist runs of {PART.text} with exact masks (scheme default)"]
    note = f"With the paper's rounded masks: {_describe(rounded)}; with exact ones: {_describe(exact)}."
    return conclude("C3", CLAIM, [*rounded, *exact], figure="activation_bits", missing=missing, note=note)


def rounds_masks(cell: Cell) -> bool:
    """The paper's scheme gives masks the scale of the product, on which 1 may round to 0."""
    return (option(cell, "mask") or ("product" if cell.scheme.startswith("paper") else "exact")) == "product"


def _describe(lines: Sequence[Line]) -> str:
    """The lines of each kind: one scheme may collapse, and another stand."""
    if not lines:
        return "no runs"
    words = {"yes": "collapse", "no": "no collapse"}
    return ", ".join(dict.fromkeys(words.get(one.outcome, "not enough runs to tell") for one in lines))
