"""The weights of a Conv or Linear in a graph: constants, tensors that come from outside, or draws of ε.

Codes that a zero-point leaves outside int8 (``q_w − Z_w`` reaches ±255) come in two parts, ``w = w₁ + w₂``.
"""

from dataclasses import dataclass

import numpy as np

from qbayes.integer.arithmetic.fixed_point import real
from qbayes.integer.onnx.exact_rescale import Lanes, Part, integers
from qbayes.integer.onnx.graph import Graph
from qbayes.integer.onnx.op_context import Site
from qbayes.integer.ops.base import Constants
from qbayes.integer.ops.weighted import Weighted

# Scales beyond these could leave float32 when they are multiplied.
_SMALLEST, _LARGEST = 2.0**-40, 2.0**40
_NEIGHBOURS = 2


def multipliers(site: Site, name: str = "multiplier") -> np.ndarray:
    """``m / 2^s`` of each output channel in float64, exactly."""
    found = real(site.constants[name], site.constants["shift"].long()).numpy()
    return np.broadcast_to(found, (weighted_op(site).weight_shape[0],)).copy()


def scales_of(site: Site, name: str = "multiplier") -> tuple[float, np.ndarray, float]:
    """``(S_x, S_w of each channel, S_o)``: what the codes mean, so that other tools can read the model.

    The scale of the weights is the float32 number that brings ``S_x S_w / S_o``, computed in float32, nearest
    to the multiplier. Codes of a scale that float32 products would lose count in steps of 1.
    """
    wanted = multipliers(site, name)
    scale, out_scale = site.scale, site.out_scale
    if not (_SMALLEST < scale < _LARGEST and _SMALLEST < out_scale < _LARGEST):
        scale = out_scale = 1.0
    nearest = (wanted * out_scale / scale).astype(np.float32)
    candidates = [nearest]
    for direction in (-np.inf, np.inf):
        at = nearest
        for _ in range(_NEIGHBOURS):
            at = np.nextafter(at, np.float32(direction))
            candidates.append(at)
    stacked = np.stack(candidates)
    made = (np.float32(scale) * stacked / np.float32(out_scale)).astype(np.float64)
    best = np.abs(made - wanted).argmin(0)
    return scale, np.take_along_axis(stacked, best[None], 0)[0], out_scale


_LEAST, _MOST = -128, 127


@dataclass(frozen=True, eq=False)
class Codes:
    """Weights in int8, output channels first: known ones as an array, drawn ones as a tensor of the graph.

    ``zero`` is to be taken from the codes of a tensor; an array is centred already. ``sums`` bounds
    ``Σ |w|`` of a channel, ``size`` the largest ``|w|``.
    """

    array: np.ndarray | None
    tensor: str
    zero: int
    sums: int
    size: int


def weighted_op(site: Site) -> Weighted:
    assert isinstance(site.op, Weighted)
    return site.op


def point_parts(site: Site) -> list[Codes]:
    """The centred codes of point weights, in as many parts as int8 needs."""
    op = weighted_op(site)
    centred = site.constants["weight"].numpy().astype(np.int64)
    if op.weights.affine:
        zeros = site.constants["weight_zero"].numpy().astype(np.int64)
        centred = centred - zeros.reshape(-1, *(1,) * (centred.ndim - 1))
    first = centred.clip(_LEAST, _MOST)
    parts = [first] if (first == centred).all() else [first, centred - first]
    return [_constant_codes(part) for part in parts]


def _constant_codes(part: np.ndarray) -> Codes:
    sizes = np.abs(part).reshape(len(part), -1)
    return Codes(part.astype(np.int8), "", 0, int(sizes.sum(1).max()), int(sizes.max()))


def codes_of_draws(site: Site, name: str) -> Codes:
    """The drawn codes ``weight``, ``mean`` or ``noise``; bounds hold for every draw."""
    op = weighted_op(site)
    zero = int(site.constants["weight_zero"]) if op.weights.affine and name == "weight" else 0
    if name == "mean":
        return _constant_codes(site.constants["mean"].numpy().astype(np.int64))
    size = max(abs(limit - zero) for limit in op.weights.limits)
    return Codes(None, site.noise[name], zero, size * int(np.prod(op.weight_shape[1:])), size)


def write_draw(g: Graph, lanes: Lanes, op: Weighted, constants: Constants, epsilon: str) -> dict[str, str]:
    """``weight`` or ``noise`` (int8) from the codes of ε, as ``Weights.draw`` makes them."""
    low, high = op.weights.limits
    along = (-1, *(1,) * (len(op.weight_shape) - 1))
    spread = g.node(
        "Mul", lanes.of(g, epsilon), lanes.of(g, g.constant(constants["sigma"], np.uint8, "sigma"))
    )
    largest = int(constants["sigma"].max()) << (op.weights.noise_bits - 1)
    multiplier, shift = (
        integers(constants[f"noise_{name}"]).reshape(along) for name in ("multiplier", "shift")
    )
    steps = lanes.round(g, [lanes.term(g, [Part(spread, largest)], multiplier)], shift)
    noise = lanes.clip(g, steps, low, high)
    if op.weights.grids == 2:
        return {"noise": g.cast(noise, np.int8)}
    mean = lanes.of(g, g.constant(constants["mean"], np.int8, "mean"))
    if op.weights.grids == 1:
        return {"weight": g.cast(lanes.clip(g, g.node("Add", noise, mean), low, high), np.int8)}
    of_mean, of_noise = integers(constants["mix"])
    size = 1 << (op.weights.bits - 1)
    pairs = ((mean, of_mean), (noise, of_noise))
    terms = [lanes.term(g, [Part(tensor, size)], integers(factor)) for tensor, factor in pairs]
    offset = integers(-int(constants["mean_zero"]) * of_mean)
    mixed = lanes.round(g, terms, integers(constants["mix_shift"]), offset)
    return {"weight": lanes.codes(g, mixed, int(constants["weight_zero"]), low, high, np.int8)}


def write_bias_draw(g: Graph, lanes: Lanes, constants: Constants, epsilon: str) -> str:
    """``round(σ_b e m / 2^s)`` in int32, to be added to the bias."""
    sigma = g.constant(constants["bias_sigma"], np.uint8, "bias_sigma")
    spread = g.node("Mul", lanes.of(g, epsilon), lanes.of(g, sigma))
    multiplier, shift = (integers(constants[f"bias_noise_{name}"]) for name in ("multiplier", "shift"))
    term = lanes.term(g, [Part(spread, 255 * 127)], multiplier)
    return g.cast(lanes.round(g, [term], shift), np.int32)
