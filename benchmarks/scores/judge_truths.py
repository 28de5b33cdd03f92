"""How often the judge of claims is wrong: synthetic studies whose truth is known.

    python benchmarks/scores/judge_truths.py                  # print the table
    python benchmarks/scores/judge_truths.py --write          # docs/results/judge.csv, about two minutes

Each claim is judged on studies in which it holds, in which it is contrary, and in which there is no
difference that matters, where the claim is one of a direction. In "barely" holds and contrary the truth of
one method lies just on this side or on that of what decides: there a judge is wrong most easily. Every score
of a run is its truth with normal noise of two kinds: of the seed, and of the test rows, which all seeds share
and whose size the rows record. Three seeds each; collapse has six, as three are too few to tell, and there
"barely" means that 51 or 49 of 100 runs collapse.

A verdict is wrong where it says what is not so. "Not enough data" is never wrong; ``open`` counts it.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from judge_rows import Truth
from judge_studies import STUDIES
from scipy import stats

from qbayes.lab.analysis.frame import natural
from qbayes.lab.paper.claims import judges

PLACE = Path(__file__).parents[2] / "docs" / "results" / "judge.csv"
STUDIES_EACH = 300
HEAD = ("claim", "truth", "studies", "right", "open", "wrong", "wrong_share", "wrong_at_most")


@dataclass(frozen=True)
class Tally:
    """The verdicts over the studies of one claim and truth."""

    claim: str
    truth: str
    studies: int
    right: int
    open: int

    @property
    def wrong(self) -> int:
        return self.studies - self.right - self.open

    @property
    def at_most(self) -> float:
        """The exact upper bound, 97.5 %, of the share that is wrong."""
        return float(stats.beta.ppf(0.975, self.wrong + 1, self.studies - self.wrong))

    def row(self) -> tuple[object, ...]:
        share = f"{self.wrong / self.studies:.4f}", f"{self.at_most:.4f}"
        return self.claim, self.truth, self.studies, self.right, self.open, self.wrong, *share


def tally(claim: str, truth: Truth, studies: int, seed: int) -> Tally:
    """Judges so many studies of one truth."""
    generator = np.random.default_rng((seed, *map(ord, f"{claim} {truth.name}")))
    judge = judges()[claim]
    verdicts = Counter(judge(truth.study(generator)).verdict for _ in range(studies))
    right = sum(verdicts[one] for one in truth.right)
    return Tally(claim, truth.name, studies, right, verdicts["not enough data"])


def tallies(studies: int, seed: int = 0, claims: Sequence[str] | None = None) -> Iterator[Tally]:
    """Every claim and truth; ``claims`` names some."""
    for claim in sorted(STUDIES if claims is None else claims, key=natural):
        for truth in STUDIES[claim]:
            yield tally(claim, truth, studies, seed)


def write(found: Iterable[Tally], place: Path) -> None:
    with place.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([HEAD, *(one.row() for one in found)])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=STUDIES_EACH, help="of each claim and truth")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"write {PLACE.name} beside the results")
    given = parser.parse_args()
    found: list[Tally] = []
    show: Callable[..., None] = print
    for one in tallies(given.studies, given.seed):
        found.append(one)
        show(*one.row(), sep="\t", flush=True)
    if given.write:
        write(found, PLACE)
    return int(any(one.wrong / one.studies >= 0.05 for one in found))


if __name__ == "__main__":
    sys.exit(main())
