"""Where the grid of Gaussian weights ends: rules beside each other, on held-out training rows alone.

    PYTHONPATH=src:tests python benchmarks/scores/gaussian_networks.py [--networks digits …] [--seeds 0 1 2]

``bbb`` networks of digits, of two tables and of the tests' zoo, at 8 to 2 bits of weights and 8 of the rest,
calibrated, and fine-tuned by 100 steps of the default recipe. Goes on where it stopped; ``--summary`` prints
the table of the page instead.

Rules: ``max`` is that of the means alone, least in squares up to max|μ|; ``3 sigma`` ends at |μ| + 3σ;
``squares`` at the least squared error of the drawn weight; ``drawn`` is the library's.
"""

import argparse
import csv
import functools
import itertools
import json
import math
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.posterior.predictive import CategoricalPredictive
from qbayes.provenance import processor, versions
from qbayes.quant.layers import drawn_grid, gaussian
from qbayes.quant.layers.gaussian import GaussianWeights
from zoo.tasks import TASKS, ZOO

FIELDS = ("network", "seed", "training", "bits", "rule", "logits", "nll", "miss", "one_grid", "layers")
DRAWS, ROWS = 20, 300
BITS, FEW = (8, 6, 5, 4, 3, 2), (4, 3, 2)
NETWORKS = ("digits", "uci/concrete", "uci/yacht", "mlp_silu", "squeeze_excite", "sequence")
ours = GaussianWeights.make_room_for_noise


def leave(weights: GaussianWeights) -> None:
    """The ends that the rule of the means gave."""


@torch.no_grad()
def three_sigma(weights: GaussianWeights) -> None:
    reach = (weights.weight_mean.abs() + 3 * weights.weight_sigma).flatten(1).amax(1)
    weights.quantizer.scale.copy_(reach / weights.limit)


def squares(weights: GaussianWeights) -> None:
    """As ours, but errors that go together count like others; a noise of its own leaves the plain rule."""
    plain = weights.quantizer.scale.detach().clone()
    alone = drawn_grid.errors_of_draws

    def errors(mean: Tensor, sigma: Tensor, coded: Tensor, scales: Tensor, **more: int) -> Tensor:
        return alone(mean, sigma, coded, scales, together=0.0, **more)

    with mock.patch.object(drawn_grid, "errors_of_draws", errors):
        ours(weights)
    if not weights.keeps_noise():
        weights.quantizer.scale.detach().copy_(plain)


RULES: dict[str, Callable[[GaussianWeights], None]] = {
    "max": leave,
    "3 sigma": three_sigma,
    "squares": squares,
    "drawn": ours,
}


@functools.cache
def task_of(name: str) -> qb.Task:
    """Training rows, of which a quarter is held out."""
    if name not in TASKS:
        return qb.load_task(name, validation=0.25)
    whole = TASKS[name]()
    x, y = next(iter(whole.batches("train", whole.train_rows)))
    cut = len(x) * 3 // 4
    return qb.Task.from_arrays(
        x[:cut],
        y[:cut],
        x_validation=x[cut:],
        y_validation=y[cut:],
        kind=whole.kind,
        name=whole.name,
    )


def trained(name: str, seed: int) -> tuple[qb.NetworkPosterior, qb.Task]:
    if name in ZOO:
        entry = ZOO[name]
        task, build = task_of(entry.task), entry.build
        method, budget = entry.method("bbb"), entry.budget("bbb")
    elif name == "digits":
        task = task_of(name)
        build = functools.partial(qb.network, "lenet", task, style="relu")
        method = qb.method("bbb", prior_sigma=0.1, kl_weight=0.1)
        budget = qb.Budget(epochs=15, batch_size=64, learning_rate=2e-3)
    else:
        task = task_of(name)
        build = functools.partial(qb.network, "mlp", task)
        method, _ = qb.recipe("bbb", task)
        budget = qb.Budget(epochs=40, least_steps=1500, batch_size=64, learning_rate=1e-2)
    return qb.fit(build, task, method, budget, seed=seed, device="cpu", progress=False), task


