"""Weights of Gaussian layers as a float posterior draws them and as its program does, in the same units."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.integer.arithmetic.fixed_point import real
from qbayes.integer.ops import Weighted
from qbayes.posterior.gaussian import GaussianLayer


@dataclass(frozen=True, eq=False)
class Pair:
    """A Gaussian layer, its op, and the gain of the norm that was folded into it (1 where there is none)."""

    op: Weighted
    layer: GaussianLayer
    gain: Tensor

    @property
    def variance(self) -> Tensor:
        """``(g σ)²`` of every weight."""
        return (self.layer.weight_sigma.detach().double() * self._shaped).square()

    def float_noise(self, seed: int, draw: int) -> Tensor:
        """``g (w − μ)`` of the float layer."""
        drawn = self.layer.draw_weights(seed, torch.tensor([draw]))[self.op.weights.site][0]
        return (drawn.double() - self.layer.weight_mean.detach().double()) * self._shaped

    def integer_weights(self, program: qb.Program, seed: int, draw: int) -> Tensor:
        """``S_w w_q`` of the op, or ``S_n n`` where the noise has a grid of its own; member 0."""
        member = program.members[0]
        constants = member.constants[self.op.name]
        drawn = self.op.weights.draw(constants, seed, draw)
        two = self.op.weights.grids == 2
        codes = drawn["noise"] if two else drawn["weight"]
        # M = S_x S_w / S_o.
        multiplier = real(constants["second_multiplier" if two else "multiplier"], constants["shift"].long())
        step = multiplier * member.scales[self.op.output] / member.scales[self.op.inputs[0]]
        return codes.double() * step.view(-1, *(1,) * (codes.ndim - 1))

    @property
    def _shaped(self) -> Tensor:
        return self.gain.view(-1, *(1,) * (self.layer.weight_mean.ndim - 1))


def pairs(posterior: qb.NetworkPosterior, program: qb.Program, norms: dict[str, str]) -> Iterator[Pair]:
    """Every Gaussian op with its float layer; ``norms`` names the norm behind a layer."""
    layers = {layer.site: layer for layer in posterior.network.modules() if isinstance(layer, GaussianLayer)}
    modules = dict(posterior.network.named_modules())
    for op in program.ops:
        if isinstance(op, Weighted) and op.weights.is_gaussian:
            layer = layers[op.weights.site]
            norm = next((m for path, m in modules.items() if path.endswith(norms.get(op.name, "\n"))), None)
            yield Pair(op, layer, _gain(norm, len(layer.weight_mean)))


def _gain(norm: nn.Module | None, channels: int) -> Tensor:
    if norm is None:
        return torch.ones(channels, dtype=torch.float64)
    assert isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d)
    assert norm.running_var is not None
    return norm.weight.detach().double() / (norm.running_var.double() + norm.eps).sqrt()
