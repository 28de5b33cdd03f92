"""C12: complex networks suffer more from few bits than simple ones."""

from collections.abc import Mapping

import numpy as np

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Unit, contrast, shared_means
from qbayes.lab.analysis.pairs import rows_term, score
from qbayes.lab.analysis.run_groups import Cell, preferred
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import CLAIMS, Above, Comparison, Verdict, judge_each
from qbayes.lab.paper.judge.losses import mean_of

CLAIM = "Complex networks (ResNet) suffer more from few bits than simple ones (LeNet)"
SIMPLE, COMPLEX = "lenet", "resnet"
MOST_BITS = 6  # at 7 and 8 bits on both sides neither loses anything
TIE = 1.0  # per cent of the way from float to chance


@CLAIMS.register("c12_complexity")
def judge(frame: Frame) -> Verdict:
    """A claim of a direction: equal bits bring the complex network further on its way to chance.

    The way is ``(error − float) / (chance − float)``, comparable between tasks; networks on one task are
    compared where a study has them. Nothing pairs their runs (Welch). A complex network that is shown to
    suffer less refutes; less than 1 % of the way is no difference that matters.
    """
    cells = [
        cell
        for cell in preferred(frame)
        if not cell.is_regression and min(cell.weight, cell.activation) <= MOST_BITS
    ]
    simple = _group([cell for cell in cells if cell.network.startswith(SIMPLE)])
    others = _group([cell for cell in cells if cell.network.startswith(COMPLEX)])
    pairs = [(one, two) for one in others for two in simple if one[1:] == two[1:]]
    on_one_task = [(one, two) for one, two in pairs if one[0] == two[0]]
    found = [_compare(frame, others[one], simple[two]) for one, two in on_one_task or pairs]
    comparisons = [one for one in found if one is not None]
    wanted = f"runs of {SIMPLE} and of {COMPLEX} by one method at the same bits, {MOST_BITS} or fewer"
    confounded = "The two networks are on different data, which the claim does not tell apart."
    note = confounded if comparisons and not on_one_task else ""
    return conclude("C12", CLAIM, judge_each(comparisons), figure="equal_bits", wanted=wanted, note=note)


Group = tuple[str, ...]


def _group(cells: list[Cell]) -> dict[Group, dict[str, Cell]]:
    """Cells by task and by what both networks must share, and in it by bits."""
    found: dict[Group, dict[str, Cell]] = {}
    for cell in cells:
        key = (cell.task, cell.method, cell.recipe, cell.scheme, cell.training)
        found.setdefault(key, {})[cell.bits] = cell
    return found


def _compare(frame: Frame, complex_one: Mapping[str, Cell], simple: Mapping[str, Cell]) -> Comparison | None:
    bits = sorted(set(complex_one) & set(simple))
    if not bits:
        return None
    one, two = complex_one[bits[0]], simple[bits[0]]
    rows = (_rows(frame, complex_one, bits), _rows(frame, simple, bits))
    found = contrast(_depths(complex_one, bits), _depths(simple, bits), rows).scaled(100)
    text = f"way to chance at {', '.join(bits)}, {one.network} less {two.network} on {two.task}"
    return Comparison(one.where, one.method, text, "%", found, Above(0.0, TIE))


def _depths(cells: Mapping[str, Cell], bits: list[str]) -> dict[Unit, float]:
    return shared_means([cells[width].depths() for width in bits])


def _rows(frame: Frame, cells: Mapping[str, Cell], bits: list[str]) -> float | None:
    """The error of the mean way over test rows; widths share their rows."""
    return mean_of([_way_rows(frame, cells[width]) for width in bits])


def _way_rows(frame: Frame, cell: Cell) -> float | None:
    found = rows_term(frame, cell.pairs, "error")
    left = [1 - 1 / int(pair.float["classes"]) - score(pair.float, "error") for pair in cell.pairs]
    return None if found is None or min(left) <= 0 else found / float(np.mean(left))