def answers(posterior: qb.NetworkPosterior, x: Tensor) -> Tensor:
    """Mean logits, centred, or mean predictions."""
    found = posterior.predict(x, draws=DRAWS, seed=0)
    if not isinstance(found, CategoricalPredictive):
        return found.mean.double()
    logits = found.log_draws.double().mean(0)
    return logits - logits.mean(-1, keepdim=True)


def rows(name: str, seed: int, done: set[tuple[str, ...]]) -> "list[tuple[object, ...]]":
    asked = [("calibration", *point) for point in itertools.product(BITS, RULES)]
    asked += [("fine-tuned", *point) for point in itertools.product(FEW, RULES)]
    asked = [point for point in asked if (name, str(seed), *map(str, point)) not in done]
    if not asked:
        return []
    posterior, task = trained(name, seed)
    x, _ = next(iter(task.batches("validation", ROWS)))
    wanted = answers(posterior, x)
    spread = (wanted - wanted.mean(0)).square().mean().sqrt()
    made: list[tuple[object, ...]] = []
    if not any(point[0] == name and point[1] == str(seed) for point in done):
        made.append((name, seed, "float", "", "", 0.0, *scores(posterior, task), 0, 0))
    for training, bits, rule in asked:
        steps: dict[str, Any] = (
            {"epochs": 0} if training == "calibration" else {"epochs": 1, "least_steps": 100}
        )
        budget = qb.FineTuning(**steps)
        precision = qb.Precision(weight=bits)
        with mock.patch.object(GaussianWeights, "make_room_for_noise", RULES[rule]):
            made_of = qb.quantize(posterior, task, precision, budget, seed=seed, device="cpu", progress=False)
        error = float((answers(made_of, x) - wanted).square().mean().sqrt() / spread)
        grids = [int(part.grids) for part in gaussians(made_of.networks[0])]
        row = (name, seed, training, bits, rule, round(error, 5), *scores(made_of, task), grids.count(1))
        made.append((*row, len(grids)))
    return made


def gaussians(network: nn.Module) -> list[GaussianWeights]:
    return [part for part in network.modules() if isinstance(part, gaussian.GaussianWeights)]


def scores(posterior: qb.NetworkPosterior, task: qb.Task) -> tuple[float, float]:
    found = qb.evaluate(posterior, task, DRAWS, shifts=False, confusion=False, split="validation").clean
    return round(found["nll"], 5), round(found["error" if "error" in found else "rmse"], 5)


def summary(path: Path) -> None:
    """By bits and rule: the logits' error, a geometric mean over networks and seeds, and the loss of NLL."""
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(line for line in file if not line.startswith("#")))
    floats = {(row["network"], row["seed"]): row for row in found if row["training"] == "float"}
    logits: dict[tuple[str, ...], list[float]] = defaultdict(list)
    losses: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in found:
        if row["training"] == "float":
            continue
        point = row["training"], row["bits"], row["rule"]
        logits[point].append(math.log(float(row["logits"])))
        losses[point].append(float(row["nll"]) - float(floats[row["network"], row["seed"]]["nll"]))
    print(f"| | bits | {' | '.join(RULES)} |\n| --- | --- |{' --- |' * len(RULES)}")
    for training, bits in itertools.product(("calibration", "fine-tuned"), map(str, BITS)):
        points = [(training, bits, rule) for rule in RULES]
        if all(point in logits for point in points):
            cells = [
                f"{100 * math.exp(statistics.fmean(logits[p])):.2f} % {statistics.fmean(losses[p]):+.3f}"
                for p in points
            ]
            print(f"| {training} | {bits} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("docs/results/gaussian-grids.csv"))
    parser.add_argument("--summary", action="store_true")
    asked = parser.parse_args()
    if asked.summary:
        summary(asked.out)
        return
    torch.set_num_threads(1)
    if not asked.out.exists():
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
        told = {"commit": head.strip(), "processor": processor(), **versions()}
        asked.out.write_text(f"# {json.dumps(told)}\n{','.join(FIELDS)}\n", encoding="utf-8")
    for seed, name in itertools.product(asked.seeds, asked.networks):
        with asked.out.open(encoding="utf-8", newline="") as file:
            done = {tuple(row[:5]) for row in csv.reader(file)}
        found = rows(name, seed, done)
        with asked.out.open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(found)
        print(name, seed, len(found), "rows", flush=True)


if __name__ == "__main__":
    main()
