"""The runs whose single rows are looked at: float, 8, 4 and 3 bits, of the first seed and fold."""

from collections.abc import Sequence

from qbayes.lab.analysis.frame import Frame, Row, natural
from qbayes.lab.report.charts.chart import FLOAT
from qbayes.lab.report.charts.groups import Group

# For each width the precisions that show it, best first: equal bits, then the paper's sweeps.
WANTED = (("W8A8", "W8A7"), ("W4A4", "W8A4", "W4A7"), ("W3A3", "W8A3", "W3A7"))


def chosen_runs(frame: Frame, group: Group) -> dict[str, dict[str, Row]]:
    """By precision and method, the run of the lowest seed and fold that kept its rows."""
    names = [next((name for name in names if name in group.bits), None) for names in WANTED]
    found = {
        precision: {
            method: row
            for method, precisions in group.methods.items()
            if precision in precisions and (row := _first(frame, precisions[precision].rows))
        }
        for precision in (FLOAT, *filter(None, names))
    }
    return {precision: runs for precision, runs in found.items() if runs}


def _first(frame: Frame, rows: Sequence[Row]) -> Row | None:
    ordered = sorted(rows, key=lambda row: (natural(row.get("seed")), natural(row.get("fold") or 0)))
    return next((row for row in ordered[:3] if frame.details(str(row["run"])) is not None), None)
