"""Rows of synthetic studies for ``judge_truths``: what is true of each run, and noise around it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qbayes.lab.analysis.frame import Frame
from qbayes.tasks.shifts import LEVELS

Bits = tuple[int, int]
Made = dict[str, Any]
BAYESIAN = ("mcd", "bbb", "sghmc")
METHODS = ("pointwise", *BAYESIAN)
SEEDS, ROWS = 3, 10_000
# float scores of every method, and the noise of a score in shares of it: of a seed, and of the test rows.
CLEAN = {"error": 0.08, "nll": 0.3, "ece": 0.03, "entropy": 0.2, "confusion/entropy": 1.0}
UNDER_SHIFT = {"error": 0.3, "nll": 1.2, "ece": 0.15, "entropy": 0.6}
OF_SEED, OF_ROWS = 0.006, 0.006
LATENCY = "latency"
SHIFTS = {
    f"{shift}/{level}/{name}": value
    for shift in LEVELS
    for level in range(1, 6)
    for name, value in UNDER_SHIFT.items()
}


@dataclass(frozen=True)
class Condition:
    """What is true of one method at one precision; ``falls`` is the chance of a run to have ``fallen``."""

    method: str
    bits: Bits | None
    scores: Mapping[str, float]
    columns: Mapping[str, Any]
    fallen: Mapping[str, float] = field(default_factory=dict[str, float])
    falls: float = 0.0


@dataclass(frozen=True)
class Truth:
    """``right`` are the verdicts that are true of it, besides "not enough data"."""

    name: str
    right: tuple[str, ...]
    conditions: tuple[Condition, ...]
    seeds: int = SEEDS

    def study(self, generator: np.random.Generator) -> Frame:
        """One study: every score with the noise of its seed and, the same for all seeds, of the rows."""
        rows = [row for one in self.conditions for row in self._runs(one, generator)]
        return Frame("made", "", {}, tuple(rows), planned=len(rows))

    def _runs(self, one: Condition, generator: np.random.Generator) -> Iterable[Made]:
        # a time has no test rows.
        of_rows = {name: generator.normal(0, OF_ROWS) for name in one.scores if name != LATENCY}
        for seed in range(self.seeds):
            scores = {**one.scores, **(one.fallen if generator.random() < one.falls else {})}
            moved = {
                name: abs(value * (1 + of_rows.get(name, 0.0) + generator.normal(0, OF_SEED)))
                for name, value in scores.items()
            }
            # a quantised run records the error of its difference to float, in which both vary.
            share = OF_ROWS if one.bits is None else math.sqrt(2) * OF_ROWS
            errors = {f"row_error/{name}": share * value for name, value in scores.items() if name in of_rows}
            yield _row(one, seed) | moved | errors


def _row(one: Condition, seed: int) -> Made:
    given = {"task": "mnist", "network": "lenet", "scheme": "default", **one.columns}
    where = f"{given['task']} {given['network']} {one.method} {seed}"
    weight, activation = one.bits or (32, 32)
    precision = "float" if one.bits is None else f"W{weight}A{activation}"
    return {
        "run": f"{where} {precision} {given['scheme']}",
        "float": where,
        "fold": None,
        "method": one.method,
        "recipe": "default",
        "seed": seed,
        "draws": 20,
        "weight": weight,
        "activation": activation,
        "precision": precision,
        "training": "float" if one.bits is None else "trained",
        "backend": "float" if one.bits is None else "reference",
        "status": "done",
        "classes": 10,
        "test_rows": ROWS,
        "bytes": 4000 if one.bits is None else 4000 * weight // 32,
        **given,
    }


def runs(
    method: str,
    quantised: Mapping[Bits, Mapping[str, float]],
    base: Mapping[str, float] = CLEAN,
    **columns: Any,
) -> list[Condition]:
    """A method in float and at each precision; scores that are not named are those of float."""
    own = {**columns, "scheme": "float"} if "scheme" not in columns else columns
    found = [Condition(method, None, base, own)]
    plain = {"scheme": "default", **columns}
    return found + [Condition(method, bits, {**base, **scores}, plain) for bits, scores in quantised.items()]


def truth(name: str, right: Sequence[str] | str, *some: Iterable[Condition], **more: Any) -> Truth:
    right = (right,) if isinstance(right, str) else tuple(right)
    return Truth(name, right, tuple(one for each in some for one in each), **more)


def times(scores: Mapping[str, float], **factors: float) -> dict[str, float]:
    """Some scores multiplied: ``times(SHIFTS, ece=1.3)`` at every level of every shift."""
    return {
        name: value * factors[kind]
        for name, value in scores.items()
        if (kind := name.rsplit("/", 1)[-1]) in factors
    }
