"""Equal-weight mixtures of Gaussians, one for each element: ``p(y) = (1/D) Σ_d N(y | μ_d, v_d)``.

Every function takes ``means`` and ``variances`` of shape ``(D, *elements)``, works on all elements at once
and computes in float64: tails and differences of nearly equal numbers would not survive float32.
"""

import math

import torch
from torch import Tensor

# Bisection halves the bracket at every refused Newton step: 200 steps end below float64's resolution.
QUANTILE_STEPS = 200
QUANTILE_TOLERANCE = 1e-10

# Edges of the entropy's integration cells in standard deviations of each component; beyond ±8.5 a
# component holds 2e-17 of its mass.
ENTROPY_KNOTS = (-8.5, -6.5, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.5, 8.5)
# Nodes and weights of the 5-point Gauss–Legendre rule on [−1, 1].
_INNER, _OUTER = (math.sqrt(5 - sign * 2 * math.sqrt(10 / 7)) / 3 for sign in (1, -1))
_INNER_WEIGHT, _OUTER_WEIGHT = ((322 + sign * 13 * math.sqrt(70)) / 900 for sign in (1, -1))
LEGENDRE_NODES = (-_OUTER, -_INNER, 0.0, _INNER, _OUTER)
LEGENDRE_WEIGHTS = (_OUTER_WEIGHT, _INNER_WEIGHT, 128 / 225, _INNER_WEIGHT, _OUTER_WEIGHT)
# Integration points held at once (64 MiB of float64).
ENTROPY_POINTS = 2**23


def mixture_cdf(y: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """``F(y) = (1/D) Σ_d Φ((y − μ_d) / σ_d)``, elementwise."""
    return torch.special.ndtr((y.double() - means.double()) / variances.double().sqrt()).mean(0)


def mixture_quantile(q: float, means: Tensor, variances: Tensor) -> Tensor:
    """The ``y`` with ``F(y) = q``, elementwise, by Newton steps inside a shrinking bracket.

    The quantile of a mixture lies between the smallest and the largest quantile of its components. A Newton
    step that leaves the bracket, or does not halve the step before it, is replaced by bisection.
    """
    means, std = means.double(), variances.double().sqrt()
    components = means + std * torch.special.ndtri(torch.tensor(q, dtype=torch.float64)).item()
    low, high = components.amin(0), components.amax(0)
    width = QUANTILE_TOLERANCE * std.amin(0)
    x, last_step = (low + high) / 2, high - low
    for _ in range(QUANTILE_STEPS):
        z = (x - means) / std
        excess = torch.special.ndtr(z).mean(0) - q
        slope = (torch.exp(-0.5 * z**2) / std).mean(0) / math.sqrt(2 * math.pi)
        low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
        converged = (excess.abs() <= 1e-12 * min(q, 1 - q)) | (high - low <= width)
        if bool(converged.all()):
            break
        newton = x - excess / slope
        accepted = (newton >= low) & (newton <= high) & ((newton - x).abs() <= last_step / 2)
        following = torch.where(accepted, newton, (low + high) / 2)
        following = torch.where(converged, x, following)
        last_step, x = (following - x).abs(), following
    return x


def mixture_entropy(means: Tensor, variances: Tensor) -> Tensor:
    """``H = −∫ p(y) log p(y) dy`` in nats, elementwise.

    Gauss–Legendre quadrature on the cells between all ``μ_d + k σ_d``: unlike a Gauss–Hermite rule around
    each component it stays accurate when a narrow component stands inside a wide one.
    """
    draws, elements = means.shape[0], means.shape[1:]
    means, std = means.double().flatten(1), variances.double().sqrt().flatten(1)
    centre = means.mean(0)
    # in units of each mixture's own spread, H(y) = H((y − c)/s) + log s.
    spread = (std**2 + (means - centre) ** 2).mean(0).sqrt()
    points_per_element = len(ENTROPY_KNOTS) * len(LEGENDRE_NODES) * draws
    chunk = max(1, ENTROPY_POINTS // points_per_element)
    scaled = zip(((means - centre) / spread).split(chunk, 1), (std / spread).split(chunk, 1), strict=True)
    parts = [_entropy_by_quadrature(mean, deviation) for mean, deviation in scaled]
    return (torch.cat(parts) + spread.log()).reshape(elements)


def _entropy_by_quadrature(means: Tensor, std: Tensor) -> Tensor:
    """Entropies of mixtures ``(D, n)``; one component at a time, so that memory is linear in D."""
    knots, nodes, weights = (
        torch.tensor(numbers, dtype=torch.float64, device=means.device)[:, None, None]
        for numbers in (ENTROPY_KNOTS, LEGENDRE_NODES, LEGENDRE_WEIGHTS)
    )
    edges = (means + std * knots).flatten(0, 1).sort(dim=0).values
    half = edges.diff(dim=0) / 2
    points = edges[:-1] + half + half * nodes
    density = torch.zeros_like(points)
    for mean, deviation in zip(means, std, strict=True):
        density += torch.exp(-0.5 * ((points - mean) / deviation) ** 2) / deviation
    density /= means.shape[0] * math.sqrt(2 * math.pi)
    return (torch.special.entr(density) * weights * half).sum(dim=(0, 1))


def mixture_crps(y: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Continuous ranked probability score ``E|X − y| − ½ E|X − X'|``, elementwise, in the units of ``y``.

    With ``A(m, s²) = E|N(m, s²)| = 2 s φ(m/s) + m (2 Φ(m/s) − 1)`` it is
    ``(1/D) Σ_d A(y − μ_d, v_d) − 1/(2 D²) Σ_de A(μ_d − μ_e, v_d + v_e)`` (Grimit et al., 2006).
    """
    means, variances = means.double(), variances.double()
    to_target = _absolute_moment(y.double() - means, variances).mean(0)
    # one component against all others at a time: D² numbers an element would not fit for many draws.
    between = torch.zeros_like(to_target)
    for mean, variance in zip(means, variances, strict=True):
        between += _absolute_moment(means - mean, variances + variance).mean(0)
    return to_target - between / (2 * means.shape[0])


def _absolute_moment(mean: Tensor, variance: Tensor) -> Tensor:
    std = variance.sqrt()
    z = mean / std
    # 2 Φ(z) − 1 = erf(z / √2)
    return std * math.sqrt(2 / math.pi) * torch.exp(-0.5 * z**2) + mean * torch.erf(z / math.sqrt(2))
