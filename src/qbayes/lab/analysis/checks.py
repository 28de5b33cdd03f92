"""Numbered checks K1 …: what must not be believed about a study's numbers, in one sentence each."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from qbayes.lab.analysis.frame import AXIS, Frame, Row
from qbayes.lab.analysis.pairs import (
    SHARED,
    Pair,
    is_float,
    is_quantised,
    of_two,
    paired,
    score,
    without_control,
)
from qbayes.lab.analysis.run_groups import COLLAPSE_REGRESSION, POINTWISE, free_axes, has_collapsed
from qbayes.lab.study.store.table import ORIGIN
from qbayes.metrics.row_errors import BINS, bin_of
from qbayes.metrics.scores import METRICS, is_score

READ_DETAILS = 400  # runs whose details are read at most: 10,000 rows each take 0.1 GB
_NAMED = 4
FEWEST_SEEDS = 3
# Errors that a working network stays below: LeNet-5 reaches 0.9 % on MNIST (LeCun et al., 1998), the paper's
# slim ResNet-18 8.3 % on CIFAR-10; 4 % is 15 wrong of the 360 test digits of scikit-learn's set.
FLOORS = {"mnist": 0.010, "digits": 0.04, "cifar10": 0.10, "fashion_mnist": 0.12}
# … and what a smaller network stays below: MLPerf Tiny asks 15 % of its ResNet-8, and three deviations of an
# error of 15 % that is measured on 10,000 rows are 1.1 %.
FLOORS_OF_NETWORKS = {("cifar10", "resnet8"): 0.16}
FEWEST_IN_BIN = 5  # an accuracy of fewer rows is no accuracy
LOST_NOISE = 0.1  # share of the float run's mutual information below which the noise is lost
SOME_NOISE = 1e-3  # nats of mutual information below which float had none to lose


@dataclass(frozen=True)
class Check:
    """``found`` says what must not be believed, or, where ``passed``, what was looked at."""

    id: str
    title: str
    passed: bool
    found: str


class Study:
    """A frame and what several checks ask of it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    @property
    def pairs(self) -> list[Pair]:
        return paired(self.frame)

    @cached_property
    def cells(self) -> dict[str, list[Row]]:
        """Rows that differ by seed and fold alone, under their label."""
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.frame.rows:
            found[label(row)].append(row)
        return dict(sorted(found.items()))

    @cached_property
    def with_details(self) -> list[Row]:
        """The first run of each cell, as many as may be read."""
        first = (rows[0] for rows in self.cells.values())
        kept = (row for row in first if self.frame.details(str(row["run"])) is not None)
        return list(itertools.islice(kept, READ_DETAILS))


Finding = tuple[str, list[str], str]  # what must not be believed about …, these, and what was looked at
CHECKS: list[tuple[str, Callable[[Study], Finding]]] = []


def check(title: str) -> Callable[[Callable[[Study], Finding]], Callable[[Study], Finding]]:
    """Put the decorated function behind the checks before it."""

    def enter(function: Callable[[Study], Finding]) -> Callable[[Study], Finding]:
        CHECKS.append((title, function))
        return function

    return enter


def list_some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def label(row: Row) -> str:
    """``mnist lenet mcd W8A7`` and what else tells it from others, besides seed and fold."""
    parts = [str(row.get(name)) for name in ("task", "network", "method", "precision")]
    if not is_float(row):
        usual = {"scheme": "default", "training": "trained"}
        parts += [str(row[name]) for name, value in usual.items() if row.get(name) not in (None, value)]
    parts += ["paper recipe"] if row.get("recipe") == "paper" else []
    parts += [f"{row.get('draws')} draws"] if row.get("method") != POINTWISE else []
    parts += [f"{name.removeprefix(AXIS)} {value}" for name, value in free_axes(row)]
    return " ".join(parts)


def one_run(row: Row) -> str:
    fold = f" fold {row['fold']}" if row.get("fold") is not None else ""
    return f"{label(row)}{fold} seed {row.get('seed')}"


def check_all(frame: Frame) -> list[Check]:
    """Every check, in order."""
    study = Study(frame)
    return [_make(f"K{number}", title, find(study)) for number, (title, find) in enumerate(CHECKS, start=1)]


