"""Float against integers on the embedded data: scores of the four methods from 8 down to 2 bits.

    python benchmarks/scores/integers.py --part sweep  [--tasks digits] [--methods mcd bbb] [--seeds 0 1 2]
    python benchmarks/scores/integers.py --part ranges
    python benchmarks/scores/integers.py --part mask
    python benchmarks/scores/integers.py --part sweep --table

``sweep``: digits and diabetes, calibration alone beside quantisation-aware training. ``ranges``: the range
rules against each other. ``mask``: MC dropout with our mask and with the paper's. Every number is that of an
integer program. Rows are appended to a CSV as they are made and rows that are there are not made again, so
that the same command goes on where it was stopped; float posteriors are kept in ``--cache``.
"""

import argparse
import csv
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

import qbayes as qb

RESULTS = Path(__file__).parents[2] / "docs" / "results"
FILES = {"sweep": "integers_digits.csv", "ranges": "integers_ranges.csv", "mask": "integers_mask.csv"}
METHODS = ("pointwise", "mcd", "bbb", "sghmc")
SCORES = (
    "error", "rmse", "nll", "ece", "entropy", "mutual_information", "coverage_90",
    "confusion/entropy", "confusion/auroc",
)  # fmt: skip
DRAWS = 20
MEMBERS = 8
# digits: small budgets that reach 2 to 3 % error. diabetes: the presets for regression, on the networks of
# studies/uci.toml.
DIGITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointwise": ({}, {"epochs": 30, "learning_rate": 1e-3}),
    "mcd": ({"rate": 0.2}, {"epochs": 40, "learning_rate": 1e-3}),
    "bbb": ({"prior_sigma": 0.1, "kl_weight": 0.1}, {"epochs": 40, "learning_rate": 2e-3}),
    "sghmc": (
        {"members": MEMBERS, "every": 2},
        {"epochs": 40, "learning_rate": 1e-2, "schedule": "constant"},
    ),
}
TABLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pointwise": ({}, {"hidden": (50,), "noise": "constant"}),
    "mcd": ({"rates": {"log_variance": 0.5}}, {"hidden": (50, 50), "noise": "row"}),
    "bbb": ({}, {"hidden": (50,), "noise": "constant"}),
    "sghmc": ({"members": MEMBERS}, {"hidden": (50,), "noise": "constant"}),
}


@dataclass(frozen=True)
class Job:
    """One row: which posterior, on which grids, and how it came onto them."""

    task: str
    network: str
    method: str
    seed: int
    precision: str
    scheme: str
    training: str

    @property
    def posterior(self) -> tuple[str, str, str, int]:
        return self.task, self.network, self.method, self.seed


def scheme(name: str, weight: int, activation: int) -> qb.Precision:
    """``default``; a range rule for weights and activations; ``product``, the mask alone; or ``paper``."""
    if name == "default":
        return qb.Precision(weight=weight, activation=activation)
    if name == "product":
        return qb.Precision(weight=weight, activation=activation, mask="product")
    if name == "paper":
        return qb.Precision.preset("paper", weight=weight, activation=activation)
    return qb.Precision(weight=weight, activation=activation, weight_range=name, activation_range=name)


BUDGETS: dict[str, Callable[[], qb.Budget]] = {
    "calibration": lambda: qb.qat_budget(epochs=0),
    "qat": qb.qat_budget,
    "qat, 10 epochs": lambda: qb.qat_budget(epochs=10),
    "qat as the paper's": lambda: qb.qat_budget("paper"),
}


def jobs(part: str, seeds: list[int], tasks: list[str], methods: list[str]) -> Iterator[Job]:
    """The rows of a part, the first seed of all before the second of any."""
    for seed in seeds:
        if part == "sweep":
            for how, task, method in itertools.product(("calibration", "qat"), tasks, methods):
                network = "lenet relu" if task == "digits" else "mlp"
                for bits in ("W8A8", "W4A4", "W3A3", "W8A7", "W2A2"):
                    yield Job(task, network, method, seed, bits, "default", how)
        elif part == "ranges":
            for how, bits, method, rule in itertools.product(
                ("calibration", "qat, 10 epochs"),
                ("W3A3", "W4A4", "W8A8", "W2A2"),
                ("mcd", "pointwise"),
                ("lsq", "mse", "percentile", "ema", "minmax"),
            ):
                yield Job("digits", "lenet relu", method, seed, bits, rule, how)
        else:
            for style, bits in itertools.product(("paper", "relu"), ("W8A4", "W8A3", "W8A2")):
                for name, how in (
                    *itertools.product(("default", "product", "paper"), ("calibration", "qat")),
                    ("paper", "qat as the paper's"),
                ):
                    yield Job("digits", f"lenet {style}", "mcd", seed, bits, name, how)


@functools.cache
def the_task(name: str, seed: int) -> qb.Task:
    return qb.load_task(name, split=seed) if name == "diabetes" else qb.load_task(name)


