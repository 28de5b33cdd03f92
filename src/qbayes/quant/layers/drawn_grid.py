r"""The grid on which a row of drawn Gaussian weights errs least, mean and noise together.

One grid holds ``m + n``, with ``m = round(μ / S)``, ``n = round(σ_q e S_σ S_ε / S)`` and both sums held
within ±L. A grid that ends at max|μ| clips the noise of the largest weights on one side: their means move
towards 0, all at once. The N weights of one output err by themselves for inputs that are random, and
together for the inputs that they answer to most, those like μ. Both count, at inputs of one size:

.. math:: \sum_i \mathrm E\,(w_i-\mu_i-\sigma_i\varepsilon)^2
          + \frac{N}{\sum_i \mu_i^2}\Bigl(\sum_i \mu_i\,(\mu_i-\mathrm E\,w_i)\Bigr)^2

With v = |μ| / S, the rest r = v − m, s = σ_q S_σ / S and ε̂ = e S_ε, a weight's squared error is

.. math:: S^2\Bigl[(1-P)\,(r^2+\rho(s)) + \sum_{m+n>L} p_e\,(L-v-s\hat\varepsilon)^2
          + \sum_{n<-L} p_e\,(L+r+s\hat\varepsilon)^2\Bigr]
          + \mathrm E\,(\sigma_q S_\sigma\hat\varepsilon-\sigma\varepsilon)^2

with :math:`\rho(s) = \mathrm E\,(\mathrm{round}(s\hat\varepsilon)-s\hat\varepsilon)^2` and P the share of
draws in the two sums. All expectations run over the table of ε itself: the sums are tails of it, kept for
every code, and ρ is kept on a fine grid. Left out is only what averages to nothing: that rounding errors
depend on being clipped, and on the errors of σ and ε: a twentieth of the whole at 8 bits of ε, an eighth
at 4.

Where the noise has a grid of its own, that of the means is found in the same way, with s = 0. Why
these and not others: docs/decisions/0017-ends-of-drawn-weights.md.
"""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.integer.arithmetic.epsilon_table import INDEX_BITS, epsilon_scale, epsilon_table
from qbayes.integer.arithmetic.grid import LARGEST_SCALE, SMALLEST_SCALE

CANDIDATES = 48
# the first candidate ends here, as a share of the plain end; the last holds so many σ of every weight.
_NARROWEST = 0.75
_SIGMAS = 4.0
# ρ is kept for s up to the first number, so many values a step; noise of more steps finds no such grid.
_MOST_STEPS, _FINENESS = 128, 64
# numbers that are worked on at a time: they stay in the cache.
_CHUNK = 2**17
_LEAST = 1e-300


@dataclass(frozen=True)
class NoiseTable:
    """What the table of ε adds up to: of the codes beyond c the shares ``Σ p``, ``Σ p ε̂`` and ``Σ p ε̂²``
    at index c, and ρ at index ``64 s``; ``together`` is ``E ε ε̂``.
    """

    share: Tensor
    first: Tensor
    second: Tensor
    rounding: Tensor
    together: float


@functools.cache
def noise_table(bits: int) -> NoiseTable:
    """The sums over the table of ε at this width; shared, so not to be written to."""
    table = epsilon_table(bits).double()
    levels, counts = torch.unique(table, return_counts=True)
    worth = levels * epsilon_scale(bits)
    shares = counts.double() / len(table)
    last = (1 << (bits - 1)) - 1
    beyond = (levels[None] > torch.arange(last + 1)[:, None]).double() * shares
    s = torch.arange(_MOST_STEPS * _FINENESS + 2, dtype=torch.float64) / _FINENESS
    rounding = torch.zeros_like(s)
    for value, share in zip(worth.tolist(), shares.tolist(), strict=True):
        rounding += share * ((s * value).round() - s * value).square()
    # the mean of ε over a word's twelfth bits: φ at the edges of 4096 cells of equal shares.
    edges = torch.special.ndtri(torch.arange(1, 1 << INDEX_BITS, dtype=torch.float64) / (1 << INDEX_BITS))
    density = torch.exp(-edges.square() / 2) / (2 * torch.pi) ** 0.5
    none = torch.zeros(1, dtype=torch.float64)
    parts = torch.cat([none, density]) - torch.cat([density, none])
    together = float((parts * table).sum()) * epsilon_scale(bits)
    sums = [beyond.sum(1), (beyond * worth).sum(1), (beyond * worth.square()).sum(1)]
    return NoiseTable(*(value.float() for value in (*sums, rounding)), together=together)


