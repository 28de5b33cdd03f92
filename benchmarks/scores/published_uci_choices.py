"""The tables of docs/results/uci.md on what was chosen, and on what each part of the recipe gains."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from published_numbers import METHODS, Lines, Missing, Rows, named, number, ratio, signed, table

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import Pair, score

ABLATION = "uci-ablation"
# how the rows of a factor are told: what the scheme says besides its preset, and what fine-tuning does.
PAPER, OURS = "paper", "default"
# options of fine-tuning by which a study's rows differ, as its axes name them.
QUANTISE = "axis:quantize."


def candidates(held: Rows) -> Lines:
    """Of each candidate the mean held-out score over all splits, and how often it was the best of its "
    "split."""
    rows = held.frame.candidates
    if not rows:
        raise Missing("no candidates")
    lines = []
    for method in [one for one in METHODS if any(row["method"] == one for row in rows)]:
        mine = [row for row in rows if row["method"] == method]
        texts = list(
            dict.fromkeys(str(row["candidate"]) for row in sorted(mine, key=lambda row: row["candidate"]))
        )
        kept = _winners(mine)
        for number_of, text in enumerate(texts):
            some = [row for row in mine if row["candidate"] == text and row["status"] == "done"]
            count, splits = sum(one == text for one in kept.values()), len(kept)
            failed = sum(row["candidate"] == text and row["status"] != "done" for row in mine)
            by_task = [_mean_nll([row for row in some if row["task"] == task]) for task in _tasks(rows)]
            cells = [number(value, 2) for value in by_task]
            lines.append(
                [
                    named(method) if not number_of else "",
                    f"`{text}`",
                    *cells,
                    f"{count} of {splits}",
                    str(failed),
                ]
            )
    head = [
        "",
        "candidate",
        *(task.partition("/")[2].capitalize() for task in _tasks(rows)),
        "chosen",
        "failed",
    ]
    legend = (
        "NLL on the held-out tenth of the training rows, mean over the splits (finite ones), and in how "
        "many of the splits of all tables the candidate had the lowest. No test row is in this table."
    )
    return [*table(head, lines), "", legend]


def _winners(rows: Iterable[Row]) -> dict[tuple[object, ...], str]:
    """The candidate with the lowest held-out NLL of each task and split."""
    best: dict[tuple[object, ...], tuple[float, str]] = {}
    for row in rows:
        if row["status"] != "done" or not math.isfinite(score(row, "nll")):
            continue
        place = row["task"], row["fold"], row["seed"]
        found = score(row, "nll"), str(row["candidate"])
        if place not in best or found[0] < best[place][0]:
            best[place] = found
    return {place: text for place, (_, text) in best.items()}


def _mean_nll(rows: Sequence[Row]) -> float:
    finite = [score(row, "nll") for row in rows if math.isfinite(score(row, "nll"))]
    return mean(finite) if finite else math.nan


def _tasks(rows: Iterable[Row]) -> list[str]:
    return sorted({str(row["task"]) for row in rows})


# ---- one factor at a time


def ablation(held: Rows) -> Lines:
    """The change to float of the paper's recipe, of ours, and of each with one factor of the other."""
    pairs = _all_pairs(held)
    if not pairs:
        raise Missing("no rows of an ablation")
    widths = [bits for bits in ("W4A4", "W8A3") if any(pair.quantised["precision"] == bits for pair in pairs)]
    methods = held.present("method", METHODS)
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(factor_of(pair.quantised), []).append(pair)
    lines = [
        [name, *(_cell(some, bits, method) for bits in widths for method in methods)]
        for name, some in sorted(groups.items(), key=lambda item: _order(item[0]))
    ]
    head = ["recipe", *(f"{bits}, {named(method)}" for bits in widths for method in methods)]
    splits, sets = len(held.frame.values("fold")), len(held.tasks())
    legend = (
        f"Change of the RMSE to float in per cent, mean over {sets} sets ({splits} splits each; few, so "
        "that only large differences count). Each row has one factor of the other recipe, or the whole of "
        "its fine-tuning."
    )
    return [*table(head, lines), "", legend]


def _all_pairs(held: Rows) -> list[Pair]:
    schemes = list(map(str, held.frame.values("scheme")))
    trained = ("trained", "labels", "imitation", "calibrated")
    return [pair for training in trained for pair in held.pairs(training=training, scheme=schemes)]


def factor_of(row: Row) -> str:
    """A row's recipe in words: whose scheme, whose fine-tuning, and what differs."""
    preset, _, changed = str(row["scheme"]).partition(", ")
    options = {name.removeprefix(QUANTISE): row[name] for name in row if name.startswith(QUANTISE)}
    tuning = PAPER if options.get("preset") == PAPER else OURS
    usual = _USUAL[tuning]
    other = [f"{name}={value}" for name, value in sorted(options.items()) if name not in usual]
    if tuning == PAPER and options.get("batch_size") != 1000:
        other = [*other, "batch 64"]
    whose = {PAPER: "the paper's", OURS: "ours"}
    scheme = whose[preset] + (f" with {changed}" if changed else "")
    fine = whose[tuning] + (f" with {', '.join(other)}" if other else "")
    return f"scheme {scheme}; fine-tuning {fine}"


# what the rows of a whole recipe say of their fine-tuning, besides its number of steps.
_USUAL: Mapping[str, frozenset[str]] = {
    PAPER: frozenset({"preset", "batch_size"}),
    OURS: frozenset({"epochs", "least_steps"}),
}


def _order(name: str) -> tuple[int, int, str]:
    """The paper's recipe and its neighbours first, then what is mixed, then ours."""
    both = [part.partition(" ")[2] for part in name.split("; ")]
    of_paper = sum(part.removeprefix("fine-tuning ").startswith("the paper's") for part in both)
    return -of_paper, name.count(" with "), name


def _cell(pairs: Sequence[Pair], bits: str, method: str) -> str:
    some = [
        pair for pair in pairs if (pair.quantised["precision"], pair.quantised["method"]) == (bits, method)
    ]
    by_task: dict[str, list[Pair]] = {}
    for pair in some:
        by_task.setdefault(str(pair.quantised["task"]), []).append(pair)
    return signed(mean(ratio(of, "rmse").value for of in by_task.values()), 0) if by_task else "–"
