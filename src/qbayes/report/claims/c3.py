"""C3: on MNIST, MCD collapses at A ≤ 3; judged with the paper's rounded masks and with exact ones."""

from collections.abc import Sequence

from qbayes.report.cells import Cell, option, preferred
from qbayes.report.claims.base import CLAIMS, Line, Verdict, conclude, judged
from qbayes.report.claims.collapse import Part, collapses
from qbayes.report.frame import Frame

CLAIM = "On MNIST, MC dropout collapses at A ≤ 3"
PART = Part("mcd", "activation", 3)
SCHEMES = ("default", "paper", "default, mask=product", "paper, mask=exact")


@CLAIMS.register("c3")
def judge(frame: Frame) -> Verdict:
    """A collapse with rounded masks alone is the masks', not the method's: it does not support the claim."""
    cells = [cell for cell in preferred(frame, SCHEMES.__contains__) if cell.task == "mnist"]
    rounded = collapses(PART, [cell for cell in cells if rounds_masks(cell)])
    exact = collapses(PART, [cell for cell in cells if not rounds_masks(cell)])
    missing = [] if exact else [f"mnist runs of {PART.text} with exact masks (scheme default)"]
    lines = judged([*rounded, *exact])
    with_rounded, with_exact = _said(lines[: len(rounded)]), _said(lines[len(rounded) :])
    note = f"With the paper's rounded masks: {with_rounded}; with exact ones: {with_exact}."
    return conclude("C3", CLAIM, lines, figure="activation_bits", missing=missing, note=note)


def rounds_masks(cell: Cell) -> bool:
    """The paper's scheme gives masks the scale of the product, on which 1 may round to 0."""
    return (option(cell, "mask") or ("product" if cell.scheme.startswith("paper") else "exact")) == "product"


def _said(lines: Sequence[Line]) -> str:
    if not lines:
        return "no runs"
    return "collapse" if all(one.outcome == "yes" for one in lines) else "no collapse shown"
