"""The float loop that one would write by hand: for each draw one forward pass of plain torch.

Masks are torch's own dropout and Gaussian weights ``μ + σ ε`` with torch's own normal numbers; σ is computed
once. Nothing is shared between draws. It is the baseline of the ratios: it must not be slower than need be.
"""

import copy

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from qbayes import noise
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.mask import Mask
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import gaussian_layers


class PlainLoop:
    """Draws of a float posterior, one forward pass after the other."""

    def __init__(self, posterior: NetworkPosterior) -> None:
        self.transform = posterior.signature.transform
        self.networks = [_with_torch_dropout(network) for network in posterior.networks]
        self.gaussians = [
            [(layer.site, layer.weight_mean, layer.weight_sigma) for layer in gaussian_layers(network)]
            for network in self.networks
        ]

    @torch.inference_mode()
    def __call__(self, x: Tensor, draws: int) -> Outputs:
        """Raw outputs ``(draws, rows, …)``."""
        inputs = self.transform.apply(x)
        outputs = [self._draw(inputs, draw) for draw in range(draws)]
        return pytree.tree_map(lambda *tensors: torch.stack(tensors), *outputs)

    def _draw(self, inputs: Tensor, draw: int) -> Outputs:
        member = draw % len(self.networks)
        weights = {
            site: torch.addcmul(mean, sigma, torch.randn_like(mean))
            for site, mean, sigma in self.gaussians[member]
        }
        if not weights:
            return self.networks[member](inputs)
        with noise.streaming(noise.Stream(0, torch.tensor(draw), 0, weights)):
            return self.networks[member](inputs)


def _with_torch_dropout(network: nn.Module) -> nn.Module:
    """The network with nn.Dropout in the place of every mask, switched on; itself if it has none."""
    masks = [name for name, module in network.named_modules() if isinstance(module, Mask)]
    if not masks:
        return network
    plain = copy.deepcopy(network)
    for name in masks:
        mask = plain.get_submodule(name)
        assert isinstance(mask, Mask)
        kind = nn.Dropout2d if mask.channelwise else nn.Dropout
        parent, _, child = name.rpartition(".")
        setattr(plain.get_submodule(parent), child, kind(mask.rate).train())
    return plain