@torch.no_grad()
def errors_of_draws(
    mean: Tensor,
    sigma: Tensor,
    coded: Tensor,
    scales: Tensor,
    *,
    limit: int,
    noise_bits: int,
    together: float = 1.0,
) -> Tensor:
    """What each row of drawn weights errs on each of its grids (see the module), in float64.

    Args:
        mean: μ of the weights, ``(rows, weights)``; those of a row make one output.
        sigma: Their σ.
        coded: Their σ as its codes have it, in real units.
        scales: S of each row's grids, ``(rows, grids)``.
        limit: The largest code L.
        noise_bits: The bits of ε.
        together: How much the errors count that go together.

    Returns:
        Squared errors, ``(rows, grids)``.

    Example:
        >>> mean, sigma = torch.tensor([[0.5, -1.0]]), torch.tensor([[0.1, 0.1]])
        >>> scales = torch.tensor([[1.0, 1.3]]) / 127
        >>> errors = errors_of_draws(mean, sigma, sigma, scales, limit=127, noise_bits=8)
        >>> bool(errors[0, 1] < errors[0, 0])  # room for the noise of -1.0
        True
    """
    table = noise_table(noise_bits)
    table = NoiseTable(
        *(value.to(mean.device) for value in (table.share, table.first, table.second, table.rounding)),
        together=table.together,
    )
    found = torch.zeros(scales.shape, dtype=torch.float64, device=mean.device)
    moved = torch.zeros_like(found)
    pieces = max(1, -(-mean.numel() // _CHUNK))
    width = -(-mean.shape[1] // pieces)
    for part, spread in zip(mean.abs().float().split(width, 1), coded.float().split(width, 1), strict=True):
        for grid in range(scales.shape[1]):
            step = scales[:, grid, None]
            error, shift = _in_steps(part / step, spread / step, limit, noise_bits, table)
            found[:, grid] += error
            moved[:, grid] += shift
    squares = scales.double().square()
    size = mean.double().square().sum(1, keepdim=True).clamp_min(_LEAST)
    found = found * squares + (moved * squares).square() * (together * mean.shape[1] / size)
    own, other = sigma.double(), coded.double()
    apart = own.square() + other.square() - 2 * table.together * own * other
    return found + apart.sum(1, keepdim=True)


def _in_steps(v: Tensor, s: Tensor, limit: int, noise_bits: int, table: NoiseTable) -> tuple[Tensor, Tensor]:
    """Of each row the error in squared steps, but for that of σ and ε, and ``Σ v (v − E code)``."""
    codes = v.round().clamp_(max=limit)
    rest = v - codes
    error = rest.square() + _rounding(s, table.rounding)
    total, moved = error.sum(1, dtype=torch.float64), (rest * v).sum(1, dtype=torch.float64)
    last, unit = (1 << (noise_bits - 1)) - 1, epsilon_scale(noise_bits)
    reach = s * (unit * last)
    # few weights are near an end, and only those are clipped: above at L, below where n is −L.
    for sign, space in ((1.0, limit - codes), (-1.0, torch.full_like(v, limit))):
        where = torch.nonzero(reach > space + 0.5, as_tuple=True)
        if not len(where[0]):
            continue
        noise, room, error_here = s[where], space[where], error[where]
        end = room - sign * rest[where]
        beyond = ((room + 0.5) / (noise * unit)).long().clamp_(max=last)
        share, first, second = table.share[beyond], table.first[beyond], table.second[beyond]
        clipped = share * end.square() - 2 * end * noise * first + noise.square() * second
        total.index_add_(0, where[0], (clipped - share * error_here).double())
        moved.index_add_(0, where[0], (sign * v[where] * (noise * first - room * share)).double())
    return total, moved


def _rounding(s: Tensor, table: Tensor) -> Tensor:
    """ρ(s), from its table by straight lines."""
    place = (s * _FINENESS).clamp_(max=_MOST_STEPS * _FINENESS)
    index = place.long()
    low = table[index]
    return low + (place - index) * (table[index + 1] - low)


@torch.no_grad()
def candidates_for_draws(mean: Tensor, sigma: Tensor, plain: Tensor, *, limit: int) -> Tensor:
    """The scales among which ``scale_for_draws`` chooses, ``(rows, 1 + CANDIDATES)``; the plain one first.

    Args:
        mean: μ of the weights, ``(rows, weights)``.
        sigma: Their σ.
        plain: The scale that suits the means alone, one a row.
        limit: The largest code.

    Returns:
        From three quarters of the plain scale to where every weight has room for 4 σ.

    Example:
        >>> one = torch.ones(1, 1)
        >>> candidates_for_draws(one, one, torch.tensor([0.5]), limit=2)[0, [0, 1, -1]]
        tensor([0.5000, 0.3750, 2.5000])
    """
    plain = plain.double()
    widest = (mean.abs().double() + _SIGMAS * sigma.double()).amax(1) / limit
    low = _NARROWEST * plain
    ratio = torch.maximum(widest, plain) / low
    exponents = torch.linspace(0, 1, CANDIDATES, dtype=torch.float64, device=mean.device)
    found = torch.cat([plain[:, None], low[:, None] * ratio[:, None] ** exponents], 1)
    return found.clamp(SMALLEST_SCALE, LARGEST_SCALE).float()


@torch.no_grad()
def scale_for_draws(
    mean: Tensor, sigma: Tensor, coded: Tensor, plain: Tensor, *, limit: int, noise_bits: int
) -> Tensor:
    """The scale on which drawn weights err least, of every row or one for all rows.

    Args:
        mean: μ of the weights, ``(rows, weights)``; those of a row make one output.
        sigma: Their σ.
        coded: Their σ as its codes have it, in real units.
        plain: The scale that is least in squares of the means alone: one a row, or a scalar for all.
        limit: The largest code.
        noise_bits: The bits of ε.

    Returns:
        Scales in the shape of ``plain``.

    Example:
        >>> mean, plain = torch.tensor([[0.5, -1.0]]), torch.tensor([1.0 / 127])
        >>> sigma = torch.tensor([[0.1, 0.1]])
        >>> bool(scale_for_draws(mean, sigma, sigma, plain, limit=127, noise_bits=8) > 1.2 * plain)
        True
    """
    # in units of the plain grid's end: squares of very large or small numbers are no float32.
    unit = plain.double().reshape(-1, 1) * limit
    mean, sigma, coded = ((values.double() / unit).float() for values in (mean, sigma, coded))
    together = (1, -1) if plain.ndim == 0 else mean.shape
    ones = torch.full((len(unit),), 1 / limit, device=mean.device)
    candidates = candidates_for_draws(mean.reshape(together), sigma.reshape(together), ones, limit=limit)
    scales = candidates.expand(len(mean), -1)
    errors = errors_of_draws(mean, sigma, coded, scales, limit=limit, noise_bits=noise_bits)
    if plain.ndim == 0:
        errors = errors.sum(0, keepdim=True)
    best = errors.argmin(1, keepdim=True)
    found = (candidates.gather(1, best).double() * unit).clamp(SMALLEST_SCALE, LARGEST_SCALE).float()
    return torch.where(best == 0, plain.reshape(-1, 1), found).reshape(plain.shape)