def _make(id: str, title: str, finding: Finding) -> Check:
    warning, culprits, looked_at = finding
    found = f"{warning}: {list_some(culprits)}." if culprits else f"{looked_at}."
    return Check(id, title, not culprits, found)


@check("seeds enough for a spread")
def _seeds(study: Study) -> Finding:
    few = [
        f"{name} ({len(repeats)})"
        for name, rows in study.cells.items()
        if len(repeats := {(row.get("fold"), row.get("seed")) for row in rows}) < FEWEST_SEEDS
    ]
    spreads = f"Spreads and intervals of fewer than {FEWEST_SEEDS} runs must not be believed"
    return (
        f"{spreads}, and one run says nothing of training",
        few,
        f"Every condition has {FEWEST_SEEDS} seeds or folds, or more",
    )


@check("float baselines reach their floor")
def _floors(study: Study) -> Finding:
    weak = []
    for name, rows in study.cells.items():
        limit, metric = _floor(rows[0])
        if is_float(rows[0]) and metric in rows[0] and limit is not None:
            found = float(np.mean([score(row, metric) for row in rows]))
            weak += [f"{name}: {metric} {found:.3g} > {limit:.3g}"] if found > limit else []
    warning = "Differences to a float network that does not work must not be believed"
    return warning, weak, "Every float baseline is as good as it should be"


def _floor(row: Row) -> tuple[float | None, str]:
    if "rmse" in row:
        deviation = row.get("target_deviation")
        return (COLLAPSE_REGRESSION * float(deviation) if deviation else None), "rmse"
    classes = row.get("classes")
    half_of_chance = 0.5 * (1 - 1 / int(classes)) if classes else None
    task, network = str(row.get("task")), str(row.get("network"))
    return FLOORS_OF_NETWORKS.get((task, network), FLOORS.get(task, half_of_chance)), "error"


@check("no run collapsed")
def _collapse(study: Study) -> Finding:
    fallen = sorted({label(pair.quantised) for pair in study.pairs if has_collapsed(pair)})
    warning = "ECE, entropy and NLL of collapsed runs must not be read as uncertainty"
    return warning, fallen, f"None of {len(study.pairs)} quantised runs has collapsed"


@check("bins of ECE are filled")
def _bins(study: Study) -> Finding:
    hollow, seen = [], 0
    for row in study.with_details:
        details = study.frame.details(str(row["run"]))
        if details is not None and "confidence" in details:
            seen += 1
            filled = int((np.bincount(bin_of(details["confidence"]), minlength=BINS) >= FEWEST_IN_BIN).sum())
            hollow += [f"{label(row)} ({filled} of {BINS} bins)"] if 2 * filled < BINS else []
    warning = f"ECE must not be compared finely where most bins hold fewer than {FEWEST_IN_BIN} rows"
    return warning, hollow, f"The bins of {seen} runs whose details were kept are filled"


@check("draws are equal")
def _draws(study: Study) -> Finding:
    groups: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for row in study.frame.rows:
        if row.get("method") != POINTWISE and row.get("axis:evaluate.draws") is None:
            groups[row.get("task"), row.get("network"), row.get("recipe")].add(int(row.get("draws") or 0))
    mixed = [
        f"{task} {network}: {', '.join(map(str, sorted(draws)))} draws"
        for (task, network, _), draws in sorted(groups.items(), key=repr)
        if len(draws) > 1
    ]
    warning = "Methods and precisions evaluated with different draws must not be compared"
    return warning, mixed, "All that is compared was evaluated with the same number of draws"


@check("quantised runs have their float run")
def _partners(study: Study) -> Finding:
    with_partner = {str(pair.quantised["run"]) for pair in study.pairs}
    quantised = [row for row in study.frame.rows if is_quantised(row)]
    alone = sorted({label(row) for row in quantised if str(row["run"]) not in with_partner})
    warning = "What quantisation cost must not be guessed without a float run of the same draws"
    return warning, alone, f"All of {len(quantised)} quantised runs are paired"


@check("no run failed")
def _failures(study: Study) -> Finding:
    failed = [f"{one_run(row)} ({row.get('reason', 'no reason')})" for row in study.frame.failed]
    warning = "Averages lack the runs that failed, which may be the worst"
    return warning, failed, "No run failed"


