"""C11: MCD masks need 1 bit; BBB needs μ, σ and ε at the bits of the weights."""

from collections.abc import Sequence

from qbayes.metrics.scores import metric as metric_named
from qbayes.report.bootstrap import LEVEL, estimate
from qbayes.report.cells import Cell, has_collapsed, option, preferred
from qbayes.report.claims.base import (
    CLAIMS,
    AtMost,
    Comparison,
    Line,
    Outcome,
    Verdict,
    conclude,
    corrected,
    line,
)
from qbayes.report.claims.c3 import rounds_masks
from qbayes.report.claims.margins import ECE, ERROR, NLL, RELATIVE, RMSE, in_units
from qbayes.report.frame import Frame
from qbayes.report.pairs import between

CLAIM = "MC dropout masks need 1 bit; BBB needs μ, σ and ε at the bits of the weights"
MARGINS = {"error": ERROR, "nll": NLL, "ece": ECE, "rmse": RMSE}
NOISE_BITS = 8  # of ε, unless a study says otherwise
ABLATED = ("mask", "noise", "sigma")


@CLAIMS.register("c11")
def judge(frame: Frame) -> Verdict:
    """Masks of one bit must lose nothing against rounded ones; fewer bits of σ or ε must lose something."""
    cells = preferred(frame, _ablation)
    masks, fewer = _mask_pairs(cells), _fewer_pairs(cells)
    tests = len(masks) + len(fewer)
    lines = [_worst_line(*pair, tests, supports="yes") for pair in masks]
    lines += [_worst_line(*pair, tests, supports="no") for pair in fewer]
    missing = [] if masks else ["mcd runs with mask=exact and mask=product at the same bits"]
    missing += [] if fewer else ["bbb runs with fewer bits of ε (noise) or σ (sigma) than of the weights"]
    found = [one for one in lines if one is not None]
    return conclude("C11", CLAIM, found, figure="axes", missing=missing)


def noise_bits(cell: Cell) -> int:
    return _number(option(cell, "noise"), NOISE_BITS)


def sigma_bits(cell: Cell) -> int:
    return _number(option(cell, "sigma"), cell.weight)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() else otherwise


def _ablation(scheme: str) -> bool:
    """The default scheme or the paper's, with no other change than those that this claim is about."""
    preset, *changes = scheme.split(", ")
    return preset in ("default", "paper") and all(one.partition("=")[0] in ABLATED for one in changes)


def _alike(cell: Cell) -> tuple[object, ...]:
    preset = cell.scheme.split(", ")[0]
    return cell.task, cell.network, cell.recipe, preset, cell.training, cell.backend, cell.bits


def _mask_pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell, str]]:
    mine = [cell for cell in cells if cell.method == "mcd"]
    return [
        (exact, rounded, f"{exact.bits}: masks of 1 bit less rounded masks")
        for exact in mine
        for rounded in mine
        if _alike(exact) == _alike(rounded) and rounds_masks(rounded) and not rounds_masks(exact)
    ]


def _fewer_pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell, str]]:
    """Each cell that has fewer bits of ε or of σ than of weights, beside one that has as many."""
    mine = [cell for cell in cells if cell.method == "bbb"]
    found = []
    for few in mine:
        alike = [cell for cell in mine if _alike(cell) == _alike(few)]
        for bits, other, symbol in ((noise_bits, sigma_bits, "ε"), (sigma_bits, noise_bits, "σ")):
            whole = [cell for cell in alike if bits(cell) >= cell.weight and other(cell) == other(few)]
            if bits(few) < few.weight and other(few) >= few.weight and whole:
                full = min(whole, key=bits)
                found.append((few, full, f"{few.bits}: {symbol} of {bits(few)} bits less {bits(full)} bits"))
    return found


def _worst_line(one: Cell, other: Cell, text: str, tests: int, supports: Outcome) -> Line | None:
    """The score in which ``one`` loses most against ``other``, in units of its margin.

    ``supports`` is the outcome where nothing is lost in any score; a loss in any score is its contrary.
    """
    # a network that answers all alike may be well calibrated: where one collapsed, only how often it is wrong
    # can be compared.
    collapsed = any(has_collapsed(pair) for cell in (one, other) for pair in cell.pairs)
    names = ("error", "rmse") if collapsed else tuple(MARGINS)
    compared = [found for name in names if (found := _compared(one, other, name, text)) is not None]
    if not compared:
        return None
    contrary: Outcome = "no" if supports == "yes" else "yes"
    level = corrected(tests * len(compared))
    outcome = _all_in_all(compared, LEVEL, supports, contrary)
    sure = _all_in_all(compared, level, supports, contrary)
    return line(max(compared, key=lambda each: each.strain), outcome, sure == "no")


def _all_in_all(compared: Sequence[Comparison], level: float, lossless: Outcome, loss: Outcome) -> Outcome:
    outcomes = [each.rule.judge(each.found, level) for each in compared]
    return loss if "no" in outcomes else lossless if set(outcomes) == {"yes"} else "unclear"


def _compared(one: Cell, other: Cell, name: str, text: str) -> Comparison | None:
    first, second = one.values(name), other.values(name)
    apart = between(first, second)
    if name in RELATIVE:
        apart = {which: value / second[which] for which, value in apart.items()}
    if not apart:
        return None
    unit, scale = in_units(name)
    subject = f"{one.task} {one.network} {one.method}"
    quantity = f"{text}, {metric_named(name).label}"
    return Comparison(subject, quantity, unit, estimate(apart).scaled(scale), AtMost(MARGINS[name]))
