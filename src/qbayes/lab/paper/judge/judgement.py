"""What a comparison must show, and what becomes of it: rules, lines with intervals, a verdict.

Rules turn an interval into an outcome, or into chances of one.

A rule looks at where the whole 95 % interval lies, so that each outcome is wrong in at most 2.5 % of studies:

    yes      the interval supports the claim
    same     it lies within the margin: no difference that matters
    no       it lies wholly on the other side
    unclear  anything else
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import LEVEL, Covers, Estimate, Share
from qbayes.registry import Registry

Outcome = Literal["yes", "same", "no", "unclear"]
Found = Estimate | Share
# An end of the 95 % interval is exceeded by chance in so many studies.
TAIL = (1 - LEVEL) / 2
NEVER = 1.0
Judged = Literal["holds", "does not hold", "no difference that matters", "not enough data"]
JUDGED: tuple[Judged, ...] = ("holds", "does not hold", "no difference that matters", "not enough data")


@dataclass(frozen=True)
class Chances:
    """For each outcome the chance to see so much of it where it is not true: at most ``TAIL`` shows it."""

    yes: float = NEVER
    same: float = NEVER
    no: float = NEVER

    @property
    def outcome(self) -> Outcome:
        if self.same <= TAIL:
            return "same"
        return "yes" if self.yes <= TAIL else "no" if self.no <= TAIL else "unclear"


@dataclass(frozen=True)
class AtMost:
    """The value is at most ``margin``: improvements always pass, one shown to be larger refutes."""

    margin: float

    @property
    def limit(self) -> str:
        return f"≤ {self.margin:.3g}"

    def strain(self, value: float) -> float:
        return _share(value, self.margin)

    def chances(self, found: Found) -> Chances:
        return Chances(yes=found.chance_below(self.margin), no=found.chance_above(self.margin))


@dataclass(frozen=True)
class Within:
    """The value stays within ``± margin``; one shown to lie outside refutes."""

    margin: float

    @property
    def limit(self) -> str:
        return f"± {self.margin:.3g}"

    def strain(self, value: float) -> float:
        return _share(abs(value), self.margin)

    def chances(self, found: Found) -> Chances:
        above, below = found.chance_above, found.chance_below
        return Chances(
            yes=max(below(self.margin), above(-self.margin)), no=min(above(self.margin), below(-self.margin))
        )


@dataclass(frozen=True)
class Above:
    """The value is above ``limit_value``; less than ``tie`` around it is no difference that matters.

    Without ``supports``, a value above it leaves the line open: something else may have brought it there.
    """

    limit_value: float = 0.0
    tie: float = 0.0
    supports: bool = True

    @property
    def limit(self) -> str:
        return f"> {self.limit_value:.3g}" + (f", equal within {self.tie:.3g}" if self.tie else "")

    def strain(self, value: float) -> float:
        return self.limit_value - value

    def chances(self, found: Found) -> Chances:
        yes = found.chance_above(self.limit_value) if self.supports else NEVER
        return Chances(yes=yes, same=self._same(found), no=found.chance_below(self.limit_value))

    def _same(self, found: Found) -> float:
        """The larger of two one-sided tests: both ends must lie within the tie."""
        low, high = self.limit_value - self.tie, self.limit_value + self.tie
        return max(found.chance_above(low), found.chance_below(high)) if self.tie else NEVER


Rule = AtMost | Within | Above


def _share(value: float, margin: float) -> float:
    return value / margin if margin else math.copysign(math.inf, value) if value else 0.0


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
        low, high = self.low, self.high
        ends = "" if low is None or high is None else f" [{with_sign(low)}, {with_sign(high)}]"
        return f"{self.subject}: {self.quantity} {with_sign(self.value)} {self.unit}".rstrip() + ends


def with_sign(value: float) -> str:
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


def judge_each(comparisons: Sequence[Comparison]) -> list[Line]:
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
