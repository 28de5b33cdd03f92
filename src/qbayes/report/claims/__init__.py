"""The paper's claims C1 … C12, one file each, judged from a study's own numbers."""

from qbayes.report.claims.base import CLAIMS, Judge, Line, Outcome, Verdict
from qbayes.report.frame import Frame, natural

__all__ = ["CLAIMS", "Judge", "Line", "Outcome", "Verdict", "judge_all"]


def judge_all(frame: Frame) -> list[Verdict]:
    """The verdicts in the order C1 … C12."""
    return [CLAIMS[name](frame) for name in sorted(CLAIMS, key=natural)]
