"""What README and docs/how-to-choose.md say of CIFAR-10, from rows."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from published_cifar_ours import PAPERS_FLOAT
from published_cifar_rows import NETWORKS, SLIM, TINY, Network
from published_cifar_speed import EPOCH, NAME, NETWORK, STEP
from published_cifar_speed import read as read_speed
from published_numbers import (
    METHODS,
    Lines,
    Studies,
    mean_and_deviation,
    named,
    number,
    table,
)
from published_readme import mnist_floats

from qbayes.lab.analysis.frame import Row
from qbayes.lab.analysis.pairs import score

FLOAT_ROWS = "images_float.csv"
# recipes of the float rows of before, by method.
_RECIPES = {"bbb from pointwise": "bbb"}
Numbers = Mapping[str, tuple[float, float, float]]


def float_table(studies: Studies) -> Lines:
    """Error, NLL and ECE in float; of CIFAR-10 by the studies' rows, until then by those of before."""
    before = studies.folder / FLOAT_ROWS
    found: dict[str, Numbers] = {"MNIST, LeNet": mnist_floats(studies)}
    of_studies = {network: _of_study(studies, network) for network in NETWORKS}
    slim = of_studies[SLIM] or _of_table(before, "cifar10")
    found[f"CIFAR-10, {SLIM.words}"] = slim
    found |= {
        f"CIFAR-10, {one.words}": of for one, of in of_studies.items() if one != SLIM and of is not None
    }
    rows = [[where, *map(_written, (of[method] for method in METHODS))] for where, of in found.items()]
    rows.append([
        "the paper's CIFAR-10 error", *(f"{number(PAPERS_FLOAT[method], 2)} %" for method in METHODS)
    ])  # fmt: skip
    head = ["error / NLL / ECE", *map(named, METHODS)]
    seeds = min(len(studies["mnist"].floats(method=method)) for method in METHODS)
    cifar = "one seed" if of_studies[SLIM] is None else "the mean over its seeds"
    tiny = f", {TINY.words} {_seeds(studies, TINY)}" if of_studies[TINY] else ""
    where = f"MNIST the mean of {seeds} seeds, CIFAR-10 {cifar}{tiny}"
    said = f"20 draws; {where}."
    return [*table(head, rows), "", said, _beside_the_paper(slim)]


def _seeds(studies: Studies, network: Network) -> str:
    """How many seeds the methods have: ``3``, or ``2 or 3``."""
    counts = {len(studies[network.study].floats(method=method)) for method in METHODS}
    return " or ".join(map(str, sorted(counts)))


def _of_study(studies: Studies, network: Network) -> Numbers | None:
    """The means over the seeds, where every method has a float run."""
    if network.study not in studies:
        return None
    held = studies[network.study]
    rows = {method: held.floats(method=method) for method in METHODS}
    if not all(rows.values()):
        return None
    return {
        method: (_mean(some, "error"), _mean(some, "nll"), _mean(some, "ece"))
        for method, some in rows.items()
    }


def _mean(rows: Sequence[Row], name: str) -> float:
    return mean_and_deviation([score(row, name) for row in rows])[0]


def _of_table(path: Path, task: str) -> Numbers:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["task"] == task]
    named_rows = {_RECIPES.get(row["recipe"], row["recipe"]): row for row in rows}
    return {
        method: (float(row["error"]), float(row["nll"]), float(row["ece"]))
        for method in METHODS
        if (row := named_rows.get(method)) is not None
    }


def _written(numbers: tuple[float, float, float]) -> str:
    error, nll, ece = numbers
    # of small errors and large ECEs as many digits as one seed can bear.
    return f"{100 * error:.2f} % / {nll:.{4 if nll < 0.1 else 3}f} / {_two_digits(100 * ece)} %"


def _two_digits(value: float) -> str:
    return number(value, 2 if value < 1 else 1)


def _beside_the_paper(found: Numbers) -> str:
    """Which methods err more than the paper's float network."""
    apart = {method: 100 * found[method][0] - PAPERS_FLOAT[method] for method in METHODS}
    worse = [f"{named(method)} {number(more, 1)} points worse" for method, more in apart.items() if more > 0]
    better = [named(method) for method, more in apart.items() if more <= 0]
    parts = [" and ".join(worse)] if worse else []
    parts += [f"{', '.join(better)} as good or better"] if better else []
    return f"Beside the paper's float networks on CIFAR-10: {'; '.join(parts)}."


def status(studies: Studies) -> Lines:
    """What of the paper's CIFAR-10 study is not there yet; nothing of it once all planned runs are done."""
    frames = [studies[network.study].frame for network in NETWORKS if network.study in studies]
    done = sum(len(frame.rows) for frame in frames)
    if not done:
        return [
            "Version 0.1. **Not there yet**: the paper's CIFAR-10 study, run and published. It comes next."
        ]
    if len(frames) == len(NETWORKS) and all(
        len(frame.rows) + len(frame.failed) >= frame.planned for frame in frames
    ):
        return ["Version 0.1."]
    planned = sum(frame.planned for frame in frames)
    missing = [network.words for network in NETWORKS if network.study not in studies]
    more = f", and {' and '.join(missing)}" if missing else ""
    left = f"{planned - done} of {planned} runs of the paper's CIFAR-10 study{more}"
    return [f"Version 0.1. **Not there yet**: {left} ([what there is](docs/results/cifar10.md))."]


def cpu_speed(studies: Studies) -> Lines:
    """What bfloat16 gives on a CPU, and what a step of distillation costs; nothing before it is measured."""
    own = [row for row in read_speed(studies.folder / NAME) if row["network"].startswith(NETWORK)]
    epochs = [float(row["ratio"]) for row in own if (row["benchmark"], row["work"]) == (EPOCH, "bf16")]
    steps = [float(row["ratio"]) for row in own if (row["benchmark"], row["work"]) == (STEP, "imitation")]
    lines: Lines = []
    if epochs:
        lines.append(
            f"- With `bf16` an epoch of the slim ResNet-18 takes {_range(epochs)} of its time in "
            f"float32, by method ({own[0]['processor']}, {own[0]['instructions']}; "
            "[times](results/cifar10.md#what-it-costs))."
        )
    if steps:
        lines.append(f"- A step of distillation costs {_range(steps)} float steps there.")
    return lines


def _range(ratios: Sequence[float]) -> str:
    ends = [number(ratio, 2) for ratio in (min(ratios), max(ratios))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


README: Mapping[str, Callable[[Studies], Lines]] = {"status": status}
HOW_TO_CHOOSE: Mapping[str, Callable[[Studies], Lines]] = {
    "float": float_table,
    "cpu speed": cpu_speed,
}
