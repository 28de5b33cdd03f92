"""How much faster are programs on a GPU's int8 tensor cores than in float lanes, and than the float network?

ResNet-18 on random images of CIFAR-10's size, 20 draws. All ways run in turn in one process; ratios are those
of the fastest runs.

    python benchmarks/gpu_backends.py [--rows 2000] [--draws 20] [--repeats 5] [--width slim] [--device cuda]
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

import qbayes as qb
from qbayes.integer.backends.base import able

METHODS = ("pointwise", "mcd", "bbb")
SHAPE = (3, 32, 32)


def made(method: str, width: str, task: qb.Task, device: str) -> tuple[qb.NetworkPosterior, qb.Program]:
    """An untrained posterior and its program at W4A4: time does not depend on the weights."""
    torch.manual_seed(0)
    module = qb.attach(qb.network("resnet18", task, width=width), qb.method(method), task.example())
    posterior = qb.Posterior.from_trained(module, task.signature)
    calibrated = qb.quantize(posterior, task, qb.Precision(4, 4), qb.FineTuning(epochs=0), device=device)
    return posterior.to(device), qb.lower(calibrated)


def ways(method: str, width: str, task: qb.Task, draws: int, device: str) -> Mapping[str, qb.Posterior]:
    posterior, program = made(method, width, task, device)
    backends = [name for name in able(program, torch.device(device)) if name in ("reference", "triton")]
    loaded = {name: qb.load(program, name, frozen_draws=draws, device=device) for name in backends}
    return {"float": posterior, **loaded}


def seconds(run: Callable[[], object], device: str) -> float:
    begun = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measured(
    method: str, width: str, x: Tensor, task: qb.Task, asked: argparse.Namespace
) -> dict[str, object]:
    found = ways(method, width, task, asked.draws, asked.device)
    best = dict.fromkeys(found, float("inf"))
    # the first time kernels are compiled and weights drawn.
    for _ in range(asked.repeats + 1):
        for name, one in found.items():
            took = seconds(lambda one=one: one.predict(x, draws=asked.draws), asked.device)
            best[name] = min(best[name], took)
    fastest = {name: round(1e3 * took, 1) for name, took in best.items()}
    ratios = {f"{name}/triton": round(best[name] / best["triton"], 2) for name in best if "triton" in best}
    return {"method": method, "width": width, "rows": len(x), "draws": asked.draws, "ms": fastest, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--width", default="slim")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (asked.rows, *SHAPE), generator=generator, dtype=torch.uint8)
    task = qb.Task.from_arrays(x, torch.arange(asked.rows) % 10, kind="classification", name="noise")
    for method in METHODS:
        print(json.dumps(measured(method, asked.width, x, task, asked)), flush=True)


if __name__ == "__main__":
    main()
