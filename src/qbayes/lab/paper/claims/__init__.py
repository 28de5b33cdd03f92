"""The paper's claims C1 … C12 and one of ours, C13: one file each, judged from a study's own numbers."""

from collections.abc import Collection

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.pairs import caveats
from qbayes.lab.paper.judge.judgement import CLAIMS, JUDGED, Judge, Judged, Line, Outcome, Verdict

__all__ = [
    "CLAIMS",
    "JUDGED",
    "OF_DIFFERENCES",
    "OURS",
    "Judge",
    "Judged",
    "Line",
    "Outcome",
    "Verdict",
    "judge_all",
    "judges",
]

OURS = ("C13",)  # claims that the paper does not make
# those that rest on differences to float so small that training, code or a processor may have made them.
OF_DIFFERENCES = ("C1", "C5", "C6", "C7", "C8", "C9", "C12", "C13")


def judges() -> dict[str, Judge]:
    """The judge of each claim by its number, ``C1`` first: a file is called by number and subject."""
    return {f"C{int(name[1:3])}": CLAIMS[name] for name in sorted(CLAIMS)}


def judge_all(frame: Frame, only: Collection[str] | None = None) -> list[Verdict]:
    """The verdicts in the order C1 … C13, each with what the study cannot judge.

    Args:
        frame: The rows of a study.
        only: The claims to judge, as ``C3``; all of them without it.
    """
    found = (judge(frame) for claim, judge in judges().items() if only is None or claim in only)
    return [
        one.with_caveats(caveats(frame)) if one.id in OF_DIFFERENCES and one.table else one for one in found
    ]
