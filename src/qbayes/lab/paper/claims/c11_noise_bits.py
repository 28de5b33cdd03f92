"""C11: MCD masks need 1 bit; BBB needs μ, σ and ε at the bits of the weights."""

import math
from collections.abc import Sequence
from dataclasses import replace

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import combine, estimate
from qbayes.lab.analysis.pairs import between, overlap, resample_error, rows_term
from qbayes.lab.analysis.run_groups import Cell, has_collapsed, option, preferred
from qbayes.lab.paper.claims.c03_mask_collapse import rounds_masks
from qbayes.lab.paper.judge.conclude import conclude
from qbayes.lab.paper.judge.judgement import (
    CLAIMS,
    NEVER,
    TAIL,
    Above,
    AtMost,
    Chances,
    Comparison,
    Line,
    Verdict,
    judge_each,
    line,
)
from qbayes.lab.paper.judge.margins import RELATIVE, in_units, margin_of
from qbayes.metrics.scores import metric as metric_named

CLAIM = "MC dropout masks need 1 bit; BBB needs μ, σ and ε at the bits of the weights"
SCORES = ("error", "nll", "ece", "rmse")
NOISE_BITS = 8  # of ε, unless a study says otherwise
ABLATED = ("mask", "noise", "sigma")


@CLAIMS.register("c11_noise_bits")
def judge(frame: Frame) -> Verdict:
    """Masks of one bit lose nothing against rounded ones; fewer bits of σ or ε lose something.

    - Masks, a claim of equality: the loss of one bit must be shown to be smaller than its margin in every
      score; one that is shown to be larger in any refutes.
    - σ and ε, a claim of a direction: with fewer bits than the weights some score must be shown to be worse,
      at a level corrected for the number of scores. Where each is worse by less than its margin, if at all,
      the bits make no difference that matters: they are not needed. If one of them is then better by more
      than its margin, that refutes.
    """
    cells = preferred(frame, _ablation)
    masks, fewer = _mask_pairs(cells), _fewer_pairs(cells)
    lines = judge_each([found for pair in masks for found in _scores(frame, *pair)])
    lines += [found for pair in fewer for found in _any_worse(_scores(frame, *pair))]
    missing = [] if masks else ["mcd runs with mask=exact and mask=product at the same bits"]
    missing += [] if fewer else ["bbb runs with fewer bits of ε (noise) or σ (sigma) than of the weights"]
    return conclude("C11", CLAIM, lines, figure="axes", missing=missing)


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


def _any_worse(compared: Sequence[Comparison]) -> list[Line]:
    """One line of all scores, that of the largest loss in units of its margin."""
    if not compared:
        return []
    found = [one.found for one in compared]
    rules = [one.rule for one in compared if isinstance(one.rule, AtMost)]
    lossless = max(one.chance_below(rule.margin) for one, rule in zip(found, rules, strict=True))
    better = len(found) * min(one.chance_below(-rule.margin) for one, rule in zip(found, rules, strict=True))
    refutes = max(lossless, min(NEVER, better))
    chances = Chances(
        yes=min(NEVER, len(found) * min(one.chance_above(0.0) for one in found)),
        same=NEVER if refutes <= TAIL else lossless,
        no=refutes,
    )
    worst, rule = max(zip(compared, rules, strict=True), key=lambda pair: _strain(pair[0]))
    return [line(replace(worst, rule=Above(0.0, tie=rule.margin)), chances)]


def _strain(one: Comparison) -> float:
    return -math.inf if math.isnan(one.found.value) else one.rule.strain(one.found.value)


def _scores(frame: Frame, one: Cell, other: Cell, text: str) -> list[Comparison]:
    """What ``one`` loses against ``other`` in every score that may be compared."""
    # a network that answers all alike may be well calibrated: where one collapsed, only how often it is wrong
    # can be compared.
    collapsed = any(has_collapsed(pair) for cell in (one, other) for pair in cell.pairs)
    names = ("error", "rmse") if collapsed else SCORES
    found = (_compare(frame, one, other, name, text) for name in names)
    return [each for each in found if each is not None]


def _compare(frame: Frame, one: Cell, other: Cell, name: str, text: str) -> Comparison | None:
    first, second = one.values(name), other.values(name)
    apart = between(first, second)
    if name in RELATIVE:
        apart = {which: value / second[which] for which, value in apart.items()}
    if not apart:
        return None
    unit, scale = in_units(name)
    found = estimate(apart, _rows(frame, one, other, name), overlap(one.pairs)).scaled(scale)
    rule = AtMost(margin_of([pair.quantised for pair in other.pairs], (name,)))
    subject = f"{one.task} {one.network} {one.method}"
    return Comparison(subject, one.method, f"{text}, {metric_named(name).label}", unit, found, rule)


def _rows(frame: Frame, one: Cell, other: Cell, name: str) -> float | None:
    """The error of their difference over test rows: resampled where details were kept for all."""
    after, before = ({pair.unit: pair.quantised for pair in cell.pairs} for cell in (one, other))
    runs = [(before[which], after[which]) for which in after if which in before]
    resampled = resample_error(frame, runs, name, relative=name in RELATIVE)
    return resampled or combine(
        rows_term(frame, cell.pairs, name, relative=name in RELATIVE) for cell in (one, other)
    )
