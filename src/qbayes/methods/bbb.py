r"""Bayes-by-Backprop (Blundell, Cornebise, Kavukcuoglu and Wierstra, *Weight uncertainty in neural networks*,
ICML 2015).

A mean-field Gaussian ``q(w) = N(μ, σ²)`` maximises the evidence lower bound; what is minimised is the bound
for one training row,

.. math::
    \mathcal L = -\frac1B \sum_{b} \log p(y_b \mid x_b, w)
        + \frac{\beta}{N}\, \mathrm{KL}(q \,\|\, \mathcal N(0, \sigma_p^2))

with N the number of training rows (not of batches), B the batch and β the one ``kl_weight``; β = 1 is the
exact bound. The KL is in closed form, the likelihood term uses local reparametrisation in training.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from qbayes.errors import unknown_name
from qbayes.methods.base import FEW_EPOCHS, METHODS, Descent, Preset, nothing_to_attach
from qbayes.methods.placement import Layer, Survey, survey
from qbayes.posterior.gaussian import total_kl
from qbayes.posterior.likelihood import Likelihood, Outputs
from qbayes.posterior.sites import Attachment, Site, gaussian_layers


@METHODS.register("bbb")
@dataclass(frozen=True, kw_only=True)
class BayesByBackprop(Descent):
    """Mean-field variational inference.

    Example:
        >>> BayesByBackprop(prior_sigma=0.1, kl_weight=0.1).start
        'network'

    Attributes:
        prior_sigma: The deviation σ_p of the prior; 1 by default.
        kl_weight: β, the weight of the KL; 1, the exact bound, by default.
        sigma_linear: The deviations of linear layers where training starts; 0.02 by default.
        sigma_conv: Those of convolutions; 0.01 by default.
        start: ``network``, the default, puts μ at the network's weights (a trained point network starts
            there, see ``fit(start=…)``); ``uniform`` at U(±0.01), as the paper's.
        gaussian_bias: Whether biases are Gaussian too; they are deterministic by default.
        optimizer: ``adam`` (the default), ``adamw`` or ``sgd`` (with Nesterov momentum).
        weight_decay: It must be 0: the prior takes its place.
        momentum: The momentum of ``sgd``; 0.9 by default.
    """

    name: ClassVar[str] = "bbb"
    prior_sigma: float = 1.0
    kl_weight: float = 1.0
    sigma_linear: float = 0.02
    sigma_conv: float = 0.01
    start: Literal["network", "uniform"] = "network"
    gaussian_bias: bool = False

    presets: ClassVar[Mapping[str, Preset]] = {
        "default/classification": Preset(
            {"prior_sigma": 0.1, "kl_weight": 0.1},
            {"epochs": 60, "least_steps": 3000, "batch_size": 128, "learning_rate": 1e-3},
        ),
        "default/regression": Preset(
            {"prior_sigma": 0.3}, {"epochs": 100, "batch_size": 64, "learning_rate": 1e-2}
        ),
        "default/uci": Preset(
            {"prior_sigma": 0.3},
            {"epochs": 40, "least_steps": 6000, "batch_size": 64, "learning_rate": 1e-2},
        ),
        "default/cifar10": Preset(
            {"prior_sigma": 0.05, "kl_weight": 0.1, "sigma_linear": 0.01, "sigma_conv": 0.003},
            {"epochs": 12, "learning_rate": 1e-3, **FEW_EPOCHS},
            start="pointwise",
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.prior_sigma < math.inf, "prior_sigma", "above 0 and finite")
        self.require(0 <= self.kl_weight < math.inf, "kl_weight", "at least 0 and finite")
        self.require(self.sigma_linear > 0, "sigma_linear", "above 0")
        self.require(self.sigma_conv > 0, "sigma_conv", "above 0")
        self.require(self.weight_decay == 0, "weight_decay", "0: the prior takes its place")
        if self.start not in ("network", "uniform"):
            raise unknown_name("start of bbb", str(self.start), ("network", "uniform"))

    def plan(self, network: nn.Module, example: Tensor | None) -> Attachment:
        seen = survey(network, example)
        rank = {name: index for index, name in enumerate(seen.modules)}
        sites: list[Site] = []
        kept: list[tuple[str, str]] = []
        number = 0
        for layer in sorted(seen.layers, key=lambda layer: rank[layer.name]):
            if why := stays_a_point(layer, seen):
                kept.append((layer.name, why))
                continue
            bias = number + 1 if self.gaussian_bias and layer.module.bias is not None else None
            sigma = self.sigma_conv if layer.is_convolution else self.sigma_linear
            sites.append(Site(number, "gaussian", layer.name, "replace", sigma=sigma, bias_number=bias))
            number += 1 if bias is None else 2
        if not sites:
            raise nothing_to_attach("bbb", network, example)
        return Attachment(tuple(sites), (*kept, *seen.left_alone))

    def attach(self, network: nn.Module, example: Tensor | None = None) -> tuple[nn.Module, Attachment]:
        module, attachment = super().attach(network, example)
        if self.start == "uniform":
            for layer in gaussian_layers(module):
                nn.init.uniform_(layer.weight_mean, -0.01, 0.01)
        return module, attachment

    def loss(
        self, module: nn.Module, outputs: Outputs, target: Tensor, likelihood: Likelihood, rows: int
    ) -> Tensor:
        fit = super().loss(module, outputs, target, likelihood, rows)
        return fit + (self.kl_weight / rows) * self.kl(module, stacked=fit.ndim > 0)

    def kl(self, module: nn.Module, *, stacked: bool = False) -> Tensor:
        """``KL(q ‖ p)`` summed over the Gaussian layers, in nats; one number a network of a stack."""
        return total_kl(gaussian_layers(module), self.prior_sigma, stacked=stacked)


def stays_a_point(layer: Layer, seen: Survey) -> str | None:
    """Why a layer cannot have a Gaussian of its own: its weights are frozen, or another module's too."""
    weight = layer.module.weight
    assert isinstance(weight, nn.Parameter)
    if not weight.requires_grad:
        return "frozen: deterministic"
    for name, other in seen.modules.items():
        if other is not layer.module and any(weight is own for own in other.parameters(recurse=False)):
            return f"its weights are tied to '{name}': deterministic"
    return None
