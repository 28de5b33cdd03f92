"""What a step of quantisation-aware training costs: quantised over float, run alike, interleaved.

    python benchmarks/qat_step.py [--device cuda] [--how replay] [--batch 256] [--width slim] [--seconds 20]

Slim ResNet-18 on random CIFAR-sized images, W4A4 with learned step sizes per channel; forward, loss,
backward, clipping and optimiser, on a GPU in bfloat16 (``--no-bf16`` for float32). ``replay`` is what
training does on a GPU: each step is one CUDA graph. The time of a step is the least of many; reported are the
ratios of learning from labels and of imitation, which has the float network's forward pass besides.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable

import torch
from torch import nn

import qbayes as qb
from qbayes.networks import build_network
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature
from qbayes.posterior.transform import Standardize
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import prepare
from qbayes.quant.teacher import Imitation, Taught
from qbayes.training.guard import clip_gradients
from qbayes.training.loop import in_float32
from qbayes.training.replayed import ReplayedSteps

Step = Callable[[], None]
SHAPE = (3, 32, 32)


def networks(method: str, width: str, device: str) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The float network of a method, its fake-quantised form, and that beside its teacher."""
    torch.manual_seed(0)
    plain = build_network("resnet18", SHAPE, 10, width=width)
    options = {"rate": 0.1} if method == "mcd" else {}
    attached = qb.attach(plain, qb.method(method, **options), torch.randn(2, *SHAPE))
    signature = Signature("random", SHAPE, Standardize.identity(3), Categorical(10))
    posterior = NetworkPosterior(attached, [attached.state_dict()], signature)
    quantised = prepare(posterior, Precision(weight=4, activation=4)).to(device)
    with torch.no_grad(), quantised.calibrating():
        quantised(torch.randn(64, *SHAPE, device=device))
    quantised.observe(False)
    taught = Taught(copy.deepcopy(quantised), posterior.networks[0].to(device))
    return attached.to(device).train(), quantised.train(), taught.train()


def step_of(network: nn.Module, x: torch.Tensor, y: torch.Tensor, how: str, *, bf16: bool) -> Step:
    mode = "reduce-overhead" if x.is_cuda else "default"
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forward = torch.compile(network, mode=mode, dynamic=False) if how == "compile" else network
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 1e-4, 0.9, nesterov=True, fused=True)

    likelihood = Imitation(Categorical(10), 1.0) if isinstance(network, Taught) else Categorical(10)

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            outputs = forward(x)
        loss = likelihood.nll(in_float32(outputs), y).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(parameters, 1.0)
        return loss

    def step() -> None:
        gradient(x, y)
        optimizer.step()

    if how != "replay":
        return step
    replayed = ReplayedSteps(gradient, optimizer, x.device)

    def replay() -> None:
        replayed(x, y)

    return replay


def timed(step: Step, cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(
    method: str, width: str, device: str, batch: int, seconds: float, how: str, *, bf16: bool
) -> dict[str, object]:
    x = torch.randn(batch, *SHAPE, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,), device=device)
    made = networks(method, width, device)
    # imitation is never compiled: Quantisation refuses it.
    steps = [step_of(network, x, y, how, bf16=bf16) for network in made[: 2 if how == "compile" else 3]]
    for step in steps:
        for _ in range(5):
            step()
    best = [float("inf")] * len(steps)
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for index, step in enumerate(steps):
            best[index] = min(best[index], timed(step, device == "cuda"))
    return {
        "method": method,
        "width": width,
        "device": device,
        "batch": batch,
        "how": how,
        "bf16": bf16,
        "ms": [round(1e3 * one, 2) for one in best],
        **{
            name: round(one / best[0], 3)
            for name, one in zip(("labels", "imitation"), best[1:], strict=False)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--width", default="slim")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--methods", default="pointwise,mcd,bbb")
    parser.add_argument("--how", choices=("replay", "compile", "eager"))
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction)
    asked = parser.parse_args()
    # what one trains with on such a machine; both steps gain by it.
    torch.set_float32_matmul_precision("high")
    batch = asked.batch or (256 if asked.device == "cuda" else 32)
    how = asked.how or ("replay" if asked.device == "cuda" else "compile")
    for method in asked.methods.split(","):
        torch._dynamo.reset()
        bf16 = asked.device == "cuda" if asked.bf16 is None else asked.bf16
        result = measure(method, asked.width, asked.device, batch, asked.seconds, how, bf16=bf16)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
