"""What a step of quantisation-aware training costs: quantised over float, run alike, interleaved.

    python benchmarks/qat_step.py [--device cuda] [--how replay] [--batch 256] [--width slim] [--seconds 20]
        [--csv FILE]

Slim ResNet-18 on random CIFAR-sized images, W4A4 with learned step sizes per channel (``--rule ema``: ranges
that move); forward, loss, backward, clipping and optimiser, in bfloat16 where the device has products of it
(``--no-bf16`` for float32). ``replay`` is what training does on a GPU: each step is one CUDA graph. On a CPU
it runs eagerly, on one thread, and time is what the process took of the processor. The time of a step is the
least of many; reported are the ratios of learning from labels and of imitation, which has the float network's
forward pass besides. ``--plain`` keeps to torch's own operations, which fine-tuning has without kernels.
"""

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from speed_rows import measured, write_rows
from torch import nn

import qbayes as qb
from qbayes.networks import build_network
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature, Standardize
from qbayes.quant.finetune.distill import Imitation, Taught, cast_once
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import prepare
from qbayes.training.budget import has_bf16
from qbayes.training.guard import clip_gradients
from qbayes.training.loop import in_float32
from qbayes.training.replayed import ReplayedSteps

Step = Callable[[], None]
SHAPE = (3, 32, 32)


def networks(
    method: str, width: str, device: str, rule: str, *, bf16: bool
) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The float network of a method, its fake-quantised form, and that beside its teacher."""
    torch.manual_seed(0)
    plain = build_network("resnet18", SHAPE, 10, width=width)
    options = {"rate": 0.1} if method == "mcd" else {}
    attached = qb.attach(plain, qb.method(method, **options), torch.randn(2, *SHAPE))
    signature = Signature("random", SHAPE, Standardize.identity(3), Categorical(10))
    posterior = NetworkPosterior(attached, [attached.state_dict()], signature)
    precision = Precision(weight=4, activation=4, weight_range=rule, activation_range=rule)
    quantised = prepare(posterior, precision).to(device)
    with torch.no_grad(), quantised.calibrating():
        quantised(torch.randn(64, *SHAPE, device=device))
    # learned scales are set by calibration; ranges move with the data.
    quantised.observe(rule != "lsq")
    teacher = copy.deepcopy(posterior.networks[0]).to(device)
    if bf16:
        cast_once(teacher, torch.bfloat16)
    taught = Taught(copy.deepcopy(quantised), teacher)
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
    if not cuda:
        # of this process alone: other processes only make it wait.
        begun = time.process_time()
        step()
        return time.process_time() - begun
    torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(method: str, asked: argparse.Namespace) -> dict[str, float]:
    """The seconds of a step in float, and of those of fine-tuning."""
    device, how, cuda = asked.device, asked.how, asked.device == "cuda"
    x = torch.randn(asked.batch, *SHAPE, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (asked.batch,), device=device)
    made = networks(method, asked.width, device, asked.rule, bf16=asked.bf16)
    # imitation is never compiled: Quantisation refuses it.
    steps = [step_of(one, x, y, how, bf16=asked.bf16) for one in made[: 2 if how == "compile" else 3]]
    for step in steps:
        for _ in range(5 if cuda else 2):
            step()
    best = [float("inf")] * len(steps)
    deadline = time.perf_counter() + asked.seconds
    while time.perf_counter() < deadline:
        for index, step in enumerate(steps):
            best[index] = min(best[index], timed(step, cuda))
    return dict(zip(("float", "labels", "imitation"), best, strict=False))


def summary(method: str, asked: argparse.Namespace, seconds: dict[str, float]) -> dict[str, object]:
    """What was measured, the milliseconds, and the ratios to the float step."""
    return {
        "method": method,
        **{name: getattr(asked, name) for name in ("rule", "width", "device", "batch", "how", "bf16")},
        "kernels": not asked.plain,
        "ms": [round(1e3 * one, 2) for one in seconds.values()],
        **{name: round(one / seconds["float"], 3) for name, one in seconds.items() if name != "float"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--width", default="slim")
    parser.add_argument("--rule", default="lsq")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--methods", default="pointwise,mcd,bbb")
    parser.add_argument("--how", choices=("replay", "compile", "eager"))
    parser.add_argument("--bf16", action=argparse.BooleanOptionalAction)
    parser.add_argument("--plain", action="store_true", help="on a CPU: torch's own operations, no kernels")
    parser.add_argument(
        "--csv", type=Path, help="on a CPU: a table that gets the rows, beside other benchmarks'"
    )
    asked = parser.parse_args()
    cuda = asked.device == "cuda"
    if asked.csv is not None and (cuda or asked.plain or asked.rule != "lsq"):
        # a row says nothing of these, so it must be of what is usual.
        parser.error("--csv takes steps on a CPU, by the kernels, with --rule lsq")
    # what one trains with on such a machine; both steps gain by it.
    torch.set_float32_matmul_precision("high")
    if asked.plain:
        os.environ["QBAYES_QUANT_KERNELS"] = "off"
    if not cuda:
        torch.set_num_threads(1)
    asked.batch = asked.batch or (256 if cuda else 128)
    asked.how = asked.how or ("replay" if cuda else "eager")
    if asked.bf16 is None:
        asked.bf16 = has_bf16(torch.device(asked.device))
    for method in asked.methods.split(","):
        torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
        seconds = measure(method, asked)
        print(json.dumps(summary(method, asked, seconds)), flush=True)
        if asked.csv is not None:
            network = f"resnet18, {asked.width}"
            write_rows(asked.csv, measured("qat_step", network, method, seconds, to="float"))


if __name__ == "__main__":
    main()
