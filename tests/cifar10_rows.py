"""Rows of every run that a study of CIFAR-10 plans, made by formula: for tests of its page, never published.

What a run is comes from the study's own file, as ``qbayes study plan`` resolves it; its scores are made up:
float errors by method, so many points more by precision and training, a little by seed.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.export_csv import publish
from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.tasks import Facts, Tasks
from qbayes.lab.study.spec.study import Study
from qbayes.tasks.shifts import LEVELS

STUDIES = Path(__file__).parents[1] / "studies"
FLOAT_ERROR = {"pointwise": 0.080, "mcd": 0.072, "bbb": 0.082, "sghmc": 0.078}
FLOAT_ECE = {"pointwise": 0.040, "mcd": 0.010, "bbb": 0.020, "sghmc": 0.015}
# points of error that our recipe loses, and calibration alone.
LOST = {"W8A8": 0.02, "W8A7": 0.04, "W6A6": 0.1, "W5A5": 0.2, "W4A4": 0.5, "W3A3": 1.2, "W2A2": 5.0}
CALIBRATED = {**LOST, "W5A5": 1.0, "W4A4": 4.0, "W3A3": 30.0, "W2A2": 70.0}
# by the paper's scheme, over the bits of the side that is reduced.
PAPERS = {7: 0.1, 6: 0.4, 5: 2.0, 4: 8.0, 3: 40.0}
# of each score that rows of the same test data make uncertain, so many points.
ROW_ERROR = 0.1
SEED = 0.05
# seconds of an epoch and of a step, by kind of work.
EPOCHS = {"float32": 285, "bf16": 159, "small": 90, "preset": 130, "images": 4}
STEPS = {"float": 0.2, "labels": 0.25, "imitation": 0.5}
NAMES = ("cifar10-tiny", "cifar10")
Made = dict[str, Any]


class KnownTasks(Tasks):
    """Tasks that are known without their data: planning reads no image."""

    def facts(self, section: Any) -> Facts:
        rows = {"train": 45_000, "validation": 5_000, "test": 10_000, "confusion": 26_032}
        device = torch.device("cpu")
        return Facts(
            "cifar10", "classification", "made up", rows["train"], (3, 32, 32), (10,), device, rows, True
        )


@cache
def planned(name: str) -> tuple[Study, tuple[Made, ...]]:
    """A study that comes with qbayes, and what is known of its runs beforehand."""
    study = Study.read(STUDIES / f"{name}.toml")
    return study, tuple(run.row() for run in make_plan(study, KnownTasks(None)).runs)


def made(
    name: str, *, row_errors: bool = True, keep: Callable[[Mapping[str, Any]], bool] = lambda row: True
) -> Frame:
    """The frame of a study whose runs are done where ``keep`` says so, and not begun where not."""
    study, runs = planned(name)
    rows = tuple(scored(run, row_errors=row_errors) for run in runs if keep(run))
    header = {
        "format": 1, "name": study.name, "question": study.question, "header": dict(study.header),
        "spec": dict(study.source), "text": study.text, "runs": len(runs),
        "commit": "0" * 40,
    }  # fmt: skip
    return Frame(study.name, study.question, header, rows, planned=len(runs))


def publish_all(folder: Path) -> Path:
    """Both studies complete, hours and times of training: all that the page stands on."""
    for name in NAMES:
        publish(made(name), folder / f"{name}.csv")
    hours = [f"{name},{stage},mcd,10,5.0" for name in NAMES for stage in ("float", "quantised", "scores")]
    (folder / "cifar10-hours.csv").write_text("\n".join(["study,stage,method,done,hours", *hours, ""]))
    origin = "c0ffee,0.1.0,2,2,3.12,a processor,AVX512,cpu"
    times = [
        *(f"train_epoch,resnet18,{method},{work},{seconds},{seconds / 285:.4f},float32,{origin}"
          for method in ("pointwise", "mcd") for work, seconds in EPOCHS.items()),
        *(f"qat_step,\"resnet18, slim\",{method},{work},{seconds},{seconds / 0.2:.4f},float,{origin}"
          for method in ("pointwise", "mcd") for work, seconds in STEPS.items()),
    ]  # fmt: skip
    head = "benchmark,network,method,work,seconds,ratio,to,"
    head += "commit,qbayes,torch,numpy,python,processor,instructions,device"
    (folder / "cifar10-speed.csv").write_text("\n".join([head, *times, ""]))
    return folder


def lost(row: Mapping[str, Any]) -> float:
    """Points of error that a run loses."""
    scheme, precision = str(row["scheme"]), str(row["precision"])
    if precision == "float":
        return 0.0
    if precision == "float-finetuned":
        return -0.1
    if scheme.startswith("paper"):
        fewest = min(int(row["weight"]), int(row["activation"]))
        if scheme.endswith("mask=product") and row["activation"] <= 4:
            return 82.0
        return PAPERS[fewest] * (1.0 if row["activation"] < 7 else 0.4)
    if row["training"] == "calibrated":
        return CALIBRATED[precision]
    return LOST[precision] + {"labels": 0.06}.get(str(row["training"]), 0.0) - 0.1 * ("mixed" in scheme)


def scored(run: Mapping[str, Any], *, row_errors: bool = True) -> Made:
    """A run with the scores that evaluation would give it."""
    method, seed = str(run["method"]), int(run["seed"])
    small = run["network"] == "resnet8"
    more, sway = lost(run) / 100, (seed - 1) * SEED / 100 * (1 if small else 0)
    base = FLOAT_ERROR[method] + (0.045 if small else 0.0)
    # of what quantisation costs each seed a little more: else there is no interval.
    error = min(base + sway + more * (1 + 0.1 * (seed - 1) * small), 0.9)
    ece = FLOAT_ECE[method] + 0.4 * max(error - base - sway, 0.0)
    entropy = 0.1 + 1.5 * error
    row: Made = {
        **run, "status": "done", "error": error, "nll": 3 * error, "brier": 1.5 * error, "ece": ece,
        "ece_adaptive": ece, "ece_per_batch": ece + 0.02, "ece_per_batch_1024": ece + 0.006,
        "entropy": entropy, "mutual_information": 0.0 if method == "pointwise" else 0.2 * entropy,
        "confusion/entropy": 1.0 + more,
        "confusion/mutual_information": 0.0 if method == "pointwise" else 0.3,
        "confusion/auroc": 0.93 - 0.3 * more, "confusion/aupr": 0.95, "confusion/fpr95": 0.2,
        "confusion/auroc_mutual_information": 0.9, "test_rows": 10_000, "ood_rows": 10_000, "classes": 10,
        "target_deviation": None, "bytes": _bytes(run), "commit": "0" * 40, "qbayes": "0.1.0", "torch": "2",
        "numpy": "2", "python": "3.12", "processor": "a processor", "instructions": "AVX512", "device": "cpu",
    }  # fmt: skip
    if run["precision"] == "float":
        row |= {
            f"{kind}/{layer}": 4.0 + seed for kind in ("spread", "deviation") for layer in ("stem", "logits")
        }
    if row_errors:
        # of a float run those of its own scores, which are larger than those of a difference to it.
        size = ROW_ERROR / 100 * (3 if run["precision"] == "float" else 1)
        row |= {f"row_error/{name}": size for name in ("error", "ece", "nll", "confusion/auroc")}
    return row | (_shifted(row) if run.get("axis:evaluate.shifts") else {})


def _shifted(row: Mapping[str, Any]) -> Made:
    scores = ("error", "ece", "nll", "entropy", "brier", "mutual_information")
    grown: Made = {"shift_rows": 2_000, **{f"unshifted/{name}": row[name] for name in scores}}
    for shift, levels in LEVELS.items():
        for level in range(1, len(levels) + 1):
            grown |= {f"{shift}/{level}/{name}": min(row[name] * (1 + 0.5 * level), 2.0) for name in scores}
            grown[f"{shift}/{level}/error"] = min(row["error"] * (1 + 0.5 * level), 0.9)
    return grown


def _bytes(run: Mapping[str, Any]) -> int:
    weights = 78_000 if run["network"] == "resnet8" else 1_575_000
    copies = {"bbb": 2, "sghmc": 10}.get(str(run["method"]), 1)
    return weights * copies * int(run["weight"]) // 8
