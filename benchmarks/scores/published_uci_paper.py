"""The table of docs/results/uci.md on the paper's own recipe, whose runs may explode."""

import math
from collections.abc import Iterator
from statistics import median

from published_numbers import (
    ACTIVATIONS,
    METHODS,
    WEIGHTS,
    Lines,
    Rows,
    Studies,
    collapsed_alone,
    mean_and_deviation,
    named,
    number,
    plus_minus,
    share_collapsed,
    table,
)

from qbayes.lab.analysis.pairs import score
from qbayes.lab.analysis.run_groups import has_collapsed

PAPERS = "uci-paper"


def papers(studies: Studies) -> Lines:
    """The paper's grid with its own recipe: medians, which one fold that explodes cannot move."""
    held = studies[PAPERS]
    points = ["float", *held.present("precision", (*ACTIVATIONS, *WEIGHTS))]
    methods = held.present("method", METHODS)
    rows = [[bits, *(_papers_cell(held, method, bits) for method in methods)] for bits in points]
    legend = (
        "RMSE / NLL / runs that collapsed (RMSE above 0.9 of the targets' deviation). RMSE and NLL, in "
        "standardised units: the median over the sets of the median over the folds, mean ± deviation over "
        f"the seeds. No run is left out: {_failures(held)}."
    )
    return [*table(["", *map(named, methods)], rows), "", legend]


def collapses(studies: Studies) -> Lines:
    """Where the runs of the paper's recipe collapse: how many, of each method, set by set."""
    held = studies[PAPERS]
    rows = []
    for method in held.present("method", METHODS):
        for bits in held.present("precision", ("W8A7", "W8A3", "W3A7")):
            cells = [_count(held, method, bits, task) for task in held.tasks()]
            rows.append([named(method), bits, *cells])
    heads = [task.partition("/")[2].capitalize() for task in held.tasks()]
    legend = "Runs that collapsed, of all runs of the set (folds times seeds); those that failed did."
    return [*table(["", "bits", *heads], rows), "", legend]


def _count(held: Rows, method: str, bits: str, task: str) -> str:
    pairs = held.pairs(method=method, precision=bits, task=task)
    failed = len(held.failed(method=method, precision=bits, task=task))
    return f"{sum(map(has_collapsed, pairs)) + failed} of {len(pairs) + failed}"


def _failures(held: Rows) -> str:
    failed = len(held.frame.failed)
    words = "those that failed in training count as infinite and as collapsed"
    return f"{words} ({failed:,} of {failed + len(held.frame.rows):,})" if failed else "none failed"


def _papers_cell(held: Rows, method: str, bits: str) -> str:
    parts = []
    for metric, digits in (("rmse", 3), ("nll", 2)):
        seeds = held.frame.values("seed")
        each = [_median_of_sets(held, metric, method=method, precision=bits, seed=seed) for seed in seeds]
        parts.append(plus_minus(*mean_and_deviation(each), digits))
    return " / ".join([*parts, f"{number(_collapsed(held, method, bits), 0)} %"])


def _collapsed(held: Rows, method: str, bits: str) -> float:
    failed = len(held.failed(method=method, precision=bits))
    if bits != "float":
        return share_collapsed(held.pairs(method=method, precision=bits), failed)
    rows = held.floats(method=method)
    fallen = sum(map(collapsed_alone, rows)) + failed
    return 100 * fallen / (len(rows) + failed) if rows or failed else math.nan


def _median_of_sets(held: Rows, metric: str, **columns: object) -> float:
    sets = [list(_folds(held, metric, task=task, **columns)) for task in held.tasks()]
    return median([median(folds) for folds in sets if folds])


def _folds(held: Rows, metric: str, **columns: object) -> Iterator[float]:
    """The scores of all folds, of failed runs infinite."""
    some = held.done(training=("float", "trained"), **columns)
    yield from (score(row, metric) for row in some)
    yield from (math.inf for _ in held.failed(**columns))
