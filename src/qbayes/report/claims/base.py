"""What a claim's judgement is: a verdict, made of lines with differences and intervals.

A claim is a conjunction of lines: it holds once every line is shown at 95 %, which needs no correction for
their number (an intersection-union test). To refute it takes more than a line that fails at 95 %, since of m
lines some do by chance: one that fails at ``1 − 0.05/m`` (Bonferroni), or more subjects with failing lines
than chance explains. Lines of one subject hang together, so subjects are counted: each fails by chance with
at most ``1 − 0.975^lines``, and so many of them must have a probability below 5 %. Else there is not enough
data.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import bdtrc

from qbayes.registry import Shelf
from qbayes.report.bootstrap import LEVEL, Estimate
from qbayes.report.frame import Frame

Judged = Literal["holds", "does not hold", "not enough data"]
Outcome = Literal["yes", "no", "unclear"]
_NAMED_MISSING = 4
# A difference without end has no interval, and needs none: whether it lies above a limit is plain.
_ENDLESS: dict[float, Outcome] = {math.inf: "yes", -math.inf: "no"}


@dataclass(frozen=True)
class Line:
    """One comparison. ``value``, ``low`` and ``high`` are in ``unit`` (points are 0.01 of a share).

    ``subject`` says whose (task, network, method, bits, scheme), ``quantity`` what of it; ``limit`` is the
    condition as text; ``outcome`` is "yes" where the line supports its claim, "no" where it refutes it.
    ``low`` and ``high`` are the ends of the 95 % interval, None where fewer than two runs give no spread;
    ``runs`` is the number of paired runs behind it. The higher ``strain``, the less it supports the claim;
    ``sure`` marks a "no" that stands as one of all lines.
    """

    subject: str
    quantity: str
    unit: str
    value: float
    low: float | None
    high: float | None
    limit: str
    outcome: Outcome
    runs: int
    strain: float = 0.0
    sure: bool = False

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
    """``figure`` is the name of the figure that shows it; ``missing`` the rows that would help to decide."""

    id: str
    claim: str
    verdict: Judged
    reason: str
    table: tuple[Line, ...]
    figure: str
    missing: tuple[str, ...] = ()


Judge = Callable[[Frame], Verdict]
CLAIMS: Shelf[Judge] = Shelf("claim", "qbayes.report.claims")


@dataclass(frozen=True)
class AtMost:
    """The value is at most ``margin``: improvements always pass, and only a loss beyond the margin refutes.

    It refutes where the loss is shown to be one (above 0) and its best guess is beyond the margin.
    """

    margin: float

    @property
    def limit(self) -> str:
        return f"≤ {self.margin:.3g}"

    def strain(self, value: float) -> float:
        return value / self.margin

    def judge(self, found: Estimate, level: float = LEVEL) -> Outcome:
        low, high = found.bounds(level)
        if low is None or high is None:
            return _ENDLESS.get(-found.value, "unclear")
        if high <= self.margin:
            return "yes"
        return "no" if found.value > self.margin and low > 0 else "unclear"


@dataclass(frozen=True)
class Within:
    """The value stays within ``± margin``."""

    margin: float

    @property
    def limit(self) -> str:
        return f"± {self.margin:.3g}"

    def strain(self, value: float) -> float:
        return abs(value) / self.margin

    def judge(self, found: Estimate, level: float = LEVEL) -> Outcome:
        both = AtMost(self.margin).judge(found, level), AtMost(self.margin).judge(found.scaled(-1), level)
        return "no" if "no" in both else "yes" if both == ("yes", "yes") else "unclear"


@dataclass(frozen=True)
class Above:
    """The value is above ``limit_value``; being shown to lie less than ``tie`` above it refutes as well.

    Without ``supports``, a value above it leaves the line open: something else may have brought it there.
    """

    limit_value: float = 0.0
    tie: float = 0.0
    supports: bool = True

    @property
    def limit(self) -> str:
        return f"> {self.limit_value:.3g}"

    def strain(self, value: float) -> float:
        return self.limit_value - value

    def judge(self, found: Estimate, level: float = LEVEL) -> Outcome:
        low, high = found.bounds(level)
        if low is None or high is None:
            outcome = _ENDLESS.get(found.value, "unclear")
        elif high < self.limit_value + self.tie:
            outcome = "no"
        else:
            outcome = "yes" if low > self.limit_value else "unclear"
        return "unclear" if outcome == "yes" and not self.supports else outcome


Rule = AtMost | Within | Above


@dataclass(frozen=True)
class Comparison:
    """A line before it is judged: the family of all lines must be known first."""

    subject: str
    quantity: str
    unit: str
    found: Estimate
    rule: Rule

    @property
    def strain(self) -> float:
        """What is not a number supports nothing."""
        return math.inf if math.isnan(self.found.value) else self.rule.strain(self.found.value)


def judged(comparisons: Sequence[Comparison]) -> list[Line]:
    """The comparisons as lines, each judged by itself and as one of all of them."""
    level = corrected(len(comparisons))
    return [
        line(one, one.rule.judge(one.found), sure=one.rule.judge(one.found, level) == "no")
        for one in comparisons
    ]


def corrected(lines: int) -> float:
    """The level of each of ``lines`` intervals at which all of them hold together with 95 %."""
    return 1 - (1 - LEVEL) / max(1, lines)


def line(one: Comparison, outcome: Outcome, sure: bool) -> Line:
    found, rule = one.found, one.rule
    return Line(
        subject=one.subject,
        quantity=one.quantity,
        unit=one.unit,
        value=found.value,
        low=found.low,
        high=found.high,
        limit=rule.limit,
        outcome=outcome,
        runs=found.runs,
        strain=one.strain,
        sure=sure and outcome == "no",
    )


def conclude(
    id: str,
    claim: str,
    lines: Iterable[Line],
    *,
    figure: str,
    missing: Iterable[str] = (),
    note: str = "",
) -> Verdict:
    """The verdict over all lines; the reason names the one under the highest strain."""
    table, lacking = tuple(lines), tuple(dict.fromkeys(missing))
    verdict, reason = _decide(table, lacking)
    return Verdict(id, claim, verdict, f"{reason} {note}".strip(), table, figure, lacking)


def _decide(table: tuple[Line, ...], lacking: tuple[str, ...]) -> tuple[Judged, str]:
    against = [one for one in table if one.outcome == "no"]
    total = f"{len(table)} comparison{'s' if len(table) != 1 else ''}"
    if refuted(table):
        return "does not hold", f"Against it: {len(against)} of {total}, most of all {_worst(against).text}."
    if lacking:
        shown = f" {_shown(table)}" if table else ""
        return "not enough data", f"Missing: {_listed(lacking)}.{shown}"
    if against:
        by_chance = f"{len(against)} of {total} speak against it, which chance may explain"
        return "not enough data", f"{by_chance}; most of all {_worst(against).text}."
    undecided = [one for one in table if one.outcome == "unclear"]
    if undecided:
        named = _worst(undecided)
        return "not enough data", f"{_shown(table)} Cannot be told ({_doubt(named)}): {named.text}."
    return "holds", f"All of {total} agree; the weakest is {_worst(table).text}."


def _doubt(undecided: Line) -> str:
    if math.isnan(undecided.value):
        return "scores that are not finite have no difference"
    return "one run gives no spread" if undecided.low is None else "the interval is too wide"


def refuted(table: Sequence[Line]) -> bool:
    """One line that is sure, or more failing subjects than chance explains."""
    if any(one.sure for one in table):
        return True
    sizes = Counter(one.subject for one in table)
    failing = {one.subject for one in table if one.outcome == "no"}
    chances = [1 - ((1 + LEVEL) / 2) ** size for size in sizes.values()]
    if not failing:
        return False
    # P(as many or more of n) at the mean chance, which spreads more than unequal chances do (Hoeffding, 1956)
    return float(bdtrc(len(failing) - 1, len(sizes), sum(chances) / len(chances))) < 1 - LEVEL


def _worst(lines: Iterable[Line]) -> Line:
    return max(lines, key=lambda one: (one.strain, one.text))


def _shown(table: tuple[Line, ...]) -> str:
    agreeing = sum(one.outcome == "yes" for one in table)
    return f"{agreeing} of {len(table)} comparison{'s' if len(table) != 1 else ''} agree."


def _listed(lacking: tuple[str, ...]) -> str:
    more = len(lacking) - _NAMED_MISSING
    return "; ".join(lacking[:_NAMED_MISSING]) + (f"; and {more} more" if more > 0 else "")
