"""How long each method trains on MNIST: the held-out rows that the recipe was chosen by."""

from collections.abc import Callable, Mapping

from published_images import ECE, ERROR, NLL, Score
from published_numbers import METHODS, NONE, Lines, Studies, named, number, table

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import score

NAME = "mnist-recipe"
COLUMNS: tuple[Score, ...] = (ERROR, NLL, ECE)


def recipe(studies: Studies) -> Lines:
    """Every candidate, one seed, scored on rows that no training saw and that are no test rows."""
    if NAME not in studies:
        return [f"The rows of `{NAME}` are not there yet: the epochs of these rows were not chosen by them."]
    held = studies[NAME]
    rows = []
    for method in held.present("method", METHODS):
        here = sorted(held.done(method=method), key=lambda row: (_start(row), _epochs(row)))
        for place, row in enumerate(here):
            cells = (number(factor * score(row, name), digits) for name, _, factor, digits in COLUMNS)
            rows.append(["" if place else named(method), f"{_start(row)}{_epochs(row)}", *cells])
    planned, done = held.frame.planned, len(held.frame.rows)
    left = "" if done == planned else f" {done} of {planned} runs are done."
    legend = f"6,000 training rows held out, one seed, 20 draws.{left}"
    return [*table(["", "epochs", *(label for _, label, _, _ in COLUMNS)], rows), "", legend]


def _epochs(row: Row) -> int:
    return int(row["axis:training.epochs"])


def _start(row: Row) -> str:
    start = row.get("axis:training.start")
    return "" if start in (None, "", NONE) else "from the point network, "


TABLES: Mapping[str, Callable[[Studies], Lines]] = {"recipe": recipe}
