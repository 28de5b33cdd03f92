"""A Gaussian on weights: the randomness of Bayes-by-Backprop (Blundell et al., ICML 2015).

``w = μ + σ ε`` with ``σ = softplus(ρ)`` and ``ε ~ N(0, 1)``, independent for each weight. In training the
layer draws its output instead (local reparametrisation, Kingma, Salimans and Welling, NeurIPS 2015):
``y = f(x, μ) + √f(x², σ²) ε`` where ``f`` is the layer's linear map; the same marginal distribution for each
row, with far less variance in the gradient.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.posterior.reparametrize.c_draw import draw_normals
from qbayes.posterior.reparametrize.draw import reparametrise, square_values

Weighted = nn.Linear | nn.Conv1d | nn.Conv2d
WEIGHTED_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d)


def inverse_softplus(sigma: float) -> float:
    """``ρ`` with ``softplus(ρ) = σ``; ``log(e^σ − 1)`` written so that large σ does not overflow."""
    return sigma + math.log(-math.expm1(-sigma))


class GaussianLayer(nn.Module):
    """A Linear, Conv1d or Conv2d whose weights are Gaussian; its bias is a point without a ``bias_site``."""

    def __init__(self, layer: Weighted, site: int, sigma: float, bias_site: int | None = None) -> None:
        super().__init__()
        if not sigma > 0 or not math.isfinite(sigma):
            raise BadInput("the first σ must be above 0 and finite", f"{sigma}", "try 0.01")
        self.site = site
        self.bias_site = bias_site if layer.bias is not None else None
        self.first_sigma = float(sigma)
        rho = inverse_softplus(sigma)
        self.weight_mean = nn.Parameter(layer.weight.detach().clone())
        self.weight_rho = nn.Parameter(torch.full_like(layer.weight, rho))
        self.bias_mean: nn.Parameter | None = None
        self.bias_rho: nn.Parameter | None = None
        if layer.bias is not None:
            self.bias_mean = nn.Parameter(layer.bias.detach().clone())
            if bias_site is not None:
                self.bias_rho = nn.Parameter(torch.full_like(layer.bias, rho))
        self.map = _linear_map(layer)
        self.described = layer.extra_repr()

    @property
    def weight_sigma(self) -> Tensor:
        return F.softplus(self.weight_rho)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self._local_reparametrisation(x)
        stream = noise.current()
        if stream is None:
            return self.map(x, self.weight_mean, self.bias_mean)
        bias = self.bias_mean if self.bias_site is None else stream.weights[self.bias_site]
        return self.map(x, stream.weights[self.site], bias)

    def draw_weights(self, seed: int, draws: Tensor) -> dict[int, Tensor]:
        """By site, the weights of the given draws: ``(draws, *weight)``."""
        shape = tuple(self.weight_mean.shape)
        noise_of_weight = noise.gaussians(seed, self.site, draws, shape)
        drawn = {self.site: torch.addcmul(self.weight_mean, self.weight_sigma, noise_of_weight)}
        if self.bias_site is not None and self.bias_mean is not None and self.bias_rho is not None:
            epsilon = noise.gaussians(seed, self.bias_site, draws, tuple(self.bias_mean.shape))
            drawn[self.bias_site] = torch.addcmul(self.bias_mean, F.softplus(self.bias_rho), epsilon)
        return drawn

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias"):
            # the mean would make a network that reads it deterministic, without a word.
            raise AttributeError(f"a Gaussian layer has no single '{name}': call it instead of reading it")
        return super().__getattr__(name)

    @property
    def gaussians(self) -> list[tuple[Tensor, Tensor]]:
        """``μ`` and ``ρ`` of the weights, and of the bias where it has a deviation."""
        found: list[tuple[Tensor, Tensor]] = [(self.weight_mean, self.weight_rho)]
        if self.bias_mean is not None and self.bias_rho is not None:
            found.append((self.bias_mean, self.bias_rho))
        return found

    def kl(self, prior_sigma: float) -> Tensor:
        """``KL(q ‖ N(0, σ_p²)) = Σ log(σ_p/σ) + (σ² + μ²) / (2σ_p²) − ½`` over this layer's Gaussians."""
        return total_kl([self], prior_sigma)

    def _local_reparametrisation(self, x: Tensor) -> Tensor:
        bias_variance = None if self.bias_rho is None else F.softplus(self.bias_rho) ** 2
        mean = self.map(x, self.weight_mean, self.bias_mean)
        variance = self.map(square_values(x), self.weight_sigma**2, bias_variance)
        return reparametrise(mean, variance, self.training_noise(mean))

    def training_noise(self, mean: Tensor) -> Tensor:
        """ε of the outputs ``mean``, from torch's own generator."""
        return draw_normals(mean)

    def extra_repr(self) -> str:
        return f"{self.described}, site={self.site}"


def gaussian_kl(mean: Tensor, sigma: Tensor, prior_sigma: float, *, stacked: bool = False) -> Tensor:
    """Sum of ``log(σ_p/σ) + (σ² + μ²) / (2σ_p²) − ½``, over each network of a stack by itself."""
    scaled = (sigma**2 + mean**2) / (2 * prior_sigma**2)
    per_element = math.log(prior_sigma) - sigma.log() + scaled - 0.5
    return per_element.flatten(1).sum(1) if stacked else per_element.sum()


def total_kl(layers: Iterable[GaussianLayer], prior_sigma: float, *, stacked: bool = False) -> Tensor:
    """The KL of all layers, joined before it is taken: one chain of operations instead of one a layer."""
    pairs = [pair for layer in layers for pair in layer.gaussians]
    mean, rho = (
        torch.cat([part.flatten(int(stacked)) for part in parts], dim=-1)
        for parts in zip(*pairs, strict=True)
    )
    return gaussian_kl(mean, F.softplus(rho), prior_sigma, stacked=stacked)


class _LinearMap:
    """``f(x, weight, bias)`` of a layer without its parameters."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class _Convolution(_LinearMap):
    """``f(x, weight, bias)`` of a convolution: stride, padding of any mode, dilation and groups."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d) -> None:
        self.convolve: Callable[..., Tensor] = F.conv1d if isinstance(layer, nn.Conv1d) else F.conv2d
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        self.mode = layer.padding_mode
        self.padding: str | tuple[int, ...] = layer.padding
        if self.mode != "zeros":
            # F.pad wants the last axis first, each side twice; 'same' pads (k − 1) d, the odd one behind.
            spans = [(k - 1) * d for k, d in zip(layer.kernel_size, layer.dilation, strict=True)]
            sides = [(span // 2, span - span // 2) for span in spans]
            if not isinstance(layer.padding, str):
                sides = [(pad, pad) for pad in layer.padding]
            elif layer.padding == "valid":
                sides = [(0, 0) for _ in spans]
            self.around = [n for pair in reversed(sides) for n in pair]

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.mode != "zeros":
            x, padding = F.pad(x, self.around, mode=self.mode), 0
        return self.convolve(x, weight, bias, self.stride, padding, self.dilation, self.groups)


def _linear_map(layer: Weighted) -> _LinearMap:
    return _LinearMap() if isinstance(layer, nn.Linear) else _Convolution(layer)