def float_posterior(job: Job, cache: Path) -> qb.NetworkPosterior:
    """Trained once for all rows that start from it."""
    folder = cache / "-".join(map(str, job.posterior)).replace(" ", "-")
    if folder.exists():
        return qb.load_posterior(folder)
    task = the_task(job.task, job.seed)
    if job.task == "digits":
        options, training = DIGITS[job.method]
        method, budget = qb.method(job.method, **options), qb.Budget(batch_size=64, **training)
        network = functools.partial(qb.network, "lenet", task, style=job.network.split()[1])
    else:
        options, layers = TABLES[job.method]
        method, budget = qb.recipe(job.method, task, **options)
        network = functools.partial(qb.network, "mlp", task, **layers)
    posterior = qb.fit(network, task, method, budget, seed=job.seed, device="cpu", progress=False)
    qb.save_posterior(posterior, folder)
    return posterior


def scored(posterior: Any, task: qb.Task) -> dict[str, str]:
    found = qb.evaluate(posterior, task, DRAWS, shifts=False)
    numbers = found.clean | {f"confusion/{name}": value for name, value in found.confusion.items()}
    return {name: f"{numbers[name]:.6g}" if name in numbers else "" for name in SCORES}


def integer_scores(posterior: qb.NetworkPosterior, job: Job) -> dict[str, str]:
    task = the_task(job.task, job.seed)
    weight, activation = (int(bits) for bits in job.precision[1:].split("A"))
    quantized = qb.quantize(
        posterior,
        task,
        scheme(job.scheme, weight, activation),
        BUDGETS[job.training](),
        seed=job.seed,
        device="cpu",
        progress=False,
    )
    return scored(qb.load(qb.lower(quantized)), task)


class Rows:
    """A CSV that grows row by row and knows which rows it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = [*(field.name for field in fields(Job)), *SCORES, "seconds"]
        self.known: set[tuple[str, ...]] = set()
        self.held: list[dict[str, str]] = []
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                self.held = list(csv.DictReader(file))
        self.known = {tuple(row[field.name] for field in fields(Job)) for row in self.held}

    def __contains__(self, job: Job) -> bool:
        return tuple(map(str, asdict(job).values())) in self.known

    def add(self, job: Job, scores: Mapping[str, str], seconds: float) -> None:
        row = {name: str(value) for name, value in asdict(job).items()}
        row |= {**scores, "seconds": f"{seconds:.1f}"}
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            if new:
                writer.writeheader()
            writer.writerow(row)
        self.held.append(row)
        self.known.add(tuple(map(str, asdict(job).values())))


def run(wanted: Iterator[Job], rows: Rows, cache: Path, seconds: float) -> None:
    begun = time.monotonic()
    posterior: qb.NetworkPosterior | None = None
    of: tuple[str, str, str, int] | None = None
    for job in wanted:
        if job in rows:
            continue
        if seconds and time.monotonic() - begun > seconds:
            return
        if posterior is None or of != job.posterior:
            posterior, of = float_posterior(job, cache), job.posterior
            reference = Job(*job.posterior, "float32", "float", "float")
            if reference not in rows:
                rows.add(reference, scored(posterior, the_task(job.task, job.seed)), 0.0)
        start = time.monotonic()
        rows.add(job, integer_scores(posterior, job), time.monotonic() - start)
        print(*asdict(job).values(), {k: v for k, v in rows.held[-1].items() if k in SCORES[:4]}, flush=True)


def table(rows: Rows) -> str:
    """Markdown: mean over the seeds of the paired differences to float; error and ECE in points."""
    floats = {_posterior(row): row for row in rows.held if row["precision"] == "float32"}
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows.held:
        if row["precision"] != "float32":
            key = ("task", "network", "method", "precision", "scheme", "training")
            groups.setdefault(tuple(row[name] for name in key), []).append(row)
    lines = [
        "| task | network | method | bits | scheme | training | Δ error, points, or RMSE, % | Δ NLL | Δ ECE, points | seeds |",  # noqa: E501
        "|---" * 10 + "|",
    ]
    for key, chosen in sorted(groups.items()):
        pairs = [(row, floats[_posterior(row)]) for row in chosen]
        first = [
            100 * (float(q["error"]) - float(f["error"]))
            if f["error"]
            else 100 * (float(q["rmse"]) / float(f["rmse"]) - 1)
            for q, f in pairs
        ]
        nll = [float(q["nll"]) - float(f["nll"]) for q, f in pairs]
        ece = [100 * (float(q["ece"]) - float(f["ece"])) for q, f in pairs if f["ece"]]
        cells = [f"{statistics.mean(first):+.2f}", f"{statistics.mean(nll):+.3f}"]
        cells += [f"{statistics.mean(ece):+.2f}" if ece else "–", str(len(pairs))]
        lines.append("| " + " | ".join([*key, *cells]) + " |")
    return "\n".join(lines)


def _posterior(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("task", "network", "method", "seed"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=tuple(FILES), default="sweep")
    parser.add_argument("--tasks", nargs="+", choices=("digits", "diabetes"), default=["diabetes", "digits"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSVs")
    parser.add_argument("--cache", type=Path, default=Path("runs/integers"), help="folder of the posteriors")
    parser.add_argument("--seconds", type=float, default=0, help="start no row after so long; 0: no limit")
    parser.add_argument("--table", action="store_true", help="print the rows that are there, run nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(given.out / FILES[given.part])
    if not given.table:
        wanted = jobs(given.part, given.seeds, given.tasks, given.methods)
        run(wanted, rows, given.cache, given.seconds)
    print(table(rows))


if __name__ == "__main__":
    main()
