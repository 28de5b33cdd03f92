"""How spread the weights of a float posterior are: what a uniform grid must cover, layer by layer.

The paper explains the fall of SGHMC at few weight bits by weights that are "more spread" than those of other
methods. How large weights are cannot be it, since the scale of a grid follows them; how far the largest one
stands out can. A grid of n bits over ``± max |w|`` has steps of ``2 max |w| / (2ⁿ − 1)``, and rounding to it
adds noise with the share

    rounding / rms(w) = spread / (√3 (2ⁿ − 1)),    spread = max |w| / rms(w),    rms(w) = √(mean w²)

so every doubling of the spread costs one bit. It is 1 for weights ± c, √3 for uniform ones, and about 4 for
ten thousand Gaussian ones.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import point_state

SPREAD, DEVIATION = "spread/", "deviation/"
_RHO, _MEAN, _WEIGHT = "weight_rho", "weight_mean", "weight"
_DIGITS = 6  # the last ones hang on the order in which a device adds


def weight_spread(posterior: NetworkPosterior) -> dict[str, float]:
    """``spread/LAYER`` and ``deviation/LAYER`` for every layer with a matrix of weights.

    Each member has a grid of its own, so ``spread`` is the mean over members of ``max |w| / rms(w)``; of
    Gaussian weights it is that of their means, which have a grid of their own too. ``deviation`` is that of
    a weight drawn from the posterior, over the layer, its members and the noise:
    ``√(mean(μ² + σ²) − mean(μ)²)`` with σ = 0 where there is no noise. A layer of zeros has no spread, and
    one with weights that are not finite has neither.
    """
    members = [_moments(network) for network in posterior.networks]
    found: dict[str, float] = {}
    for layer in members[0]:
        of_layer = torch.stack([moments[layer] for moments in members]).cpu()
        for name, number in ((SPREAD, _spread(of_layer)), (DEVIATION, _deviation(of_layer))):
            if math.isfinite(number):
                found[f"{name}{layer}"] = float(f"{number:.{_DIGITS}g}")
    return found


def _spread(of_layer: Tensor) -> float:
    largest, _, square, _ = of_layer.unbind(-1)
    return (largest / square.sqrt()).mean().item()


def _deviation(of_layer: Tensor) -> float:
    _, mean, square, variance = of_layer.mean(0)
    return (square + variance - mean.square()).clamp_min(0).sqrt().item()


def _moments(network: nn.Module) -> dict[str, Tensor]:
    """By layer: max |w|, and the means of w, of w² and of the noise's variance."""
    sigmas = _sigmas(network)
    found: dict[str, Tensor] = {}
    for layer, weights in _matrices(point_state(network, network.state_dict())).items():
        w = weights.double()
        variance = sigmas[layer].double().square().mean() if layer in sigmas else w.new_zeros(())
        found[layer] = torch.stack([w.abs().max(), w.mean(), w.square().mean(), variance])
    return found


def _sigmas(network: nn.Module) -> dict[str, Tensor]:
    """By layer, σ of its Gaussian weights: named as if it were their mean, whose name the network knows."""
    state = {
        name.removesuffix(_RHO) + _MEAN: F.softplus(value)
        for name, value in network.state_dict().items()
        if name.endswith(_RHO)
    }
    return _matrices(point_state(network, state))


def _matrices(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By layer; a network that is a single layer has no name for it."""
    return {
        name.removesuffix(_WEIGHT).removesuffix(".") or "(the network)": value
        for name, value in state.items()
        if name.rpartition(".")[2] == _WEIGHT and value.ndim > 1
    }
