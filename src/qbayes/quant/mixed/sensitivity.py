r"""How much the rounding of one place does to a posterior's answers, at every width.

One quantiser rounds, all others do not, and every draw d sees the same noise as the float network's. Over
rows and draws the divergence of the answers y is taken, in nats, and parted by the chain rule of the joint
distribution of draw and answer (Cover and Thomas, *Elements of Information Theory*, § 2.5):

.. math::
    \mathrm{E}_d\, \mathrm{KL}(p_d \,\|\, q_d) =
    \underbrace{\mathrm{KL}(\bar p \,\|\, \bar q)}_{\text{answer}} +
    \underbrace{\mathrm{E}_{y \sim \bar p}\, \mathrm{KL}(p(d \mid y) \,\|\, q(d \mid y))}_{\text{doubt}}

p is float, q is rounded, a bar is the mean over draws. The first part is the log-likelihood that is lost
where the float posterior is right about its own answers. The second is what becomes of the disagreement of
the draws, which no score of the mean answer sees; a pointwise network has none. A regression's mean answer is
taken as the Gaussian of its mean and variance.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
    predictive_from_outputs,
)
from qbayes.posterior.signature import Signature
from qbayes.quant.finetune.job import network_of
from qbayes.quant.mixed.places import Place, quantizers_of
from qbayes.quant.network import QuantNetwork
from qbayes.quant.quantizer import Quantizer

_LEAST_VARIANCE = 1e-30
_LEAST_LOSS = 1e-12  # nat: no measurement tells less from nothing
_LEAST_PROBABILITY = 1e-30


@dataclass(frozen=True)
class Sensitivity:
    """What rounding ``place`` to ``bits`` bits does: both in nats, means over rows."""

    place: Place
    bits: int
    answer: float
    doubt: float


def pool_losses(by_width: Mapping[int, float]) -> dict[int, float]:
    r"""The losses of one place, each drawn half-way, in logarithms, to the law that all of them fit best.

    Rounding to b bits adds noise of variance :math:`\propto 4^{-b}`, and the divergence with it: the law is
    :math:`c\, 4^{-b}`. One rounding of a layer is one sample of that noise, and of a small layer an
    accidental one: measured alone, 3 bits may look as good as 4.
    """
    logs = {bits: math.log(max(loss, _LEAST_LOSS)) for bits, loss in by_width.items()}
    level = sum(log + bits * math.log(4) for bits, log in logs.items()) / len(logs)
    return {bits: math.exp((log + level - bits * math.log(4)) / 2) for bits, log in logs.items()}


class Answers:
    """The outputs of every place at every width, and of the float network, gathered member by member."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._float: list[Outputs] = []
        self._rounded: dict[tuple[Place, int], list[Outputs]] = {}

    @torch.no_grad()
    def add_float(self, module: nn.Module, x: Tensor, seeds: Sequence[int]) -> None:
        """The answers of a member without any rounding, one draw for each seed."""
        with _rounding(network_of(module), ()):
            self._float += _draws(module, x, seeds)

    @torch.no_grad()
    def add(
        self, module: nn.Module, width: int, places: Sequence[Place], x: Tensor, seeds: Sequence[int]
    ) -> None:
        """Those of a member calibrated at ``width`` with one place after the other rounded."""
        network = network_of(module)
        held = quantizers_of(network)
        for place in places:
            # a value with no more bits than this width is not rounded on its way to the layers.
            with _rounding(network, held.get(place, ())):
                self._rounded.setdefault((place, width), []).extend(_draws(module, x, seeds))

    def sensitivities(self) -> list[Sensitivity]:
        wanted = _stack(self._float)
        return [
            Sensitivity(place, width, *self._apart(wanted, _stack(draws)))
            for (place, width), draws in self._rounded.items()
        ]

    def _apart(self, wanted: Outputs, got: Outputs) -> tuple[float, float]:
        """The two parts of the divergence; what float arithmetic leaves of no second part is nothing."""
        signature = self.signature
        of_draws = float(signature.likelihood.divergence(wanted, got).double().mean())
        answers = (predictive_from_outputs(outputs, signature) for outputs in (wanted, got))
        of_answer = max(0.0, float(_divergence(*answers).mean()))
        of_doubt = of_draws - of_answer
        return of_answer, of_doubt if of_doubt > _LEAST_LOSS else 0.0


def _stack(draws: Sequence[Outputs]) -> Outputs:
    return pytree.tree_map(lambda *parts: torch.stack(parts).double(), *draws)


def _divergence(wanted: Predictive, got: Predictive) -> Tensor:
    """``KL(p̄ ‖ q̄)`` of the mean answers, row by row."""
    if isinstance(wanted, CategoricalPredictive):
        p, q = wanted.mean.double(), got.mean.double()
        return (torch.xlogy(p, p) - torch.xlogy(p, q.clamp_min(_LEAST_PROBABILITY))).sum(-1)
    assert isinstance(wanted, GaussianPredictive)
    v, w = (one.variance.double().flatten(1).clamp_min(_LEAST_VARIANCE) for one in (wanted, got))
    gap = (wanted.mean.double() - got.mean.double()).flatten(1)
    return (0.5 * ((w / v).log() - 1 + (v + gap.square()) / w)).sum(-1)


@contextmanager
def _rounding(network: QuantNetwork, rounding: Sequence[Quantizer]) -> Iterator[None]:
    """Within this block ``network`` trains as to its noise, its ranges stay, and these quantisers round."""
    every = [quantizer for _, quantizer in network.quantizers()]
    network.train()
    network.observe(False)
    for quantizer in every:
        quantizer.quantizing = any(quantizer is one for one in rounding)
    try:
        yield
    finally:
        network.observe(True)
        for quantizer in every:
            quantizer.quantizing = True


def _draws(module: nn.Module, x: Tensor, seeds: Sequence[int]) -> list[Outputs]:
    """One pass for each seed, which fixes its noise: layers draw in the same order in every pass."""
    found: list[Outputs] = []
    with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
        for seed in seeds:
            torch.manual_seed(seed)
            found.append(pytree.tree_map(lambda tensor: tensor.detach().float().cpu(), module(x)))
    return found
