"""The scale S of each product with the paper's mask, and whether the network still answers.

    python benchmarks/scores/mask_scale.py --data DIR [--epochs 8] [--seeds 0 1 2]
    python benchmarks/scores/mask_scale.py --data DIR --ours runs/mnist --paper runs/mnist-paper

MC dropout on MNIST. The paper's mask multiplies an activation by "keep" on the product's own grid,
S · round(1 / S): nothing once S is 2 or more. Each seed trains LeNet for a few epochs, sets the ranges in
three ways, trains nothing, and writes a row for each product and width to docs/results/mask-scale.csv. The
second line takes the trained networks of studies instead. Ranges are set:

``once``      all calibration rows are seen before a range is set: the mask multiplies by 1 until then.
``batches``   the range is set anew behind every batch of calibration: the next one is seen through the mask.
``followed``  as ``once``, then a moving average over batches, as in the paper's fine-tuning.
"""

import argparse
import copy
import csv
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

import qbayes as qb
from qbayes.errors import BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.noise import derive_seed
from qbayes.quant.finetune.job import CALIBRATION_ROWS, network_of
from qbayes.quant.layers.elementwise import QuantMaskProduct
from qbayes.quant.network import QuantNetwork

RESULTS = Path(__file__).parents[2] / "docs" / "results"
Ranges = Literal["once", "batches", "followed"]
# the network, its masks and the scheme of its grids: ours and the paper's.
SCHEMES = {"ours": ("relu", "default", "default"), "paper": ("paper", "paper", "paper")}
WAYS: dict[str, tuple[Ranges, ...]] = {"ours": ("once", "batches"), "paper": ("once", "followed")}
ACTIVATIONS = (7, 6, 5, 4, 3)
BATCH = 128
# steps of following, at the paper's batch: half of its ten epochs follow, and the average forgets within 100.
STEPS, FOLLOWED_BATCH = 400, 64
TEST_ROWS, DRAWS = 500, 5
FIELDS = ("seed", "scheme", "activation", "ranges", "layer", "scale", "gain", "error", "epochs")


def train(task: qb.Task, scheme: str, seed: int, epochs: int) -> qb.NetworkPosterior:
    style, placement, _ = SCHEMES[scheme]
    method, budget = qb.recipe("mcd", task, placement=placement)
    few = dataclasses.replace(budget, epochs=epochs, least_steps=0, bf16="auto", channels_last=True)
    network = functools.partial(qb.network, "lenet", task, style=style)
    return qb.fit(network, task, method, few, seed=seed, device="cpu", progress=False)


def stored(store: Path, seed: int) -> qb.NetworkPosterior:
    """The float posterior of MC dropout that a study trained with this seed."""
    rows = Frame.read(store).where(method="mcd", precision="float", seed=seed).rows
    if not rows:
        raise BadInput(
            f"{store} must have a float run of mcd", f"none of seed {seed}", "run that study first"
        )
    return qb.load_posterior(store / "float" / str(rows[0]["float"]))


def products(network: QuantNetwork) -> dict[str, QuantMaskProduct]:
    found = ((step.name, network.layer(step.name)) for step in network.steps)
    return {name: layer for name, layer in found if isinstance(layer, QuantMaskProduct)}


def batches(task: qb.Task, seed: int, size: int) -> Iterator[Tensor]:
    order = torch.Generator().manual_seed(derive_seed(seed, "rows of ranges"))
    for epoch in itertools.count():
        for x, _ in task.training_batches(size, order, torch.device("cpu"), epoch):
            yield x


@torch.no_grad()
def set_again(network: QuantNetwork, task: qb.Task, seed: int) -> None:
    """Calibrate once more, each product's range behind every batch."""
    for _, quantizer in network.quantizers():
        quantizer.reset()
    found = products(network).values()
    with network.calibrating():
        for x in itertools.islice(batches(task, seed, BATCH), CALIBRATION_ROWS // BATCH):
            network(x)
            for product in found:
                product.out.end_calibration()


@torch.no_grad()
def follow(network: QuantNetwork, task: qb.Task, seed: int) -> None:
    """Let the ranges follow batches of training; weights stay."""
    network.train()
    for x in itertools.islice(batches(task, seed, FOLLOWED_BATCH), STEPS):
        network(x)


def rows(
    task: qb.Task, posterior: qb.NetworkPosterior, scheme: str, seed: int
) -> Iterator[dict[str, object]]:
    for activation, ranges in itertools.product(ACTIVATIONS, WAYS[scheme]):
        precision = qb.Precision.preset(SCHEMES[scheme][2], weight=8, activation=activation)
        quantized = qb.quantize(
            posterior,
            task,
            dataclasses.replace(precision, mask="product"),
            qb.FineTuning(epochs=0, batch_size=BATCH),
            seed=seed,
            device="cpu",
            progress=False,
        )
        network = network_of(quantized.networks[0])
        torch.manual_seed(derive_seed(seed, "masks of ranges"))
        if ranges == "batches":
            set_again(network, task, seed)
        elif ranges == "followed":
            follow(network, task, seed)
        network.eval()
        error = error_of(quantized, task)
        for name, product in products(network).items():
            yield {
                "seed": seed,
                "scheme": scheme,
                "activation": activation,
                "ranges": ranges,
                "layer": name.removesuffix(".product"),
                "scale": f"{float(product.out.grid()[0]):.5g}",
                "gain": f"{float(product.gain()):.5g}",
                "error": f"{error:.4f}",
            }


def error_of(posterior: qb.NetworkPosterior, task: qb.Task) -> float:
    x, y = next(iter(task.batches("test", TEST_ROWS)))
    answer = copy.deepcopy(posterior).predict(x, draws=DRAWS)
    return float((answer.mean.argmax(-1) != y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the data sets (else QBAYES_DATA)")
    parser.add_argument("--epochs", type=int, default=8)
    for scheme in SCHEMES:
        parser.add_argument(f"--{scheme}", type=Path, help="a study's store, whose networks are taken")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "mask-scale.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = qb.load_task("mnist", given.data, confusion=False)
    with given.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter[str](file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for seed, scheme in itertools.product(given.seeds, SCHEMES):
            store: Path | None = getattr(given, scheme)
            trained = train(task, scheme, seed, given.epochs) if store is None else stored(store, seed)
            for row in rows(task, trained, scheme, seed):
                row |= {"epochs": given.epochs if store is None else store.name}
                writer.writerow(row)
                print(*row.values(), flush=True)


assert set(itertools.chain(*WAYS.values())) == set(get_args(Ranges))

if __name__ == "__main__":
    main()
