"""How much faster is ``predict`` with vectorised draws than a Python loop of forward passes?

LeNet on 1,000 images of MNIST's size (random pixels: time does not depend on them), L = 20 draws, float32; or
the slim ResNet-18 on images of CIFAR-10's. A third way is ``predict`` in pieces of 2,048 rows × draws,
whatever their feature maps need. All run in turn in one process; the ratio is that of the fastest runs, since
other load only adds time.

    python benchmarks/predict_draws.py [--network lenet|resnet18] [--rows 1000] [--draws 20] [--repeats 5]
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes import noise
from qbayes.methods import make_method
from qbayes.posterior.sites import gaussian_layers

SHAPES = {"lenet": (1, 28, 28), "resnet18": (3, 32, 32)}
_LARGE = 2048


def posterior_of(name: str, method: str, task: qb.Task) -> qb.NetworkPosterior:
    """An untrained posterior: speed does not need trained weights."""
    torch.manual_seed(0)
    network = qb.network(name, task, **({"style": "relu"} if name == "lenet" else {}))
    module = qb.attach(network, make_method(method), task.example())
    members = None
    if method == "sghmc":
        members = [
            {k: v + 1e-3 * torch.randn(v.shape).to(v.dtype) for k, v in module.state_dict().items()}
            for _ in range(20)
        ]
    return qb.Posterior.from_trained(module, task.signature, members=members)


@torch.no_grad()
def plain_loop(posterior: qb.NetworkPosterior, x: Tensor, draws: int) -> Tensor:
    """What one would write by hand: for each draw a new mask or new weights, and one pass over all rows."""
    inputs = posterior.signature.transform.apply(x)
    outputs = []
    for draw in range(draws):
        network = posterior.networks[draw % len(posterior.networks)]
        ids = torch.tensor([draw])
        weights: dict[int, Tensor] = {}
        for layer in gaussian_layers(network):
            weights |= {site: drawn[0] for site, drawn in layer.draw_weights(0, ids).items()}
        with noise.streaming(noise.Stream(0, ids[0], 0, weights)):
            outputs.append(network(inputs))
    return nn.functional.softmax(torch.stack(outputs), -1).mean(0)


def seconds(run: Callable[[], object], times: list[float]) -> None:
    begun = time.perf_counter()
    run()
    times.append(time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SHAPES, default="lenet")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x = torch.randint(0, 256, (options.rows, *SHAPES[options.network]), dtype=torch.uint8)
    task = qb.Task.from_arrays(x, torch.arange(options.rows) % 10, kind="classification")
    for method in ("pointwise", "mcd", "bbb", "sghmc"):
        posterior = posterior_of(options.network, method, task)
        loop: list[float] = []
        vectorised: list[float] = []
        large: list[float] = []
        # masks of all draws pass together, weights and members one after the other.
        rows = max(1, _LARGE // options.draws) if method == "mcd" else _LARGE
        agreement = posterior.predict(x, options.draws).mean - plain_loop(posterior, x, options.draws)
        for _ in range(options.repeats):
            seconds(lambda: plain_loop(posterior, x, options.draws), loop)  # noqa: B023
            seconds(lambda: posterior.predict(x, options.draws), vectorised)  # noqa: B023
            seconds(lambda: posterior.predict(x, options.draws, batch_size=rows), large)  # noqa: B023
        result = {
            "method": method,
            "loop_seconds": round(min(loop), 4),
            "vectorised_seconds": round(min(vectorised), 4),
            "ratio": round(min(loop) / min(vectorised), 2),
            "ratio_to_large_pieces": round(min(large) / min(vectorised), 2),
            "largest_difference": float(agreement.abs().max()),
        }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
