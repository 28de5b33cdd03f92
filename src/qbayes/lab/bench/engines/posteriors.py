"""Float posteriors in torch: the loop that one would write by hand, and this library's ``predict``.

For each draw the loop makes one forward pass of plain torch. Masks are torch's own dropout and Gaussian
weights ``μ + σ ε`` with torch's own normal numbers; σ is computed once. Nothing is shared between draws. It
is the baseline of the ratios: it must not be slower than need be. It runs eagerly, and by ``torch.compile``,
whose kernels are compiled on the first call for each shape of rows.
"""

import copy
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from qbayes.lab.bench.engines.base import ENGINES, Answer, Engine, Numbers, answers
from qbayes.lab.bench.subjects import Subject
from qbayes.networks import REBUILT
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Mask, point_state
from qbayes.posterior.storage.save import load_posterior, save_posterior


class SampledLayer(nn.Module):
    """A Gaussian layer in plain torch: every call draws its weights, and its biases where random."""

    mean: Tensor
    sigma: Tensor
    bias: Tensor | None
    bias_sigma: Tensor | None

    def __init__(self, layer: GaussianLayer) -> None:
        super().__init__()
        self.map = layer.map
        self.register_buffer("mean", layer.weight_mean.detach())
        self.register_buffer("sigma", layer.weight_sigma.detach())
        self.register_buffer("bias", None if layer.bias_mean is None else layer.bias_mean.detach())
        spread = None if layer.bias_rho is None else F.softplus(layer.bias_rho.detach())
        self.register_buffer("bias_sigma", spread)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.addcmul(self.mean, self.sigma, torch.randn_like(self.mean))
        bias = self.bias
        if bias is not None and self.bias_sigma is not None:
            bias = torch.addcmul(bias, self.bias_sigma, torch.randn_like(bias))
        return self.map(x, weight, bias)


class PlainLoop:
    """Draws of a float posterior, one forward pass after the other."""

    def __init__(self, posterior: NetworkPosterior) -> None:
        self.transform = posterior.signature.transform
        self.networks = [in_plain_torch(network) for network in posterior.networks]

    @torch.inference_mode()
    def __call__(self, x: Tensor, draws: int) -> Outputs:
        """Raw outputs ``(draws, rows, …)``."""
        inputs = self.transform.apply(x)
        outputs = [self.one_draw(inputs, draw % len(self.networks)) for draw in range(draws)]
        return pytree.tree_map(lambda *tensors: torch.stack(tensors), *outputs)

    def one_draw(self, inputs: Tensor, member: int) -> Outputs:
        return self.networks[member](inputs)


def in_plain_torch(network: nn.Module) -> nn.Module:
    """The network with nn.Dropout for every mask, switched on, and sampled layers; itself if it has none."""
    found = {name: _plain(module) for name, module in network.named_modules()}
    changes = {name: module for name, module in found.items() if module is not None}
    if not changes:
        return network
    # what is replaced is not copied: the weights of a large network would be in memory twice.
    kept = {id(module): module for name, module in network.named_modules() if name in changes}
    plain = copy.deepcopy(network, memo=dict(kept))
    for name, module in changes.items():
        parent, _, child = name.rpartition(".")
        setattr(plain.get_submodule(parent), child, module)
    return plain


def _plain(module: nn.Module) -> nn.Module | None:
    if isinstance(module, Mask):
        kind = nn.Dropout2d if module.channelwise else nn.Dropout
        return kind(module.rate).train()
    return SampledLayer(module) if isinstance(module, GaussianLayer) else None


@dataclass(frozen=True, kw_only=True)
class PosteriorEngine(Engine):
    """Deploys the posterior's folder: weights as safetensors, and what they are as JSON."""

    numbers: Numbers = "float"

    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        posterior = subject.posterior
        kept = NetworkPosterior(
            posterior.network,
            posterior.members[:draws],
            posterior.signature,
            architecture=posterior.architecture,
        )
        save_posterior(kept, folder)
        return sorted(folder.iterdir())


def read_posterior(folder: Path) -> NetworkPosterior:
    return load_posterior(folder, REBUILT)


def plain_network(posterior: NetworkPosterior) -> nn.Module:
    """The network without its randomness: masks left out, Gaussian weights at their means."""
    network = REBUILT(posterior.architecture or {})
    network.load_state_dict(point_state(posterior.network, posterior.members[0]))
    return network.eval().requires_grad_(False)


class Loop(PosteriorEngine):
    """The baseline: one forward pass a draw, in eager torch."""

    loop: ClassVar[type[PlainLoop]] = PlainLoop

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        loop, signature = self.loop(posterior), posterior.signature
        return lambda x, draws: answers(loop(x, draws), signature)


class Predict(PosteriorEngine):
    """``predict``: noise keyed by row and draw, draws folded together."""

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        return lambda x, draws: posterior.predict(x, draws).draws


ENGINES.register("loop")(Loop(title="torch, a loop of float passes"))
ENGINES.register("predict")(Predict(title="qbayes, float", ours=True))


class CompiledLoop(PlainLoop):
    """The loop with one compiled pass, which takes the state of each member: compiled once for all."""

    def __init__(self, posterior: NetworkPosterior) -> None:
        super().__init__(posterior)
        shape = self.networks[0]
        self._states = [
            {**dict(network.named_parameters()), **dict(network.named_buffers())} for network in self.networks
        ]

        def run(state: dict[str, Tensor], inputs: Tensor) -> Outputs:
            return functional_call(shape, state, (inputs,))

        self._pass = torch.compile(run, dynamic=False)

    def one_draw(self, inputs: Tensor, member: int) -> Outputs:
        return self._pass(self._states[member], inputs)


class Compile(Loop):
    """One compiled forward pass a draw."""

    loop = CompiledLoop

    def why_missing(self) -> str | None:
        found = any(shutil.which(name) for name in ("g++", "clang++", "cl"))
        return None if found else "torch.compile needs a C++ compiler: install g++"


ENGINES.register("compile")(Compile(title="torch.compile of the loop", by_default=False))
