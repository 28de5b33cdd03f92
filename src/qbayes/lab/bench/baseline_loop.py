"""The float loop that one would write by hand: for each draw one forward pass of plain torch.

Masks are torch's own dropout and Gaussian weights ``μ + σ ε`` with torch's own normal numbers; σ is computed
once. Nothing is shared between draws. It is the baseline of the ratios: it must not be slower than need be.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Mask


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
