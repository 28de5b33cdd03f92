"""The paper's claims on a page: the verdicts of ``qbayes.report.claims``, from the published rows."""

from collections.abc import Mapping, Sequence

from published_numbers import Lines, Missing, Studies, table

from qbayes.report.claims import Verdict, judge_all
from qbayes.report.frame import Frame

# Those that the rows of a page can speak to; C4, C10 and C12 are on the page of CIFAR-10.
CLAIMS = ("C1", "C2", "C3", "C5", "C6", "C7", "C8", "C9", "C11")
RECIPES = {"": "ours", "-paper": "the paper's", "-mask": "masks"}
# These compare schemes or networks: rows of all studies of a page are judged together; digits with those on
# the noise.
TOGETHER = ("C3", "C11", "C12")
BESIDE = {"mnist": "noise-bits"}


def claims(studies: Studies, page: str) -> Lines:
    """Each claim by each recipe's rows; a claim of which neither has a comparison is named below."""
    frames = {
        recipe: studies[f"{page}{end}"].frame for end, recipe in RECIPES.items() if f"{page}{end}" in studies
    }
    if not frames:
        raise Missing(f"no rows of {page}")
    other = BESIDE.get(page, "")
    return judged(frames, {other: studies[other].frame} if other in studies else {}, CLAIMS)


def judged(frames: Mapping[str, Frame], more: Mapping[str, Frame], wanted: Sequence[str]) -> Lines:
    """The verdicts by the rows of each recipe; those that compare recipes or networks by all and ``more``."""
    found = {recipe: {one.id: one for one in judge_all(frame)} for recipe, frame in frames.items()}
    both = {one.id: one for one in judge_all(joined({**frames, **more})) if one.id in TOGETHER}
    found = {recipe: {id: one for id, one in of.items() if id not in both} for recipe, of in found.items()}
    found["all"] = both
    told = [id for id in wanted if any(id in of and of[id].table for of in found.values())]
    rows = [row for id in told for row in _lines(id, found)]
    silent = [id for id in wanted if id not in told]
    legend = (
        f"No rows here speak of {', '.join(silent)}." if silent else "All of these claims are judged here."
    )
    return [*table(["", "claim", "recipe", "verdict", "why"], rows), "", legend]


def joined(frames: Mapping[str, Frame]) -> Frame:
    """One frame of all; the keys of posteriors get the study's name, as short ones may be equal by chance."""
    rows = [
        {**row, "run": f"{name} {row['run']}", "float": f"{name} {row['float']}"}
        for name, frame in frames.items()
        for row in frame.rows
    ]
    return Frame("joined", "", {}, tuple(rows), planned=len(rows))


def _lines(id: str, found: Mapping[str, Mapping[str, Verdict]]) -> Sequence[Sequence[str]]:
    rows: list[list[str]] = []
    for recipe, of in found.items():
        one = of.get(id)
        if one is not None and one.table:
            first = ["", ""] if rows else [id, one.claim]
            rows.append([*first, recipe, one.verdict, one.reason.replace("|", "\\|")])
    return rows
