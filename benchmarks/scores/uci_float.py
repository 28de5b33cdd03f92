"""RMSE and NLL of the float methods on UCI: the 20 fixed splits in original units, mean and standard error.

    python benchmarks/scores/uci_float.py --data-dir DATA --out runs/uci [--methods mcd bbb]
                                          [--sets boston yacht] [--splits 20] [--processes 2] [--seconds 0]

The data come from ``qbayes data fetch uci``. Each process trains on one core. Runs that are done are kept in
the output folder, so that the same command goes on where it was stopped.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

SETS = ("power", "concrete", "boston", "energy", "wine", "yacht")
# the networks of the table; methods and budgets are the default presets for UCI.
NETWORKS: dict[str, dict[str, Any]] = {
    "pointwise": {"hidden": (50,), "noise": "constant"},
    "mcd": {"hidden": (50, 50), "noise": "row"},
    "bbb": {"hidden": (50,), "noise": "constant"},
    "sghmc": {"hidden": (50,), "noise": "constant"},
}
# the head of the noise overfits first: its own, higher rate keeps the noise honest on Boston and Wine.
OPTIONS: dict[str, dict[str, Any]] = {"mcd": {"rates": {"log_variance": 0.5}}}
DRAWS = 100


def run(job: tuple[str, str, int, str, str]) -> dict[str, Any]:
    """Fit and evaluate one split; its scores are on disk when it returns."""
    method_name, name, split, data_dir, out = job
    import torch

    import qbayes as qb

    torch.set_num_threads(1)
    path = Path(out) / f"{method_name}-{name}-{split:02d}.json"
    if path.exists():
        return json.loads(path.read_text())
    begun = time.monotonic()
    task = qb.load_task(f"uci/{name}", data_dir=data_dir, split=split)
    method, budget = qb.recipe(method_name, task, **OPTIONS.get(method_name, {}))
    network = NETWORKS[method_name]
    posterior = qb.fit(
        lambda: qb.network("mlp", task, **network),
        task,
        method,
        budget,
        seed=split,
        device="cpu",
        progress=False,
    )
    scores = qb.evaluate(posterior, task, draws=DRAWS).clean
    row = {"method": method_name, "set": name, "split": split, **scores, "seconds": time.monotonic() - begun}
    path.write_text(json.dumps(row))
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line a method, RMSE / NLL ± standard error a set."""

    def cell(method: str, name: str) -> str:
        chosen = [row for row in rows if (row["method"], row["set"]) == (method, name)]
        parts = []
        for metric, digits in (("rmse", 2), ("nll", 2)):
            values = [row[metric] for row in chosen]
            if len(values) > 1:
                error = statistics.stdev(values) / len(values) ** 0.5
                parts.append(f"{statistics.mean(values):.{digits}f} ± {error:.2f}")
        return " / ".join(parts) + (f" ({len(chosen)})" if len(chosen) != 20 else "")

    methods = [m for m in NETWORKS if any(row["method"] == m for row in rows)]
    sets = [name for name in SETS if any(row["set"] == name for row in rows)]
    lines = ["| RMSE / NLL | " + " | ".join(sets) + " |", "|---" * (len(sets) + 1) + "|"]
    lines += [f"| {m} | " + " | ".join(cell(m, name) for name in sets) + " |" for m in methods]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument(
        "--methods", nargs="+", default=["mcd", "bbb", "sghmc", "pointwise"], choices=NETWORKS
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long (0: run to the end)")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    jobs = [
        (method, name, split, options.data_dir, options.out)
        for method in options.methods
        for name in options.sets
        for split in range(options.splits)
    ]
    ends = time.monotonic() + options.seconds if options.seconds else float("inf")
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = pool.imap_unordered(run, jobs)
        while len(rows) < len(jobs) and time.monotonic() < ends:
            try:
                rows.append(results.next(timeout=min(5.0, max(0.1, ends - time.monotonic()))))
            except multiprocessing.TimeoutError:
                continue
    (Path(options.out) / "rows.json").write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
