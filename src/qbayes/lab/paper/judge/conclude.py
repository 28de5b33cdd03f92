"""From lines to a verdict, over all of them and for each method.

A claim is a conjunction of its lines.

- It **holds** once every line supports it at 95 %. That needs no correction for their number: for a claim
  that is false in one line, that line must fail to show it (an intersection-union test; Berger, 1982).
- It **does not hold** once some line's whole interval lies on the other side, and the lines together show
  that this is not chance. Of m lines some fail by chance, so the k-th smallest chance must be at most
  ``0.05 · k / m`` for some k (Simes, 1986), which is exact for independent lines and safe for lines that go
  together. One clear line refutes as by Bonferroni, and so do many weak ones, which under Bonferroni say
  nothing.
- It shows **no difference that matters** once every line is decided, none is contrary, and the lines together
  show that at least one lies within its margin: a conjunction is as strong as its weakest line. Where all lie
  within it, no correction is needed; where some do, Simes' again.
- Else there is **not enough data**; so it is where rows are missing that the claim speaks of, unless what is
  there refutes it.

A method's verdict is the same, of the lines that are about it.
"""

import math
from collections.abc import Iterable, Sequence

from qbayes.lab.analysis.checks import list_some
from qbayes.lab.analysis.intervals import LEVEL
from qbayes.lab.paper.judge.judgement import NEVER, Judged, Line, Outcome, Verdict

# All lines of a claim together err in so many studies.
TOGETHER = 1 - LEVEL


def conclude(
    id: str,
    claim: str,
    lines: Iterable[Line],
    *,
    figure: str,
    missing: Iterable[str] = (),
    missing_of_each: Iterable[str] = (),
    wanted: str = "",
    note: str = "",
) -> Verdict:
    """The verdict over all lines and that of each method; the reason names the line of the highest strain.

    Args:
        id: ``C1`` …
        claim: The claim in words.
        lines: All comparisons.
        figure: The name of the figure that shows them.
        missing: Rows that the claim speaks of and the study lacks. A method that has its own is judged.
        missing_of_each: The same, where it keeps each method from being judged as well.
        wanted: What is missing where there is nothing to compare.
        note: A sentence behind the reason.
    """
    table = tuple(lines)
    of_each = tuple(dict.fromkeys(missing_of_each))
    nothing = [wanted] if wanted and not table else []
    lacking = tuple(dict.fromkeys([*missing, *nothing, *of_each]))
    verdict, reason = decide(table, lacking)
    names = sorted({one.method for one in table})
    apart = ((name, [one for one in table if one.method == name]) for name in names)
    methods: list[tuple[str, Judged]] = [(name, decide(lines, of_each)[0]) for name, lines in apart]
    reason = f"{reason} {note}".strip()
    return Verdict(id, claim, verdict, reason, table, figure, lacking, tuple(methods), caveats_of(table))


def decide(table: Sequence[Line], lacking: Sequence[str] = ()) -> tuple[Judged, str]:
    """The verdict and why."""
    by: dict[Outcome, list[Line]] = {"yes": [], "same": [], "no": [], "unclear": []}
    for one in table:
        by[one.outcome].append(one)
    total = _count(table)
    if refuted(table):
        against = f"Against it: {len(by['no'])} of {total}, most of all {_worst(by['no']).text}."
        equal = f" No difference that matters in {len(by['same'])}." if by["same"] else ""
        return "does not hold", against + equal
    if lacking:
        shown = f" {_summarize(table)}" if table else ""
        return "not enough data", f"Missing: {list_some(lacking)}.{shown}"
    if not table:
        return "not enough data", "There is nothing to compare."
    if by["no"]:
        by_chance = f"{len(by['no'])} of {total} speak against it, which chance may explain"
        return "not enough data", f"{by_chance}; most of all {_worst(by['no']).text}."
    if by["unclear"]:
        named = _worst(by["unclear"])
        return "not enough data", f"{_summarize(table)} Cannot be told ({_doubt(named)}): {named.text}."
    if not by["same"]:
        return "holds", f"All of {total} agree; the weakest is {_worst(table).text}."
    if len(by["same"]) == len(table):
        return "no difference that matters", f"In none of {total}; the largest is {_largest(table).text}."
    if together([one.chances.same for one in table]) <= TOGETHER:
        equal = f"In {len(by['same'])} of {total}; the largest is {_largest(by['same']).text}."
        return "no difference that matters", f"{equal} {len(by['yes'])} agree."
    named = _worst(by["same"])
    return "not enough data", f"{_summarize(table)} Whether they are cannot be told: {named.text}."


def refuted(table: Sequence[Line]) -> bool:
    """Whether the lines together show that one of them is contrary."""
    against = [NEVER if one.outcome == "same" else one.chances.no for one in table]
    return any(one.outcome == "no" for one in table) and together(against) <= TOGETHER


def together(chances: Sequence[float]) -> float:
    """Simes' chance to see all of these where nothing is true: the least of ``m · p / rank``."""
    ordered = sorted(chances)
    return min((len(ordered) * chance / rank for rank, chance in enumerate(ordered, start=1)), default=NEVER)


def caveats_of(table: Sequence[Line]) -> tuple[str, ...]:
    """What the intervals of the lines do not hold."""
    covers = [one.covers for one in table]
    rows, runs = covers.count("rows"), covers.count("runs")
    total = _count(table)
    alone = f"One seed in {rows} of {total}: their intervals are over test rows and say nothing of training."
    unsaid = f"not in the intervals of {runs} of {total}: the rows of results do not say them."
    caveats = ((alone, rows), (f"The test rows are {unsaid}", runs))
    return tuple(words for words, count in caveats if count)


def _doubt(undecided: Line) -> str:
    if math.isnan(undecided.value):
        return "scores that are not finite have no difference"
    if undecided.low is None:
        return "one run gives no spread" if undecided.runs <= 1 else "the runs have no spread"
    return "the interval is too wide"


def _worst(lines: Iterable[Line]) -> Line:
    return max(lines, key=lambda one: (one.strain, one.text))


def _largest(lines: Iterable[Line]) -> Line:
    return max(lines, key=lambda one: (abs(one.value), one.text))


def _summarize(table: Sequence[Line]) -> str:
    agreeing = sum(one.outcome == "yes" for one in table)
    same = sum(one.outcome == "same" for one in table)
    equal = f", {same} show no difference that matters" if same else ""
    return f"{agreeing} of {_count(table)} agree{equal}."


def _count(table: Sequence[Line]) -> str:
    return f"{len(table)} comparison{'s' if len(table) != 1 else ''}"
