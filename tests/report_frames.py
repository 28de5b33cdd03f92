"""Studies made up for tests: rows and stores with plausible numbers, without training anything.

Errors grow as bits fall, faster for activations; repeats differ by a little; everything follows from hashes
of the names, so that the same study comes out each time.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from qbayes.lab.analysis.frame import Frame, Loaded

METHODS = ("pointwise", "mcd", "bbb", "sghmc")
ACTIVATION_SWEEP = tuple((8, a) for a in (7, 6, 5, 4, 3))
WEIGHT_SWEEP = tuple((w, 7) for w in (8, 7, 6, 5, 4, 3))
EQUAL_SWEEP = tuple((n, n) for n in (8, 7, 6, 5, 4, 3, 2))
PAPER = tuple(dict.fromkeys((*ACTIVATION_SWEEP, *WEIGHT_SWEEP)))
ALL = tuple(dict.fromkeys((*PAPER, *EQUAL_SWEEP)))
UCI = ("uci/boston", "uci/concrete", "uci/energy", "uci/power", "uci/wine", "uci/yacht")
SHIFTS = ("rotation", "brightness", "horizontal_shift")
# error, ece, how fast bits hurt
CHARACTER = {
    "pointwise": (0.0081, 0.0069, 1.0),
    "mcd": (0.0072, 0.0037, 0.8),
    "bbb": (0.0083, 0.0031, 0.9),
    "sghmc": (0.0077, 0.0030, 1.3),
}
Bits = tuple[int, int] | None


def key(*parts: object) -> str:
    """16 hex digits that stand for the parts."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:16]


def chance(*parts: object) -> float:
    """A number in [0, 1) that stands for the parts."""
    return int(key(*parts), 16) / 16**16


def harm(method: str, bits: Bits) -> float:
    """What the bits add, as a factor on the error: doubles with every bit that is lost."""
    if bits is None:
        return 0.0
    weight, activation = bits
    return CHARACTER.get(method, (0, 0, 1.0))[2] * (0.4 * 2.0 ** (3 - weight) + 1.1 * 2.0 ** (4 - activation))


def plain(task: str, network: str, method: str, seed: int, bits: Bits, **columns: Any) -> dict[str, Any]:
    """The columns of every row."""
    fold, draws = columns.get("fold"), columns.get("draws", 20)
    weights = 1_255_500 if network == "lenet" else 21_000
    width = bits or (32, 32)
    row = {
        "task": task,
        "fold": fold,
        "network": network,
        "method": method,
        "recipe": "default",
        "seed": seed,
        "draws": draws,
        "backend": "float" if bits is None else "reference",
        "precision": "float" if bits is None else f"W{bits[0]}A{bits[1]}",
        "weight": width[0],
        "activation": width[1],
        "scheme": "float" if bits is None else "default",
        "training": "float" if bits is None else "trained",
        "status": "done",
        "float": key(task, network, method, seed, fold),
        "bytes": int(
            weights * width[0] / 8 * (2 if method == "bbb" else 20 if method == "sghmc" else 1) + 4000
        ),
        "weights": weights,
        "macs": 12 * weights,
        "bit_operations": 12 * weights * width[0] * width[1],
        **columns,
    }
    row["run"] = key(*(f"{name}={value}" for name, value in sorted(row.items())))
    return row


def classified(row: Mapping[str, Any], *, shifts: bool = True, confusion: bool = True) -> dict[str, Any]:
    """A row with the scores of a classification of ten classes."""
    method, bits = (
        str(row["method"]),
        None if row["precision"] == "float" else (row["weight"], row["activation"]),
    )
    error, ece, _ = CHARACTER.get(method, (0.01, 0.005, 1.0))
    worse, luck = 1 + harm(method, bits), 0.95 + 0.1 * chance(row["run"], "luck")
    error, ece = min(error * worse * luck, 0.9), min(ece * worse**0.7 * luck, 0.6)
    entropy = 0.02 + 1.5 * error
    row = {
        **row,
        "error": error,
        "nll": 3.4 * error * luck,
        "brier": 1.5 * error,
        "ece": ece,
        "ece_adaptive": 1.1 * ece,
        "ece_per_batch": ece + 0.02,
        "entropy": entropy,
        "mutual_information": 0.0 if method == "pointwise" else 0.3 * entropy,
        "test_rows": 10_000,
        "classes": 10,
        "target_deviation": None,
    }
    if confusion:
        row |= {
            "confusion/entropy": (0.4 if method == "pointwise" else 0.9) + 0.05 * worse**0.3,
            "confusion/mutual_information": 0.0 if method == "pointwise" else 0.3,
            "confusion/auroc": 0.99 - 0.05 * min(worse - 1, 4) / 4 - (0.02 if method == "pointwise" else 0),
            "confusion/aupr": 0.985 - 0.05 * min(worse - 1, 4) / 4,
            "confusion/fpr95": 0.03 + 0.04 * min(worse - 1, 6),
            "confusion/auroc_mutual_information": 0.5 if method == "pointwise" else 0.97,
        }
    if shifts:
        for shift in SHIFTS:
            for level in range(1, 6):
                grown = 1 + (2.2 if shift == "rotation" else 1.3) ** level
                row |= {
                    f"{shift}/{level}/error": min(error * grown, 0.9),
                    f"{shift}/{level}/ece": min(ece * grown * (1.4 if method == "pointwise" else 1), 0.7),
                    f"{shift}/{level}/nll": 3.4 * error * grown,
                    f"{shift}/{level}/entropy": entropy * (1 + 0.4 * level),
                }
    return row


