"""The judge on synthetic studies whose truth is known: never wrong in more of them than chance explains."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from qbayes.lab.paper.claims import judges

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

from judge_studies import STUDIES
from judge_truths import HEAD, PLACE, Tally, tally, write

CASES = [(claim, truth.name) for claim in STUDIES for truth in STUDIES[claim]]
FEW = 12
# Of twelve studies four wrong ones are seen once in 400 times where 5 % are wrong.
MOST_WRONG = 3
# Truths far from any limit, which three seeds must tell in most studies.
CLEAR = ("contrary",)


def test_every_claim_has_studies_of_every_verdict() -> None:
    assert set(STUDIES) == set(judges())
    for claim, truths in STUDIES.items():
        names = {truth.name for truth in truths}
        assert {"holds", "contrary", "barely contrary"} <= names, claim
        assert ("no difference" in names) == any("equal within" in line for line in limits(claim))


def limits(claim: str) -> set[str]:
    """What the lines of a claim must show: one of a direction knows a margin within which all is equal."""
    (truth,) = [one for one in STUDIES[claim] if one.name == "holds"]
    return {line.limit for line in judges()[claim](truth.study(np.random.default_rng(0))).table}


@pytest.mark.parametrize(("claim", "name"), CASES)
def test_the_judge_is_seldom_wrong(claim: str, name: str) -> None:
    (truth,) = [one for one in STUDIES[claim] if one.name == name]
    found = tally(claim, truth, FEW, seed=1)
    assert found.wrong <= MOST_WRONG
    if name in CLEAR:
        assert found.right > found.open


def test_the_published_table_is_of_these_studies_and_errs_in_less_than_one_of_twenty() -> None:
    with PLACE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["claim"], row["truth"]) for row in rows] == CASES
    for row in rows:
        right, unclear, wrong, studies = (int(row[name]) for name in ("right", "open", "wrong", "studies"))
        assert studies >= 300
        assert right + unclear + wrong == studies
        assert wrong / studies < 0.05, row


def test_a_tally_counts_what_is_neither_right_nor_open(tmp_path: Path) -> None:
    one = Tally("C1", "holds", 100, 90, 8)
    assert one.wrong == 2
    assert 0.06 < one.at_most < 0.08  # 2 of 100: 7.0 %, Clopper and Pearson
    write([one], tmp_path / "some.csv")
    assert (tmp_path / "some.csv").read_text().splitlines()[0] == ",".join(HEAD)
