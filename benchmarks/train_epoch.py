"""What an epoch of float training costs: CIFAR-10's preset as it was, in float32, and as it is, run in turn.

    python benchmarks/train_epoch.py [--network resnet18] [--methods pointwise,mcd,bbb,sghmc] [--rounds 5]
        [--csv FILE]

An epoch is trained by ``qb.fit`` on random images of CIFAR-10's size, with its windows and mirrors, on one
thread. Time is what the process took of the processor: the least of the rounds, scaled to the 45,000 training
rows of CIFAR-10. ``small`` has images of three quarters of their side, which a preset shows in its first
epochs; ``preset`` is the mean over its epochs. ``images`` is what the images alone take: choice, windows and
mirrors. Ratios are to ``float32``, channels last.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from speed_rows import measured, write_rows

import qbayes as qb
from qbayes.networks import build_network
from qbayes.provenance import instructions, processor
from qbayes.tasks.datasets.cifar10 import augmentation

ROWS = 45_000
SHAPE = (3, 32, 32)
BATCH = 256
# the share of epochs with small images in the presets of CIFAR-10, for each network.
SMALL = {"resnet18": 0.4, "resnet8": 0.0}
WIDTHS = {"resnet18": {"width": "slim"}}
# one epoch gives the one member that is kept.
OPTIONS = {"sghmc": {"burn_in": 0, "members": 1, "every": 1}}

Work = Callable[[], object]


def make_task(rows: int) -> qb.Task:
    """Random images with the augmentation of CIFAR-10; no row is held out."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (rows, *SHAPE), generator=generator, dtype=torch.uint8)
    y = torch.arange(rows) % 10
    return qb.Task.from_arrays(x, y, kind="classification", augment=augmentation(augment=True))


def epochs(method: str, network: str, task: qb.Task) -> dict[str, Work]:
    """One epoch of each kind."""
    budget = qb.Budget(epochs=1, batch_size=BATCH, learning_rate=1e-3, channels_last=True)
    kinds = {
        "float32": budget,
        "bf16": dataclasses.replace(budget, bf16="auto"),
        "small": dataclasses.replace(budget, bf16="auto", small_images=0.9),
    }
    made = qb.method(method, **OPTIONS.get(method, {}))

    def train(budget: qb.Budget) -> Work:
        def fit() -> object:
            torch.manual_seed(0)
            fresh = build_network(network, SHAPE, 10, **WIDTHS.get(network, {}))
            return qb.fit(fresh, task, made, budget, device="cpu", progress=False)

        return fit

    def show_images() -> None:
        order = torch.Generator().manual_seed(0)
        for _ in task.training_batches(BATCH, order, torch.device("cpu"), 0):
            pass

    return {**{name: train(budget) for name, budget in kinds.items()}, "images": show_images}


def processor_seconds(work: Work) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measure(method: str, network: str, rows: int, rounds: int) -> dict[str, float]:
    """The seconds of an epoch of 45,000 rows, by the kind of work."""
    works = epochs(method, network, make_task(rows))
    least = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            least[name] = min(least[name], processor_seconds(work))
    small = SMALL[network]
    least["preset"] = small * least["small"] + (1 - small) * least["bf16"]
    return {name: one * ROWS / rows for name, one in least.items()}


def summary(method: str, network: str, seconds: dict[str, float]) -> dict[str, object]:
    """The seconds, and their ratios to float32."""
    return {
        "method": method,
        "network": network,
        "seconds": {name: round(one, 1) for name, one in seconds.items()},
        "ratios": {name: round(one / seconds["float32"], 3) for name, one in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", choices=sorted(SMALL), default="resnet18")
    parser.add_argument("--methods", default="pointwise,mcd,bbb,sghmc")
    parser.add_argument("--rows", type=int, default=5 * BATCH)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--csv", type=Path, help="a table that gets the rows, beside those of other benchmarks"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"processor": processor(), "instructions": instructions()}), flush=True)
    for method in asked.methods.split(","):
        seconds = measure(method, asked.network, asked.rows, asked.rounds)
        print(json.dumps(summary(method, asked.network, seconds)), flush=True)
        if asked.csv is not None:
            write_rows(asked.csv, measured("train_epoch", asked.network, method, seconds, to="float32"))


if __name__ == "__main__":
    main()
