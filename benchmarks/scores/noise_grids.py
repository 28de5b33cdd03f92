"""On how many grids a layer of Gaussian weights draws, by the bits of ε and by where the weights' grid ends.

    python benchmarks/scores/noise_grids.py [--seeds 0 1 2]

Bayes-by-Backprop on digits at W4A4, calibrated. A layer draws on the weights' own grid where that keeps the
noise's variance, else on a second grid. ``means``: the grid ends where the means err least, and clips the
noise of the largest weights; ``drawn``: where the drawn weights err least, as ``quantize`` has it. Writes
docs/results/noise-grids.csv: the share of the variance that is kept, the grids, and the NLL of the network.
"""

import argparse
import csv
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import qbayes as qb
from qbayes.quant.finetune.job import network_of
from qbayes.quant.layers.gaussian import GaussianWeights

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NOISE_BITS = (2, 3, 4, 5, 8)
ENDS = ("means", "drawn")
FIELDS = ("seed", "end", "noise", "layer", "kept", "grids", "nll")


def train(task: qb.Task, seed: int) -> qb.NetworkPosterior:
    """As ``studies/noise-bits.toml``."""
    network = functools.partial(qb.network, "lenet", task, style="relu")
    method = qb.method("bbb", prior_sigma=0.1, kl_weight=0.1)
    budget = qb.Budget(epochs=40, batch_size=64, learning_rate=2e-3)
    return qb.fit(network, task, method, budget, seed=seed, device="cpu", progress=False)


def quantize(
    posterior: qb.NetworkPosterior, task: qb.Task, end: str, noise: int, seed: int
) -> qb.NetworkPosterior:
    asked = qb.Precision(weight=4, activation=4, noise=noise)
    run = functools.partial(
        qb.quantize, posterior, task, asked, qb.FineTuning(epochs=0, equalize=True), seed=seed, device="cpu"
    )
    if end == "drawn":
        return run(progress=False)
    # the rule of earlier versions: the grid of the means, as it is for weights without noise.
    with mock.patch.object(GaussianWeights, "make_room_for_noise", return_value=None):
        return run(progress=False)


def kept(weights: GaussianWeights) -> float:
    """The share of the variance that the weights' own grid keeps, on average over the channels."""
    step, _ = weights.quantizer.grid()
    codes: Tensor = weights._variance(step.expand(len(weights.weight_mean)), with_mean=True)  # pyright: ignore[reportPrivateUsage]
    wanted = weights._ideal_scale(weights.weight_sigma.flatten(1).double())  # pyright: ignore[reportPrivateUsage]
    return float((step.double().square() * codes).sum() / wanted.sum())


def rows(task: qb.Task, seed: int) -> Iterator[dict[str, object]]:
    posterior = train(task, seed)
    for end, noise in itertools.product(ENDS, NOISE_BITS):
        quantized = quantize(posterior, task, end, noise, seed)
        scores = qb.evaluate(qb.load(qb.lower(quantized)), task, 20, shifts=False, confusion=False).clean
        for name, layer in network_of(quantized.networks[0]).layers.items():
            weights = getattr(layer, "weights", None)
            if isinstance(weights, GaussianWeights):
                yield {
                    "seed": seed,
                    "end": end,
                    "noise": noise,
                    "layer": name.replace("/", "."),
                    "kept": f"{kept(weights):.4f}",
                    "grids": int(weights.grids),
                    "nll": f"{scores['nll']:.6g}",
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "noise-grids.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = qb.load_task("digits")
    with given.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter[str](file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for seed in given.seeds:
            writer.writerows(rows(task, seed))
            print(f"seed {seed}", flush=True)


if __name__ == "__main__":
    main()
