"""The paper's claims C1 … C12 and one of ours, C13: one file each, judged from a study's own numbers."""

from collections.abc import Collection

from qbayes.report.caveats import caveats
from qbayes.report.claims.base import CLAIMS, JUDGED, Judge, Judged, Line, Verdict
from qbayes.report.claims.rules import Outcome
from qbayes.report.frame import Frame, natural

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
]

OURS = ("C13",)  # claims that the paper does not make
# those that rest on differences to float so small that training, code or a processor may have made them.
OF_DIFFERENCES = ("C1", "C5", "C6", "C7", "C8", "C9", "C12", "C13")


def judge_all(frame: Frame, only: Collection[str] | None = None) -> list[Verdict]:
    """The verdicts in the order C1 … C13, each with what the study cannot judge.

    Args:
        frame: The rows of a study.
        only: The claims to judge, as ``C3``; all of them without it.
    """
    names = [name for name in sorted(CLAIMS, key=natural) if only is None or name.upper() in only]
    found = (CLAIMS[name](frame) for name in names)
    return [
        one.with_caveats(caveats(frame)) if one.id in OF_DIFFERENCES and one.table else one for one in found
    ]
