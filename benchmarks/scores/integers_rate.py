"""The rate of quantisation-aware training, chosen on held-out training rows of digits and on no test row.

    python benchmarks/scores/integers_rate.py [--seeds 0 1] [--out docs/results/integers_rate.csv]

Four methods at 8, 4, 3 and 2 bits, fine-tuned at three rates for 200 steps, and at the default rate for 400;
scores of the fake-quantised posterior on the validation rows, a quarter of the training rows.
"""

import argparse
import csv
import functools
import itertools
from pathlib import Path

import torch
from integers import DIGITS, DRAWS

import qbayes as qb

FIELDS = ("method", "seed", "bits", "rate", "steps", "error", "nll", "mutual_information")
TRIED = ((3e-3, 200), (1e-2, 200), (1e-2, 400), (3e-2, 200))


def scored(posterior: qb.NetworkPosterior, task: qb.Task) -> list[float]:
    found = qb.evaluate(posterior, task, DRAWS, shifts=False, confusion=False, split="validation").clean
    return [found[name] for name in FIELDS[5:]]


def rows(seed: int, task: qb.Task) -> "list[tuple[object, ...]]":
    made: list[tuple[object, ...]] = []
    for name, (options, training) in DIGITS.items():
        few = {**options, "members": 4} if name == "sghmc" else options
        network = functools.partial(qb.network, "lenet", task, style="relu")
        budget = qb.Budget(batch_size=64, **training)
        posterior = qb.fit(network, task, qb.method(name, **few), budget, seed=seed, device="cpu")
        made.append((name, seed, "float", 0, 0, *scored(posterior, task)))
        for bits, (rate, steps) in itertools.product((8, 4, 3, 2), TRIED):
            budget = qb.qat_budget(learning_rate=rate, least_steps=steps)
            precision = qb.Precision(weight=bits, activation=bits)
            quantized = qb.quantize(posterior, task, precision, budget, seed=seed, device="cpu")
            made.append((name, seed, bits, rate, steps, *scored(quantized, task)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("docs/results/integers_rate.csv"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    task = qb.load_task("digits", validation=0.25)
    with asked.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for seed in asked.seeds:
            writer.writerows(rows(seed, task))


if __name__ == "__main__":
    main()
