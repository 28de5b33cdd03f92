"""What a comparison must show: rules that turn an interval into an outcome, or into chances of one.

A rule looks at where the whole 95 % interval lies, so that each outcome is wrong in at most 2.5 % of studies:

    yes      the interval supports the claim
    same     it lies within the margin: no difference that matters
    no       it lies wholly on the other side
    unclear  anything else
"""

import math
from dataclasses import dataclass
from typing import Literal

from qbayes.lab.analysis.intervals import LEVEL, Estimate, Share

Outcome = Literal["yes", "same", "no", "unclear"]
Found = Estimate | Share
# An end of the 95 % interval is exceeded by chance in so many studies.
TAIL = (1 - LEVEL) / 2
NEVER = 1.0


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
