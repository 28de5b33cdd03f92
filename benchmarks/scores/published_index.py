"""The tables of docs/results/index.md: the paper's claims by task, and how often the judge is wrong."""

import csv
from collections.abc import Mapping

import published_cifar
from published_claims import ALL, OF_PAGE, Found, verdicts
from published_numbers import Lines, Missing, Studies, table

from qbayes.lab.paper.claims import OURS, judges

TITLES = {"uci": "UCI", "mnist": "MNIST", "cifar10": "CIFAR-10"}
SECTION = "the-papers-claims"  # of each page
TRUTHS = ("holds", "barely holds", "contrary", "barely contrary", "no difference", "barely a difference")
NOT_RUN, NO_ROWS, ELSEWHERE = "not run yet", "no rows", "–"


def index(studies: Studies) -> Lines:
    """The paper's claims by page: each cell a verdict that leads to the page's own section on them."""
    of_pages = {page: verdicts(studies, page) for page in ("uci", "mnist")}
    of_pages["cifar10"] = published_cifar.verdicts(studies)
    paper = [claim for claim in judges() if claim not in OURS]
    words = {id: one.claim for found in of_pages.values() for of in found.values() for id, one in of.items()}
    rows = [
        [id, words.get(id, ""), *(_cell(id, page, found) for page, found in of_pages.items())] for id in paper
    ]
    return table(["", "claim", *TITLES.values()], rows)


def judge(studies: Studies) -> Lines:
    """How often the judge was right and wrong on synthetic studies, by claim and truth."""
    place = studies.path("judge")
    if not place.is_file():
        raise Missing(f"{place} is not there")
    with place.open(encoding="utf-8", newline="") as file:
        found = {(row["claim"], row["truth"]): row for row in csv.DictReader(file)}
    ids, truths = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    truths = [name for name in TRUTHS if name in truths]
    rows = [[id, *(_rates(found.get((id, name))) for name in truths)] for id in ids]
    studies_each = sorted({int(row["studies"]) for row in found.values()})
    worst = max(found.values(), key=lambda row: float(row["wrong_share"]))
    said = (
        f"Right / wrong, in per cent of {' or '.join(map(str, studies_each))} studies each; the rest is not "
        f"enough data. The largest share of wrong verdicts is {100 * float(worst['wrong_share']):.1f} % "
        f"({worst['claim']}, {worst['truth']})."
    )
    return [*table(["", *truths], rows), "", said]


def _rates(row: Mapping[str, str] | None) -> str:
    if row is None:
        return ELSEWHERE
    right, wrong = (100 * int(row[name]) / int(row["studies"]) for name in ("right", "wrong"))
    return f"{right:.0f} / {wrong:.1f}"


def _cell(id: str, page: str, found: Found) -> str:
    if id not in OF_PAGE[page]:
        return ELSEWHERE
    if not found:
        return NOT_RUN
    judged = {recipe: of[id] for recipe, of in found.items() if id in of and of[id].table}
    if not judged:
        return NO_ROWS
    link = f"{page}.md#{SECTION}"
    whose = {recipe: "" if len(judged) == 1 or recipe == ALL else f" ({recipe})" for recipe in judged}
    return "; ".join(f"[{one.verdict}]({link}){whose[recipe]}" for recipe, one in judged.items())


TABLES = {"claims": index, "judge": judge}
