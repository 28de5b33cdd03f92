"""Losses over widths as claims compare them, and where methods collapse (the claims C2, C3 and C4).

A run has collapsed where its error is above the midpoint between float and chance, or its RMSE above 0.9 of
the target's deviation; a method has, where most of its runs have. Runs are counted, so that the bounds are
those of a binomial share. Each fine-tuning is one trial; over several tasks each task is one, by most of its
runs, because its splits go together. Six trials of one mind are needed to tell: three seeds that all
collapse are seen in one case of eight where only half of all would.

Fewer bits are never easier. So "collapses at A ≤ 3" says that it does at 3:

- It is supported by runs at 3 bits on that side and 7 or more on the other, which did not bring them down.
- It is refuted by runs that stand at 3 bits or fewer on that side, whatever the other side has.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Estimate, Share, Unit, combine, estimate, shared_means
from qbayes.lab.analysis.pairs import Pair, between, overlap, rows_term
from qbayes.lab.analysis.run_groups import Cell, has_collapsed
from qbayes.lab.paper.judge.judgement import NEVER, Above, Chances, Comparison, Line, line

Sweep = Mapping[int, Cell]
Side = Literal["activation", "weight"]
MOST = 50.0  # per cent: a method has collapsed where most of its runs have
ENOUGH_BITS = 7  # the other side is not what brings a network down


def loss_rows(frame: Frame, cell: Cell) -> float | None:
    """The error over test rows of ``Cell.losses``: points of error, or per cent of RMSE."""
    metric = "rmse" if cell.is_regression else "error"
    found = rows_term(frame, cell.pairs, metric, relative=cell.is_regression)
    return None if found is None else 100 * found


def unit_of(cell: Cell) -> str:
    return "% of RMSE" if cell.is_regression else "points"


def mean_loss(sweep: Sweep, widths: Sequence[int]) -> dict[Unit, float]:
    """The mean over some widths of each run's loss."""
    return shared_means([sweep[width].losses() for width in widths])


def mean_rows(frame: Frame, sweep: Sweep, widths: Sequence[int]) -> float | None:
    """Its error over rows: widths share their rows, so that the mean of their errors is an upper bound."""
    return mean_of([loss_rows(frame, sweep[width]) for width in widths])


def mean_of(errors: Sequence[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return sum(known) / len(known) if known and len(known) == len(errors) else None


def apart(
    first: Mapping[Unit, float], second: Mapping[Unit, float], rows: Sequence[float | None], cell: Cell
) -> Estimate | None:
    """``first − second`` of the same runs; None where they share none."""
    values = between(first, second)
    return estimate(values, combine(rows), overlap(cell.pairs)) if values else None


@dataclass(frozen=True)
class Part:
    """``method`` is said to collapse at ``bits`` or fewer on one side."""

    method: str
    side: Side
    bits: int

    @property
    def other_side(self) -> Side:
        return "weight" if self.side == "activation" else "activation"

    @property
    def text(self) -> str:
        return f"{self.method} at {self.side[0].upper()} ≤ {self.bits}"


def collapses(part: Part, cells: Iterable[Cell], subject: str | None = None) -> list[Line]:
    """One line for each network, scheme and recipe; cells of several tasks are one line, over tasks."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.method == part.method and getattr(cell, part.side) <= part.bits and _stands_in_float(cell):
            groups.setdefault((cell.network, cell.scheme, cell.recipe, cell.training), []).append(cell)
    return [_line(part, group, subject) for group in groups.values()]


def collapses_of_all(
    parts: Iterable[Part], cells: Sequence[Cell], runs: str, subject: str | None = None
) -> tuple[list[Line], list[str]]:
    """The lines of every part, and the runs that are missing: those of parts without any line."""
    found = {part: collapses(part, cells, subject) for part in parts}
    missing = [f"{runs} runs of {part.text}" for part, lines in found.items() if not lines]
    return [each for lines in found.values() for each in lines], missing


def _line(part: Part, cells: Sequence[Cell], subject: str | None) -> Line:
    """By the runs at the bits that the claim names, or by all where those speak against it."""
    here = [cell for cell in cells if getattr(cell, part.side) == part.bits]
    named = [cell for cell in here if getattr(cell, part.other_side) >= ENOUGH_BITS]
    at, all_of_them = share_collapsed(named), share_collapsed(cells)
    rule = Above(MOST, supports=bool(named))
    no = rule.chances(all_of_them).no
    chances = Chances(yes=rule.chances(at).yes if named else NEVER, no=no)
    shown, of = (at, named) if named and chances.outcome != "no" else (all_of_them, cells)
    where = cells[0].where if subject is None else cells[0].where.replace(cells[0].task, subject, 1)
    bits = ", ".join(dict.fromkeys(cell.bits for cell in of))
    trials = f"{shown.count} of {shown.runs} {'tasks' if _several_tasks(of) else 'runs'}"
    quantity = f"collapsed at {bits}: {trials} ({_mean_score(of)})"
    return line(Comparison(where, part.method, quantity, "%", shown, rule), chances)


def share_collapsed(cells: Sequence[Cell]) -> Share:
    """The runs that collapsed; over several tasks the tasks of which most runs did."""
    fallen: dict[str, list[bool]] = {}
    for cell in cells:
        fallen.setdefault(cell.task, []).extend(map(has_collapsed, cell.pairs))
    if _several_tasks(cells):
        return Share(sum(2 * sum(runs) > len(runs) for runs in fallen.values()), len(fallen))
    (runs,) = fallen.values() or ([],)
    return Share(sum(runs), len(runs))


def _several_tasks(cells: Sequence[Cell]) -> bool:
    return len({cell.task for cell in cells}) > 1


def _stands_in_float(cell: Cell) -> bool:
    """A float run that is itself no better than an answer without the input says nothing about bits."""
    return not all(has_collapsed(Pair(pair.float, pair.float)) for pair in cell.pairs)


def _mean_score(cells: Sequence[Cell]) -> str:
    if cells[0].is_regression:
        ratios = [value for cell in cells for value in cell.depths().values()]
        return f"RMSE {np.mean(ratios):.2f} of the deviation" if ratios else "RMSE unknown"
    return f"error {np.mean([value for cell in cells for value in cell.values('error').values()]):.1%}"