def regressed(row: Mapping[str, Any], deviation: float = 9.0) -> dict[str, Any]:
    """A row with the scores of a regression whose targets deviate by ``deviation``."""
    bits = None if row["precision"] == "float" else (row["weight"], row["activation"])
    worse = 1 + 0.3 * harm(str(row["method"]), bits) * (0.5 + chance(row["task"], "sensitive"))
    rmse = 0.33 * deviation * worse * (0.9 + 0.2 * chance(row["run"], "luck"))
    return {
        **row,
        "rmse": rmse,
        "nll": 0.5 + math.log(rmse),
        "nll_moment_matched": 0.55 + math.log(rmse),
        "crps": 0.55 * rmse,
        "coverage_90": 0.9 - 0.05 * min(worse - 1, 3),
        "interval_width_90": 3.1 * rmse,
        "entropy": 1.4 + math.log(rmse),
        "mutual_information": 0.05,
        "test_rows": 51,
        "classes": None,
        "target_deviation": deviation,
    }


def image_rows(
    task: str = "mnist",
    network: str = "lenet",
    methods: Sequence[str] = METHODS,
    seeds: Iterable[int] = range(3),
    precisions: Sequence[tuple[int, int]] = ALL,
    **columns: Any,
) -> list[dict[str, Any]]:
    """Float and quantised runs of one image task."""
    return [
        classified(plain(task, network, method, seed, bits, **columns))
        for method in methods
        for seed in seeds
        for bits in (None, *precisions)
    ]


