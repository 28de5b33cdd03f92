r"""Channels of one range, before anything is rounded (Nagel, van Baalen, Blankevoort, Welling, ICCV 2019).

An activation has one grid for all its channels, so a channel of small numbers is left with few codes. A
linear map, with or without ReLU, lets positive factors through: with :math:`S = \mathrm{diag}(s)`

.. math:: W_2\, \mathrm{relu}(W_1 x + b_1) = (W_2 S^{-1})\, \mathrm{relu}(S W_1 x + S b_1),

the same function from other numbers. Weights have a grid for each output channel, so :math:`S W_1` costs
nothing; the trade is between the activation and the columns of :math:`W_2`. With the largest activation
:math:`a_c` of a channel and the largest weight :math:`k_c` that reads it,

.. math:: s_c = \sqrt{k_c / a_c}

gives both the same range :math:`\sqrt{a_c k_c}`. Gaussian weights scale in μ and σ; masks and pooling by the
largest let factors through.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.quant.layers.base import UNLIMITED, broadcast_vector
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.layers.weighted import PointWeights, QuantWeighted
from qbayes.quant.network import QuantNetwork

# limits of an activation that lets positive factors through: none, and ReLU.
_LETS_THROUGH = (UNLIMITED, (0.0, math.inf))
# a channel that would need a larger factor, or a smaller one than its inverse, is nearly dead.
_LARGEST_FACTOR = 100.0

Weights = PointWeights | GaussianWeights


@dataclass(frozen=True)
class Reader:
    """Weights that read a map's channels; ``channels`` says which of them each input channel is."""

    weights: Weights
    channels: Tensor


@dataclass(frozen=True)
class Pair:
    """A map and all that read it."""

    name: str
    weights: Weights
    readers: tuple[Reader, ...]


@torch.no_grad()
def equalise(network: QuantNetwork, batches: Iterable[Tensor]) -> list[str]:
    """Balance the channels between the maps of ``network``, by its activations on ``batches``.

    Gives the names of the maps whose channels were scaled. Left as they are: maps whose factors would not
    cancel (weights used twice, a sum or a pad on the way, groups, an answer of the network).
    """
    largest: dict[str, Tensor] = {}
    pairs: list[Pair] | None = None
    for x in batches:
        values = network.float_values(x)
        if pairs is None:
            pairs = _pairs(network, values)
        for pair in pairs:
            axis = pair.weights.channel_axis
            now = values[pair.name].movedim(axis, 0).flatten(1).abs().amax(1)
            before = largest.get(pair.name)
            largest[pair.name] = now if before is None else torch.maximum(before, now)
    for pair in pairs or []:
        _balance(pair, largest[pair.name])
    return [pair.name for pair in pairs or []]


def _balance(pair: Pair, largest: Tensor) -> None:
    """``s = √(k / a)``, times a number that leaves the whole activation's range as it is."""
    read = torch.zeros_like(largest)
    for reader in pair.readers:
        weight = _mean(reader.weights).abs().transpose(0, 1).flatten(1).amax(1)
        read = read.scatter_reduce(0, reader.channels, weight, "amax")
    alive = (largest > 0) & (read > 0)
    factors = torch.where(alive, (read / largest).sqrt(), torch.ones_like(read))
    reach = (factors * largest)[alive]
    if not len(reach) or not bool(torch.isfinite(reach).all()):
        return
    factors = torch.where(alive, factors * (largest[alive].max() / reach.max()), 1.0)
    factors = factors.clamp(1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
    _scale(pair.weights, factors, 0)
    for reader in pair.readers:
        _scale(reader.weights, 1 / factors[reader.channels], 1)


def _mean(weights: Weights) -> Tensor:
    return weights.weight if isinstance(weights, PointWeights) else weights.weight_mean


def _scale(weights: Weights, factors: Tensor, axis: int) -> None:
    """Multiply the outputs (axis 0) or undo it at the inputs (axis 1), noise and bias included."""
    mean = _mean(weights)
    mean.mul_(broadcast_vector(factors, mean.ndim, axis))
    bias = weights.bias if isinstance(weights, PointWeights) else weights.bias_mean
    if axis == 0 and bias is not None:
        bias.mul_(factors)
    if isinstance(weights, GaussianWeights):
        weights.scale_noise(factors, axis)


def _pairs(network: QuantNetwork, values: Mapping[str, Tensor]) -> list[Pair]:
    uses: dict[int, int] = {}
    for step in network.steps:
        layer = network.layer(step.name)
        if isinstance(layer, QuantWeighted):
            uses[id(layer.weights)] = uses.get(id(layer.weights), 0) + 1
    found = []
    for step in network.steps:
        layer = network.layer(step.name)
        if not isinstance(layer, QuantWeighted) or layer.limits not in _LETS_THROUGH:
            continue
        readers = _readers(network, step.name, _indices(values[step.name], layer.weights.channel_axis))
        if readers is None or any(uses[id(w)] > 1 for w in (layer.weights, *(r.weights for r in readers))):
            continue
        if isinstance(layer.weights, PointWeights | GaussianWeights):
            found.append(Pair(step.name, layer.weights, tuple(readers)))
    return found


def _indices(value: Tensor, axis: int) -> Tensor:
    """One row like those of ``value`` in which every number is that of its channel."""
    row = value[:1]
    return broadcast_vector(
        torch.arange(row.shape[axis], device=row.device).float(), row.ndim, axis
    ).expand_as(row)


def _readers(network: QuantNetwork, name: str, indices: Tensor) -> list[Reader] | None:
    """All weights that read the channels of the step ``name``; None where something else does."""
    if name in network.heads.values():
        return None
    found: list[Reader] = []
    for step in network.steps:
        if name not in step.inputs:
            continue
        layer = network.layer(step.name)
        if isinstance(layer, QuantWeighted):
            channels = _channels_read(layer, indices)
            if channels is None:
                return None
            found.append(Reader(layer.weights, channels))
            continue
        moved = layer.pass_channels(indices)
        behind = None if moved is None else _readers(network, step.name, moved)
        if behind is None:
            return None
        found += behind
    # channels that nobody reads have nothing to trade.
    return found or None


def _channels_read(layer: QuantWeighted, indices: Tensor) -> Tensor | None:
    """The channel that each input channel of the map is; None where positions of it are of several."""
    weights = layer.weights
    if not isinstance(weights, PointWeights | GaussianWeights):
        return None
    if weights.geometry is not None and weights.geometry.groups > 1:
        return None
    by_channel = indices.movedim(weights.channel_axis, 0).flatten(1)
    if not bool((by_channel == by_channel[:, :1]).all()):
        return None
    return by_channel[:, 0].long()
