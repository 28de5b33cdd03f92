"""Posteriors of every kind, and what another process answers that was sent them."""

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from multiprocessing.queues import Queue
from typing import Any

import torch
from torch import Tensor, nn

import qbayes as qb
from handmade.programs import every_op
from qbayes.integer.onnx.runtimes import missing
from qbayes.integer.posterior import ProgramPosterior
from qbayes.posterior.base import Posterior
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature

METHODS: dict[str, tuple[str, dict[str, Any], int]] = {
    "pointwise": ("pointwise", {}, 1),
    "mcd": ("mcd", {"rate": 0.3}, 1),
    "bbb": ("bbb", {}, 1),
    "sghmc": ("sghmc", {"members": 3}, 3),
    "mcd, chains": ("mcd", {"rate": 0.3}, 2),
}
BACKENDS = [name for name in ("reference", "onednn", "onnxruntime", "openvino") if name in ("reference",
            "onednn") or missing(name) is None]  # fmt: skip


class Small(nn.Module):
    """A convolution, BatchNorm and two linear layers, for digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.hidden, self.out = nn.Linear(4 * 64, 12), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.bn(self.conv(x))).flatten(1)
        return self.out(torch.relu(self.hidden(z)))


@functools.cache
def digits() -> qb.Task:
    return qb.load_task("digits")


@functools.cache
def in_float(name: str) -> NetworkPosterior:
    """Untrained; the members of an ensemble differ."""
    torch.manual_seed(3)
    method, options, members = METHODS[name]
    networks = [qb.attach(Small(), qb.method(method, **options)) for _ in range(members)]
    states = [network.state_dict() for network in networks]
    return NetworkPosterior(networks[0], states, digits().signature, provenance={"made": "by hand"})


@functools.cache
def quantised(name: str) -> NetworkPosterior:
    precision = qb.Precision(weight=5, activation=6)
    return qb.quantize(in_float(name), digits(), precision, qb.FineTuning(epochs=0), progress=False)


@functools.cache
def regression() -> NetworkPosterior:
    """With a constant noise, which is a head of its own."""
    x = torch.linspace(-2, 2, 40)[:, None]
    task = qb.Task.from_arrays(x, x.sin(), x, x.sin(), kind="regression", name="curve")
    network = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    made = qb.fit(network, task, qb.method("mcd"), qb.Budget(epochs=1), device="cpu", progress=False)
    return qb.quantize(made, task, qb.Precision(), qb.FineTuning(epochs=0), progress=False)


@functools.cache
def program() -> qb.Program:
    """Every op, every kind of weights, two members."""
    make = every_op(8, members=2)
    return make.program(make.ops[-1].output)


@functools.cache
def kinds() -> Mapping[str, Posterior]:
    """By name; each was asked before, as one that is sent usually was."""
    found: dict[str, Posterior] = {f"{name}, float": in_float(name) for name in METHODS}
    found |= {f"{name}, quantised": quantised(name) for name in METHODS}
    found |= {f"{name}, deployed": qb.load(qb.lower(quantised(name))) for name in METHODS}
    found |= {"regression, quantised": regression(), "regression": qb.load(qb.lower(regression()))}
    found |= {backend: qb.load(program(), backend) for backend in BACKENDS}
    found["frozen draws"] = qb.load(program(), "onednn", frozen_draws=2)
    for posterior in found.values():
        digest(posterior)
    return found


def digest(posterior: Posterior) -> str:
    """Of what it answers to three rows, as raw numbers and as bytes."""
    shape = (3, *posterior.signature.input_shape)
    rows = torch.linspace(-3, 3, math.prod(shape)).view(shape)
    found = [posterior.predict(x, draws=4, seed=2) for x in (rows, (rows * 40).abs().to(torch.uint8))]
    return hashlib.sha256(b"".join(f.draws.numpy().tobytes() + f.variance.numpy().tobytes() for f in found)
                          ).hexdigest()  # fmt: skip


def spoil(posterior: Posterior) -> None:
    """Change every number that it is made of."""
    with torch.no_grad():
        for tensor in (*tensors_of(posterior), *scales_of(posterior.signature)):
            tensor.add_(tensor.dtype == torch.bool or 3)


def scales_of(signature: Signature) -> Iterator[Tensor]:
    for scale in (signature.transform, signature.target):
        if scale is not None:
            yield from (scale.mean, scale.std)


def tensors_of(posterior: Posterior) -> Iterator[Tensor]:
    if isinstance(posterior, NetworkPosterior):
        for member in posterior.members:
            yield from member.values()
    assert isinstance(posterior, NetworkPosterior | ProgramPosterior)
    if isinstance(posterior, ProgramPosterior):
        for held in posterior.program.members:
            # any bias is a valid one.
            yield from (codes["bias"] for codes in held.constants.values() if "bias" in codes)


def answer_and_spoil(posteriors: Mapping[str, Posterior], answers: "Queue[dict[str, str]]") -> None:
    """What a worker does that was sent posteriors."""
    answers.put({name: digest(posterior) for name, posterior in posteriors.items()})
    for posterior in posteriors.values():
        spoil(posterior)