def with_spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Float rows say how spread the weights of their layers are, quantised ones do not."""
    made: list[dict[str, Any]] = []
    for row in rows:
        wide = 5.0 if row["method"] == "sghmc" else 4.0
        layers = {"conv2": wide + row["seed"], "conv10": wide, "logits": 3.0}
        spread = {f"spread/{layer}": value for layer, value in layers.items()}
        deviation = {f"deviation/{layer}": 0.1 * value for layer, value in layers.items()}
        made.append({**row, **spread, **deviation} if row["precision"] == "float" else row)
    return made


def uci_rows(
    tasks: Sequence[str] = UCI,
    folds: int = 4,
    seeds: Iterable[int] = range(1),
    precisions: Sequence[tuple[int, int]] = PAPER,
) -> list[dict[str, Any]]:
    """Float and quantised runs of regression sets, by fold."""
    return [
        regressed(plain(task, "mlp", method, seed, bits, fold=fold), 1 + 20 * chance(task))
        for task in tasks
        for method in METHODS
        for seed in seeds
        for fold in range(folds)
        for bits in (None, *precisions)
    ]


def draws_rows(
    draws: Sequence[int] = (1, 2, 5, 10, 20, 50, 100), task: str = "digits"
) -> list[dict[str, Any]]:
    """A study over the number of draws, float and W8A8."""
    rows = []
    for count in draws:
        for method in METHODS:
            for bits in (None, (8, 8)):
                extra = {"draws": count, "axis:evaluate.draws": count}
                row = classified(plain(task, "lenet", method, 0, bits, **extra), shifts=False)
                row["nll"] += 0.0 if method == "pointwise" else 0.05 / count
                rows.append(row)
    return rows


def fine_tuning_rows() -> list[dict[str, Any]]:
    """Digits at equal bits, trained and calibrated, on two backends."""
    trained = image_rows("digits", precisions=EQUAL_SWEEP)
    calibrated = []
    for row in image_rows("digits", precisions=EQUAL_SWEEP):
        if row["precision"] != "float":
            worse = 1 + 0.2 * 2.0 ** (4 - row["weight"])
            scores = {name: min(row[name] * worse, 0.9) for name in ("error", "ece", "nll")}
            calibrated.append(
                {**row, **scores, "training": "calibrated", "run": key(row["run"], "calibrated")}
            )
    measured = []
    for row in trained:
        if row["precision"] in ("W8A8", "W4A4"):
            other = {"backend": "onednn", "agreement/onednn": 0.999 + 0.001 * chance(row["run"])}
            error = row["error"] * (1 + 0.002 * chance(row["run"], "backend"))
            measured.append({**row, **other, "error": error, "run": key(row["run"], "onednn")})
    return [*trained, *calibrated, *measured]


def failed_row(row: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """The row as it would stand had the run failed."""
    kept = {name: row[name] for name in ("run", "float", "task", "network", "method", "seed", "precision")}
    return {**kept, "status": "failed", "reason": reason}


def details_of(row: Mapping[str, Any], rows: int = 2000) -> dict[str, np.ndarray]:
    """What would have been found for each test row: agrees with the row's error, and nearly with its ECE."""
    generator = np.random.default_rng(int(row["run"], 16) % 2**32)
    if row.get("classes") is None:
        squared = row["rmse"] ** 2 * generator.chisquare(1, rows)
        found = {"nll": np.full(rows, row["nll"]), "squared_error": squared, "entropy": np.full(rows, 1.4)}
        found["mutual_information"] = np.full(rows, 0.05)
        return {name: values.astype(np.float32) for name, values in found.items()}
    accuracy = 1 - row["error"]
    confidence = 1 - 0.9 * generator.beta(0.25, 0.25 / max(row["error"], 0.005), rows)
    confidence *= np.where(generator.random(rows) < 0.5, 1.0, accuracy)
    confidence = np.clip(confidence, 0.1, 1.0)
    correct = generator.random(rows) < confidence - 0.05 * (row["method"] == "pointwise")
    top = math.log(10)
    unsure = 5.0 if row["method"] != "pointwise" else 2.0
    return {
        "nll": -np.log(confidence).astype(np.float32),
        "correct": correct.astype(np.uint8),
        "confidence": confidence.astype(np.float32),
        "entropy": (top * (1 - confidence) / 0.9).astype(np.float32),
        "mutual_information": (0.3 * top * (1 - confidence)).astype(np.float32),
        "confusion_entropy": (top * generator.beta(unsure, 3.0, rows)).astype(np.float32),
        "confusion_mutual_information": (0.3 * top * generator.beta(2.0, 3.0, rows)).astype(np.float32),
    }


def header_of(
    rows: Sequence[Mapping[str, Any]], name: str, question: str, planned: int | None
) -> dict[str, Any]:
    spec = {
        "study": {"name": name, "question": question},
        "run": {"task": "mnist", "network": "lenet", "method": "mcd", "seed": 0, "evaluate": {"draws": 20}},
        "axes": {
            "method": list(METHODS),
            "seed": [0, 1, 2],
            "precision": [{"weight": 8, "activation": [3, 4, 5]}],
        },
    }
    versions = {"qbayes": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.0", "python": "3.11.2"}
    runs = len(rows) if planned is None else planned
    return {"name": name, "question": question, "spec": spec, "versions": versions, "runs": runs, "format": 1}


def frame_of(
    rows: Sequence[Mapping[str, Any]],
    name: str = "made up",
    question: str = "Does quantisation cost uncertainty?",
    planned: int | None = None,
    details: bool = False,
) -> Frame:
    """A frame in memory; with ``details``, those of seed 0."""
    done = [row for row in rows if row["status"] == "done"]
    kept = {row["run"]: details_of(row) for row in done if details and row["seed"] == 0}
    return Frame(
        name=name,
        question=question,
        header=header_of(rows, name, question, planned),
        rows=tuple(sorted(done, key=lambda row: row["run"])),
        failed=tuple(row for row in rows if row["status"] != "done"),
        planned=len(rows) if planned is None else planned,
        loaded=Loaded(kept),
    )


def write_store(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    name: str = "made up",
    question: str = "Does quantisation cost uncertainty?",
    planned: int | None = None,
) -> Path:
    """A store as a study leaves it: header, results, and the scores stages of seed 0 with their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    header = header_of(rows, name, question, planned)
    (folder / "study.json").write_text(json.dumps(header), encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "results.jsonl").write_text(lines, encoding="utf-8")
    done = {"seconds": 1.5, "device": "cpu (x86_64)", "versions": header["versions"]}
    for row in rows:
        if row["status"] == "done" and row["seed"] == 0:
            stage = folder / "scores" / row["run"]
            stage.mkdir(parents=True)
            save_file(details_of(row), stage / "rows.safetensors")
            (stage / "done.json").write_text(json.dumps(done), encoding="utf-8")
    return folder
