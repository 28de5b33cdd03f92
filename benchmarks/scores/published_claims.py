"""The claims on a page: the verdicts of ``qbayes.lab.paper.claims``, from the published rows."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from published_numbers import Lines, Missing, Studies, table

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.pairs import caveats
from qbayes.lab.paper.claims import OF_DIFFERENCES, Verdict, judge_all

# Those that the rows of a page can speak to; the others are about other tasks.
OF_PAGE = {
    "uci": ("C1", "C2", "C6", "C7", "C10", "C11"),
    "mnist": ("C1", "C3", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C13"),
    "cifar10": ("C1", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13"),
}
RECIPES = {"": "ours", "-paper": "the paper's", "-mask": "masks"}
# These compare schemes or networks: rows of all studies of a page are judged together; digits with those on
# the noise.
TOGETHER = ("C3", "C11", "C12")
BESIDE = {"mnist": "noise-bits"}
ALL = "all"
HOW = "How a claim is judged, and which difference matters: [here](index.md#how-claims-are-judged)."
Found = Mapping[str, Mapping[str, Verdict]]


def claims(studies: Studies, page: str) -> Lines:
    """Each claim by each recipe's rows, whole and by method; then what these rows cannot judge."""
    frames = frames_of(studies, page)
    if not frames:
        raise Missing(f"no rows of {page}")
    return judged(frames, verdicts(studies, page), OF_PAGE[page])


def judged(frames: Mapping[str, Frame], found: Found, wanted: Sequence[str]) -> Lines:
    """The verdicts as a table; a claim of which no rows speak is named below."""
    spoken = [id for id in wanted if any(id in of and of[id].table for of in found.values())]
    rows = [row for id in spoken for row in _lines(id, found)]
    silent = [id for id in wanted if id not in spoken]
    legend = [f"No rows here speak of {', '.join(silent)}.", ""] if silent else []
    head = ["", "claim", "recipe", "verdict", "by method", "why"]
    said = _cannot_judge(frames, found, wanted)
    return [*table(head, rows), "", *legend, HOW, *(["", *said] if said else [])]


@lru_cache(maxsize=8)
def verdicts(studies: Studies, page: str) -> Found:
    """The verdicts of a page of one study a recipe; empty without rows."""
    frames, other = frames_of(studies, page), BESIDE.get(page, "")
    return judge_frames(frames, {other: studies[other].frame} if other in studies else {}) if frames else {}


def judge_frames(frames: Mapping[str, Frame], more: Mapping[str, Frame]) -> Found:
    """By recipe and by claim; those that compare recipes or networks are judged by all rows and ``more``."""
    found = {
        recipe: {one.id: one for one in judge_all(frame) if one.id not in TOGETHER}
        for recipe, frame in frames.items()
    }
    together = judge_all(joined({**frames, **more}), TOGETHER)
    return {**found, ALL: {one.id: one for one in together}}


def frames_of(studies: Studies, page: str) -> dict[str, Frame]:
    return {
        recipe: studies[f"{page}{end}"].frame for end, recipe in RECIPES.items() if f"{page}{end}" in studies
    }


def joined(frames: Mapping[str, Frame]) -> Frame:
    """One frame of all; the keys of posteriors get the study's name, as short ones may be equal by chance."""
    rows = [
        {**row, "run": f"{name} {row['run']}", "float": f"{name} {row['float']}"}
        for name, frame in frames.items()
        for row in frame.rows
    ]
    return Frame("joined", "", {}, tuple(rows), planned=len(rows))


def _lines(id: str, found: Found) -> Sequence[Sequence[str]]:
    rows: list[list[str]] = []
    for recipe, of in found.items():
        one = of.get(id)
        if one is not None and one.table:
            first = ["", ""] if rows else [id, one.claim]
            rows.append(
                [*first, recipe, f"**{one.verdict}**", _by_method(one), one.reason.replace("|", "\\|")]
            )
    return rows


def _by_method(one: Verdict) -> str:
    """Methods of one verdict together: ``holds: `mcd`; not enough data: `bbb`, `sghmc```."""
    of: dict[str, list[str]] = {}
    for method, verdict in one.methods:
        of.setdefault(verdict, []).append(f"`{method}`")
    return "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in of.items())


def _cannot_judge(frames: Mapping[str, Frame], found: Found, wanted: Sequence[str]) -> Lines:
    """What the rows of each recipe leave open whatever the verdicts say."""
    said: Lines = []
    for recipe, of in found.items():
        mine = [one for id, one in of.items() if id in wanted and one.table]
        about = [one.id for one in mine if one.id in OF_DIFFERENCES]
        for covers, words in (
            ("rows", "One seed in {}: these intervals are over test rows and say nothing of training."),
            ("runs", "The test rows are not in the intervals of {}: the rows of results do not say them."),
        ):
            counts = {one.id: sum(line.covers == covers for line in one.table) for one in mine}
            named = [f"{one.id} ({counts[one.id]} of {len(one.table)})" for one in mine if counts[one.id]]
            said += [f"- {recipe}: " + words.format(", ".join(named))] if named else []
        if recipe in frames and about:
            said += [f"- {recipe}, {', '.join(about)}: {words}" for words in caveats(frames[recipe])]
    return ["What these rows cannot judge:", "", *said] if said else []
