"""What training costs on a CPU, from the rows that the two benchmarks wrote."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from published_numbers import METHODS, NONE, Lines, Missing, Studies, named, number, table

NAME = "cifar10-speed.csv"
NETWORK, EPOCH, STEP = "resnet18", "train_epoch", "qat_step"
Row = Mapping[str, str]
# of the work of the first column at most so many times the seconds of the second, for these methods.
EPOCH_AIM, EPOCH_HOPE = 0.55, 0.50
STEP_AIMS = {
    "labels": {"pointwise": 1.5, "mcd": 1.5, "bbb": 1.3},
    "imitation": {"pointwise": 2.0, "mcd": 2.0},
}


def speed(studies: Studies) -> Lines:
    """An epoch of float training, and a step of fine-tuning, beside what they must not cost more than."""
    rows = [row for row in read(studies.folder / NAME) if row["network"].startswith(NETWORK)]
    if not rows:
        raise Missing(f"no {NAME}")
    return [*_epochs(rows), "", *_steps(rows), "", *_origin(rows)]


def read(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _epochs(rows: Sequence[Row]) -> Lines:
    lines = []
    for method in METHODS:
        found = {row["work"]: row for row in rows if (row["benchmark"], row["method"]) == (EPOCH, method)}
        if "preset" not in found:
            continue
        ratio = float(found["preset"]["ratio"])
        cells = [number(float(found[work]["seconds"]), 0) for work in ("float32", "bf16", "preset")]
        aim = f"≤ {EPOCH_AIM:g} {_mark(ratio, EPOCH_AIM)} (better {EPOCH_HOPE:g} {_mark(ratio, EPOCH_HOPE)})"
        lines.append([named(method), *cells, number(ratio, 3), aim])
    head = ["an epoch in float", "float32, s", "bf16, s", "the preset, s", "preset / float32", "aim"]
    return table(head, lines) if lines else ["No epoch was measured."]


def _steps(rows: Sequence[Row]) -> Lines:
    lines = []
    for method in METHODS:
        found = {row["work"]: row for row in rows if (row["benchmark"], row["method"]) == (STEP, method)}
        if "float" not in found:
            continue
        cells = [number(1e3 * float(found["float"]["seconds"]), 0)]
        for work, aims in STEP_AIMS.items():
            if work not in found:
                cells.append(NONE)
                continue
            ratio, most = float(found[work]["ratio"]), aims.get(method)
            cells.append(number(ratio, 2) + ("" if most is None else f" (≤ {most:g}) {_mark(ratio, most)}"))
        lines.append([named(method), *cells])
    head = ["a step of fine-tuning", "float step, ms", "from labels, float steps", "distilled, float steps"]
    return table(head, lines) if lines else ["No step was measured."]


def _origin(rows: Sequence[Row]) -> Lines:
    made = {
        name: list(dict.fromkeys(row[name] for row in rows))
        for name in ("processor", "instructions", "torch", "commit")
    }
    commits = ", ".join(one[:10] for one in made["commit"])
    return [
        "Slim ResNet-18, an epoch of 45,000 images, seconds of one thread that the process took; "
        f"{', '.join(made['processor'])} ({'; '.join(made['instructions'])}), "
        f"torch {', '.join(made['torch'])}, commit {commits}."
    ]


def _mark(ratio: float, most: float) -> str:
    return "✓" if ratio <= most else "✗"
