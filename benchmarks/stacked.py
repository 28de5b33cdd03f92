"""What stacked training saves: K times the step of one network, over the step of a stack of K.

    python benchmarks/stacked.py [--device cuda] [--threads 1] [--seconds 10] [--only mlp-10 …]

Cases: the MLP 3×100 on 455 rows of 13 features (the shape of Boston housing) at the paper's batch of 1000,
which is all rows, and at 64, with 10 and 30 networks; LeNet on digits with 3 seeds at a batch of 128.
Timed are whole epochs of the training loop (order, rows, noise, forward, loss, backward, optimiser, checks),
divided by their steps. Both ways run in turn in one process, and the least time counts, since other load
only adds to it. With one thread on the CPU it is the process's own time: the epoch of a stack is too long to
find a busy machine idle for all of it.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

import qbayes as qb
from qbayes.training.budget import steps_in_epoch
from qbayes.training.loop import Loop
from qbayes.training.stacked.fit import StackJob, fit_stacked

METHODS: dict[str, dict[str, Any]] = {
    "pointwise": {},
    "mcd": {"rate": 0.2},
    "bbb": {},
    "sghmc": {"members": 1},
}


@dataclass(frozen=True)
class Case:
    network: str
    networks: int
    batch: int
    epochs: int
    tasks: Callable[[int], list[qb.Task]]


def folds(networks: int) -> list[qb.Task]:
    """Folds of random numbers: time does not depend on them."""
    generator = torch.Generator().manual_seed(0)
    made: list[qb.Task] = []
    for _ in range(networks):
        x = torch.randn(455, 13, generator=generator)
        y = x.sum(1) + torch.randn(455, generator=generator)
        made.append(qb.Task.from_arrays(x, y, kind="regression"))
    return made


def digits(networks: int) -> list[qb.Task]:
    return [qb.load_task("digits")] * networks


CASES = {
    "mlp-10": Case("mlp", 10, 1000, 20, folds),
    "mlp-30": Case("mlp", 30, 1000, 20, folds),
    "mlp-10-batch-64": Case("mlp", 10, 64, 6, folds),
    "mlp-30-batch-64": Case("mlp", 30, 64, 6, folds),
    "lenet-3": Case("lenet", 3, 128, 3, digits),
}


@contextmanager
def timed_epochs(device: torch.device) -> Iterator[list[float]]:
    """The seconds of every epoch that a training loop goes through inside."""
    times: list[float] = []
    epoch = Loop._epoch
    by_itself = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if by_itself else time.perf_counter

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed(loop: Loop) -> None:
        wait()
        begun = clock()
        epoch(loop)
        wait()
        times.append(clock() - begun)

    Loop._epoch = timed
    try:
        yield times
    finally:
        Loop._epoch = epoch


def measure(case: Case, method: str, device: torch.device, seconds: float) -> dict[str, float]:
    tasks = case.tasks(case.networks)
    budget = qb.Budget(epochs=case.epochs, batch_size=case.batch, learning_rate=1e-4)
    how = qb.method(method, **METHODS[method])
    jobs = [
        StackJob(lambda task=task: qb.network(case.network, task), task, how, budget, seed)
        for seed, task in enumerate(tasks)
    ]
    first = jobs[0]
    alone: list[float] = []
    together: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(alone) < 2 * case.epochs:
        with timed_epochs(device) as times:
            qb.fit(first.network, first.task, how, budget, device=device, progress=False)
        alone += times
        with timed_epochs(device) as times:
            fit_stacked(jobs, device=device, progress=False)
        together += times
    steps = steps_in_epoch(tasks[0].train_rows, case.batch)
    one, stack = min(alone) / steps, min(together) / steps
    return {
        "step_of_one_ms": round(1e3 * one, 3),
        "step_of_stack_ms": round(1e3 * stack, 3),
        "ratio": round(case.networks * one / stack, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each case and method")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    for name in options.only:
        for method in options.methods:
            found = measure(CASES[name], method, device, options.seconds)
            print(json.dumps({"case": name, "method": method, "device": device.type, **found}), flush=True)


if __name__ == "__main__":
    main()