@check("no run is missing")
def _missing(study: Study) -> Finding:
    frame = study.frame
    there = len(frame.rows) + len(frame.failed)
    lacking = frame.planned - there
    text = [f"{lacking} of {frame.planned} planned runs"] if lacking > 0 else []
    return "The study is not finished, and its numbers may still move", text, f"All of {there} runs are there"


@check("one set of versions and devices")
def _versions(study: Study) -> Finding:
    seen: dict[str, set[str]] = defaultdict(set)
    for stage in ("float", "quantised", "scores"):
        for done in study.frame.stages(stage).values():
            # of a row that another study lent as a row the device is not known.
            if done.get("device") is not None:
                seen[f"devices of stage {stage}"].add(str(done["device"]))
            for name, version in dict(done.get("versions") or {}).items():
                seen[name].add(str(version))
    for row in study.frame.rows:
        # older rows do not say it.
        for name in ORIGIN:
            if row.get(name) is not None:
                seen[f"{name} of the scores" if name in ("commit", "device") else name].add(str(row[name]))
    mixed = [f"{name} {', '.join(sorted(found))}" for name, found in sorted(seen.items()) if len(found) > 1]
    warning = "Small differences must not be believed between runs of different software or machines"
    return warning, mixed, "Nothing says that versions or devices were mixed"


@check("confusion data are scored by uncertainty alone")
def _labels_of_others(study: Study) -> Finding:
    on_confusion = {name for name in study.frame.columns() if name.startswith("confusion/")}
    wrong = sorted(on_confusion - METRICS.keys())
    warning = "Scores that use the labels of other classes mean nothing"
    return warning, wrong, "Error, NLL and ECE are not computed on confusion data"


@check("noise survived quantisation")
def _noise(study: Study) -> Finding:
    bayesian = [pair for pair in study.pairs if pair.quantised.get("method") != POINTWISE]
    lost = sorted({label(pair.quantised) for pair in bayesian if not has_collapsed(pair) and _lost(pair)})
    warning = "Uncertainty must not be called Bayesian where draws hardly differ though those of float do"
    return warning, lost, "Draws of Bayesian methods differ as those of float do, where it was measured"


def _lost(pair: Pair) -> bool:
    after, before = (row.get("mutual_information") for row in (pair.quantised, pair.float))
    return after is not None and before is not None and before > SOME_NOISE and after < LOST_NOISE * before


@check("UCI sets have several splits")
def _splits(study: Study) -> Finding:
    folds: dict[str, set[object]] = defaultdict(set)
    for row in study.frame.rows:
        if str(row.get("task")).startswith("uci/"):
            folds[str(row["task"])].add(row.get("fold"))
    single = [task for task, found in sorted(folds.items()) if len(found) == 1]
    warning = "One split of a small set must not stand for the set"
    return warning, single, f"{len(folds)} UCI sets, each with several splits" if folds else "No UCI sets"


@check("scores are finite")
def _finite(study: Study) -> Finding:
    scores = sorted(filter(is_score, study.frame.columns()))
    found = ((row, _not_finite(row, scores)) for row in study.frame.rows)
    bad = sorted(f"{one_run(row)} ({list_some(names)})" for row, names in found if names)
    warning = "Means with scores that are not finite say nothing about the other runs"
    return warning, bad, "Every score is a finite number"


def _not_finite(row: Row, scores: Sequence[str]) -> list[str]:
    """What was scored without a finite number, ``nll inf``."""
    return [f"{name} {row[name]}" for name in scores if name in row and not math.isfinite(row[name])]


@check("fine-tuned runs have a control")
def _controls(study: Study) -> Finding:
    alone, trained = without_control(study.frame)
    names = sorted({label(pair.quantised) for pair in alone})
    without = "without a float run that was fine-tuned alike"
    warning = f"What bits changed cannot be told from what training changed {without}"
    looked_at = f"All of {len(trained)} fine-tuned runs have one" if trained else "None was fine-tuned"
    return warning, names, looked_at


@check("pairs are of one commit and machine")
def _pairs_of_two(study: Study) -> Finding:
    mixed = [
        f"{label(pair.quantised)} ({column} {pair.float[column]} and {pair.quantised[column]})"
        for column in SHARED
        for pair in of_two(study.frame, column)
    ]
    warning = "What bits changed cannot be told from what code or machine changed"
    names = list(dict.fromkeys(mixed))
    return warning, names, f"Nothing says that any of {len(study.pairs)} pairs was scored by two"
