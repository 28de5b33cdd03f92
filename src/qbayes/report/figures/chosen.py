"""The runs whose single rows are looked at: float, 8, 4 and 3 bits, of the first seed and fold."""

from collections.abc import Mapping

from qbayes.report.chart import FLOAT
from qbayes.report.figures.points import Group, by_method
from qbayes.report.frame import Frame, Row, natural

# For each width the precisions that show it, best first: equal bits, then the paper's sweeps.
WANTED = (("W8A8", "W8A7"), ("W4A4", "W8A4", "W4A7"), ("W3A3", "W8A3", "W3A7"))


def chosen_runs(frame: Frame, group: Group) -> dict[str, dict[str, Row]]:
    """By precision and method, the run of the lowest seed and fold that kept its rows."""
    present = {str(row.get("precision")) for row in group.rows}
    names = [next((name for name in names if name in present), None) for names in WANTED]
    wanted: Mapping[str, tuple[Row, ...]] = {
        FLOAT: group.floats,
        **{name: _of(group, name) for name in names if name is not None},
    }
    found = {
        precision: {method: row for method, some in by_method(rows).items() if (row := _first(frame, some))}
        for precision, rows in wanted.items()
    }
    return {precision: runs for precision, runs in found.items() if runs}


def _of(group: Group, precision: str) -> tuple[Row, ...]:
    return tuple(row for row in group.rows if row.get("precision") == precision)


def _first(frame: Frame, rows: list[Row]) -> Row | None:
    ordered = sorted(rows, key=lambda row: (natural(row.get("seed")), natural(row.get("fold") or 0)))
    return next((row for row in ordered[:3] if frame.details(str(row["run"])) is not None), None)
