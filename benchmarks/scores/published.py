"""Tables and figures of the pages in docs/results, of README and of how-to-choose, from the CSVs beside them.

    python benchmarks/scores/published.py             # print the tables
    python benchmarks/scores/published.py --write     # put them into the pages
    python benchmarks/scores/published.py --check     # fail where a page says something else
    python benchmarks/scores/published.py --figures   # draw docs/images/results/STUDY-FIGURE.svg

Figures come before pages: the page of CIFAR-10 shows those that are drawn. A page says where a table goes: it
stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. A test runs the check. The CSVs are what
``qbayes study export`` wrote.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import published_choose
import published_cifar
import published_cifar_words
import published_float
import published_index
import published_mnist
import published_noise
import published_readme
import published_uci
from published_claims import claims
from published_numbers import Lines, Missing, Studies

from qbayes.errors import BadInput, QbayesError, nearest

DOCS = Path(__file__).parents[2] / "docs"
RESULTS, IMAGES = DOCS / "results", DOCS / "images" / "results"
Table = Callable[[Studies], Lines]
PAGES: Mapping[str, Mapping[str, Table]] = {
    "uci": {**published_uci.TABLES, "claims": partial(claims, page="uci")},
    "mnist": {**published_mnist.TABLES, "claims": partial(claims, page="mnist")},
    "cifar10": published_cifar.TABLES,
    "noise": published_noise.TABLES,
    "float": published_float.TABLES,
    "README": {**published_cifar_words.README, **published_readme.TABLES},
    "how-to-choose": {**published_choose.TABLES, **published_cifar_words.HOW_TO_CHOOSE},
    "index": published_index.TABLES,
}
# pages that do not lie beside the rows: where they lie from there.
ELSEWHERE = {"README": "../..", "how-to-choose": ".."}
PLACE = re.compile(r"(<!-- table: (?P<name>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, text: str, studies: Studies) -> str:
    """The text of a page with its tables made anew."""

    def made(place: re.Match[str]) -> str:
        name = place["name"]
        if name not in PAGES[page]:
            raise BadInput(
                "a page's tables must be known", f"'{name}' in {page}.md", nearest(name, PAGES[page])
            )
        lines = PAGES[page][name](studies)
        return "\n".join([place[1].rstrip("\n"), "", *lines, *([""] if lines else []), place[3]])

    _check_places(page, text)
    return PLACE.sub(made, text)


def _check_places(page: str, text: str) -> None:
    """Every table that begins must end: what lies between two of them is not ours to replace."""
    marks = re.findall(r"<!-- (table|end)\b", text)
    if marks != ["table", "end"] * (len(marks) // 2) or len(PLACE.findall(text)) * 2 != len(marks):
        got = f"{page}.md has {' '.join(marks)}"
        raise BadInput("<!-- table: NAME --> and <!-- end --> must take turns", got, "mend the page's marks")


def path_of(results: Path, page: str) -> Path:
    return (results / ELSEWHERE.get(page, ".") / f"{page}.md").resolve()


def check(results: Path = RESULTS) -> list[str]:
    """The pages that do not say what their rows say."""
    studies = Studies(results)
    texts = {page: path for page in PAGES if (path := path_of(results, page)).exists()}
    held = {page: path.read_text(encoding="utf-8") for page, path in texts.items()}
    return [page for page, text in held.items() if filled(page, text, studies) != text]


def write(results: Path) -> None:
    studies = Studies(results)
    for page in PAGES:
        path = path_of(results, page)
        if path.exists():
            text = filled(page, path.read_text(encoding="utf-8"), studies)
            path.write_text(text, encoding="utf-8")
            print(f"{path}: {len(PLACE.findall(text))} tables")


def show(results: Path) -> None:
    studies = Studies(results)
    for page, tables in PAGES.items():
        for name, made in tables.items():
            print(f"## {page}: {name}\n")
            try:
                print(*made(studies), sep="\n", end="\n\n")
            except Missing as missing:
                print(f"nothing: {missing}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the pages and their CSVs")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the figures")
    said = "a study's store, for the figures that look at single test rows; repeatable"
    parser.add_argument("--store", type=Path, action="append", default=[], help=said)
    modes = parser.add_mutually_exclusive_group()
    for mode in ("check", "write", "figures"):
        modes.add_argument(f"--{mode}", action="store_true")
    given = parser.parse_args()
    try:
        if given.check:
            wrong = check(given.results)
            said = f"not what the rows say: {', '.join(wrong)}; --write puts it right"
            print(said if wrong else "the pages say what the rows say")
            return int(bool(wrong))
        if given.write:
            write(given.results)
        elif given.figures:
            from published_contrast import draw_contrast
            from published_figures import draw
            from published_front import draw_front

            studies = Studies(given.results)
            drawn = [*draw_contrast(studies, given.images), *draw_front(studies, given.images)]
            print(*drawn, *draw(studies, given.store, given.images), sep="\n")
        else:
            show(given.results)
    except (QbayesError, Missing) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
