"""What a claim's judgement is: a verdict, made of lines with differences and intervals."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Covers
from qbayes.lab.paper.judge.rules import Chances, Found, Outcome, Rule
from qbayes.registry import Registry

Judged = Literal["holds", "does not hold", "no difference that matters", "not enough data"]
JUDGED: tuple[Judged, ...] = ("holds", "does not hold", "no difference that matters", "not enough data")


@dataclass(frozen=True)
class Line:
    """One comparison. ``value``, ``low`` and ``high`` are in ``unit`` (points are 0.01 of a share).

    ``subject`` says whose (task, network, method, bits, scheme), ``method`` whose verdict it counts for,
    ``quantity`` what of it; ``limit`` is the condition as text. ``outcome`` is "yes" where the line supports
    its claim, "same" where it shows no difference that matters, "no" where it refutes it. ``low`` and
    ``high`` are the ends of the 95 % interval, None where there is no spread; ``covers`` says of what.
    ``runs`` is the number of paired runs behind it. The higher ``strain``, the less it supports the claim.
    """

    subject: str
    method: str
    quantity: str
    unit: str
    value: float
    low: float | None
    high: float | None
    limit: str
    outcome: Outcome
    runs: int
    covers: Covers
    chances: Chances
    strain: float = 0.0

    @property
    def text(self) -> str:
        """``mnist lenet mcd W8A7: error +0.05 points [−0.02, +0.12]``."""
        ends = "" if self.low is None or self.high is None else f" [{signed(self.low)}, {signed(self.high)}]"
        return f"{self.subject}: {self.quantity} {signed(self.value)} {self.unit}".rstrip() + ends


def signed(value: float) -> str:
    """With its sign and three digits; a true minus."""
    return "not a number" if math.isnan(value) else f"{value:+.3g}".replace("-", "−").replace("inf", "∞")


@dataclass(frozen=True)
class Verdict:
    """What a study says of a claim.

    ``methods`` has the verdict of each method on its own lines, ``figure`` the name of the figure that shows
    it, ``missing`` the rows that would help to decide, ``caveats`` what the study cannot judge all the same.
    """

    id: str
    claim: str
    verdict: Judged
    reason: str
    table: tuple[Line, ...]
    figure: str
    missing: tuple[str, ...] = ()
    methods: tuple[tuple[str, Judged], ...] = ()
    caveats: tuple[str, ...] = ()

    def with_caveats(self, caveats: Sequence[str]) -> "Verdict":
        return replace(self, caveats=(*self.caveats, *caveats))


Judge = Callable[[Frame], Verdict]
CLAIMS: Registry[Judge] = Registry("claim", "qbayes.lab.paper.claims")


@dataclass(frozen=True)
class Comparison:
    """What was found and what it must show, before it is judged."""

    subject: str
    method: str
    quantity: str
    unit: str
    found: Found
    rule: Rule


def judged(comparisons: Sequence[Comparison]) -> list[Line]:
    """The comparisons as lines, each judged by its own interval."""
    return [line(one, one.rule.chances(one.found)) for one in comparisons]


def line(one: Comparison, chances: Chances) -> Line:
    found = one.found
    return Line(
        subject=one.subject,
        method=one.method,
        quantity=one.quantity,
        unit=one.unit,
        value=found.value,
        low=found.low,
        high=found.high,
        limit=one.rule.limit,
        outcome=chances.outcome,
        runs=found.runs,
        covers=found.covers,
        chances=chances,
        # what is not a number supports nothing.
        strain=math.inf if math.isnan(found.value) else one.rule.strain(found.value),
    )
