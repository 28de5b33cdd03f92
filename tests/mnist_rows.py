"""Rows of every run that the studies of MNIST plan, made by formula: for tests of its page, never published.

What a run is comes from the study's own file, as ``qbayes study plan`` resolves it. The truth of the scores
is known: training on labels gains NLL and shrinks the mutual information, with bits and without; each bit
below 8 loses the same; distilling does nothing; the paper's mask collapses at three activation bits.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.export_csv import publish
from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.tasks import Facts, Tasks
from qbayes.lab.study.spec.sections import CONTROL
from qbayes.lab.study.spec.study import Study
from qbayes.tasks.shifts import LEVELS

STUDIES = Path(__file__).parents[1] / "studies"
FLOAT = {"error": 0.005, "nll": 0.02, "ece": 0.004, "entropy": 0.03, "brier": 0.008}
# of every bit below 8: NLL, points of error, share of the mutual information.
BIT_NLL, BIT_ERROR, BIT_INFORMATION = 0.0005, 0.1, 0.1
# of training on labels, whatever the bits: NLL, share of the mutual information, NLL under any shift.
LABELS_NLL, LABELS_INFORMATION = -0.002, 0.8
LABELS_SHIFT = {"pointwise": 0.1, "mcd": 0.0, "bbb": 0.0503, "sghmc": 0.2}
ROW_ERROR = 0.0003
CHANCE = 0.902
Made = dict[str, Any]


class KnownTasks(Tasks):
    """MNIST known without its data: planning reads no image."""

    def facts(self, section: Any) -> Facts:
        rows = {"train": 54_000, "validation": 6_000, "test": 10_000, "confusion": 10_000}
        device = torch.device("cpu")
        return Facts(
            "mnist", "classification", "made up", rows["train"], (1, 28, 28), (10,), device, rows, True
        )


@cache
def planned(name: str) -> tuple[Study, tuple[Made, ...]]:
    """A study that comes with qbayes, and what is known of its runs beforehand."""
    study = Study.read(STUDIES / f"{name}.toml")
    return study, tuple(run.row() for run in make_plan(study, KnownTasks(None)).runs)


def made(name: str) -> Frame:
    """The frame of a study whose runs are all done."""
    study, runs = planned(name)
    header = {
        "format": 1, "name": study.name, "question": study.question, "header": dict(study.header),
        "spec": dict(study.source), "text": study.text, "runs": len(runs),
    }  # fmt: skip
    return Frame(study.name, study.question, header, tuple(map(scored, runs)), planned=len(runs))


def publish_all(folder: Path) -> Path:
    for name in ("mnist", "mnist-mask", "mnist-recipe"):
        publish(made(name), folder / f"{name}.csv")
    return folder


def scored(run: Mapping[str, Any]) -> Made:
    """The run with scores by the formula."""
    method, seed = run["method"], run["seed"]
    is_float = run["precision"] == "float"
    lost = 0 if is_float or run["precision"] == CONTROL else 8 - min(run["weight"], run["activation"])
    on_labels = run["training"] == "trained"
    luck = 1e-5 * seed
    scores = {name: value + luck for name, value in FLOAT.items()}
    scores["error"] += 0.01 * BIT_ERROR * lost + (2e-5 * seed if lost else 0)
    scores["nll"] += BIT_NLL * lost + (LABELS_NLL if on_labels else 0)
    information = 0.01 * (1 + BIT_INFORMATION * lost) * (LABELS_INFORMATION if on_labels else 1)
    scores["mutual_information"] = 0.0 if method == "pointwise" else information
    if collapses(run):
        scores |= {"error": CHANCE, "nll": 2.3026, "mutual_information": 0.0}
    row = {
        **run,
        **scores,
        **{f"confusion/{name}": 0.9 for name in ("auroc", "aupr", "entropy", "mutual_information")},
        "confusion/fpr95": 0.1,
        "ece_per_batch": 0.006,
        "ece_per_batch_1024": 0.005,
        "status": "done",
        "bytes": 1_255_500 * min(run["weight"], 32) // 8,
        "test_rows": 10_000,
        "classes": 10,
        "target_deviation": None,
        "commit": "0" * 40,
        "device": "cpu (x86_64)",
        "processor": "a processor",
    }
    if not is_float:
        row |= {f"row_error/{name}": ROW_ERROR for name in ("error", "nll", "ece", "mutual_information")}
    return row | (_shifted(run, scores) if is_shifted(run) else {})


def collapses(run: Mapping[str, Any]) -> bool:
    rounded = "mask=product" in run["scheme"]
    return run["method"] == "mcd" and rounded and run["activation"] <= 3


def is_shifted(run: Mapping[str, Any]) -> bool:
    """As the study's file says: in float, at W8A7 and for its control."""
    return bool(run.get("axis:evaluate.shifts"))


def _shifted(run: Mapping[str, Any], scores: Mapping[str, float]) -> Made:
    names = ("error", "nll", "ece", "entropy", "mutual_information")
    more = LABELS_SHIFT[run["method"]] if run["training"] == "trained" else 0.0
    # five seeds that spread about their mean: those that agree to the last digit say nothing.
    luck = 0.0 if run["precision"] == "float" else 1e-5 * (run["seed"] - 2)
    found: Made = {"shift_rows": 2000, **{f"unshifted/{name}": scores[name] for name in names}}
    for shift, levels in LEVELS.items():
        for level in range(1, len(levels) + 1):
            added = {"nll": more, "ece": 0.1 * more, "entropy": -0.1 * more}
            for name in names:
                found[f"{shift}/{level}/{name}"] = scores[name] * level + added.get(name, 0.0) + luck
    return found
