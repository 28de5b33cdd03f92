"""The integer Gaussian: ε as a table of 4096 codes, indexed by the noise word that also makes the float ε.

    e = TABLE[word >> 20],   TABLE[i] = clamp(round(Φ⁻¹((i + ½) / 4096) / Δ), ±(2^(b−1) − 1)),   ε ≈ e · scale

The float ε is ``Φ⁻¹`` of the upper 23 bits of the same word, so both belong together. Δ is the uniform step
with the least squared error for the 4096 points at each width (Max, *Quantizing for minimum distortion*,
1960), and ``scale = 1 / √mean(TABLE²)`` makes the variance 1 exactly, at every width. The table is odd: the
mean is 0.
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from qbayes import noise
from qbayes.errors import BadInput
from qbayes.integer.arithmetic.fixed_point import rescale
from qbayes.noise import c_kernel

INDEX_BITS = 12
GAUSSIAN_STEPS = {2: 1.224, 3: 0.6505, 4: 0.3528, 5: 0.1924, 6: 0.1047, 7: 0.0557, 8: 0.0286}


@functools.cache
def epsilon_table(bits: int) -> Tensor:
    """The 4096 codes of ε in int8 at this width (2 … 8); shared, so not to be written to."""
    if bits not in GAUSSIAN_STEPS:
        raise BadInput("the bits of the noise must be 2 … 8", f"{bits!r}", "choose a width from 2 to 8")
    points = 1 << INDEX_BITS
    upper = (torch.arange(points // 2, points, dtype=torch.float64) + 0.5) / points
    limit = (1 << (bits - 1)) - 1
    codes = (torch.special.ndtri(upper) / GAUSSIAN_STEPS[bits]).round().clamp(max=limit).to(torch.int8)
    return torch.cat([-codes.flip(0), codes])


@functools.cache
def epsilon_scale(bits: int) -> float:
    """What one code of ε is worth: ``1 / √mean(TABLE²)``."""
    return 1 / math.sqrt(float(epsilon_table(bits).double().square().mean()))


def epsilon_codes(seed: int, site: int, draws: Tensor, shape: tuple[int, ...], bits: int) -> Tensor:
    """The codes of ε at one site, int8 ``(draws, *shape)``; the pair of ``noise.gaussians``."""
    table, elements = epsilon_table(bits), math.prod(shape)
    kernel = c_kernel.kernel() if draws.device.type == "cpu" else None
    if kernel is not None:
        return kernel.epsilon(draws, elements, seed, site, table).view(-1, *shape)
    row = torch.zeros(1, dtype=torch.int64, device=draws.device)
    index = noise.words(seed, site, draws, row, elements)[:, 0] >> (32 - INDEX_BITS)
    return table.to(draws.device)[index].view(-1, *shape)


def sample_codes(
    mean: Tensor | None,
    sigma: Tensor,
    multiplier: Tensor,
    shift: Tensor,
    limits: tuple[int, int],
    *,
    bits: int,
    seed: int,
    site: int,
    draw: int,
    threads: int = 1,
) -> Tensor:
    """One draw of integer Gaussian weights, int8 in the shape of ``sigma`` (uint8, output channels first).

        n = clamp(round(σ_q · e · m_c / 2^s_c), low, high);   w = clamp(μ_q + n, low, high)

    Without a mean, n alone. ``multiplier`` and ``shift`` hold one element, or one for each output channel.
    """
    kernel = c_kernel.kernel() if sigma.device.type == "cpu" else None
    if kernel is None:
        return _sample_by_torch(mean, sigma, multiplier, shift, limits, bits, seed, site, draw)
    out = torch.empty(sigma.shape, dtype=torch.int8)
    fill = kernel.sampler(out, mean, sigma, multiplier, shift, limits, epsilon_table(bits), seed, site, draw)
    count = sigma.numel()
    part = -(-count // max(threads, 1) // 64) * 64 or 64  # whole blocks of the generator
    if part >= count:
        fill(0, count)
        return out
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda first: fill(first, min(part, count - first)), range(0, count, part)))
    return out


def _sample_by_torch(
    mean: Tensor | None,
    sigma: Tensor,
    multiplier: Tensor,
    shift: Tensor,
    limits: tuple[int, int],
    bits: int,
    seed: int,
    site: int,
    draw: int,
) -> Tensor:
    draws = torch.tensor([draw], device=sigma.device)
    codes = epsilon_codes(seed, site, draws, tuple(sigma.shape), bits)[0]
    channelwise = (-1, *(1,) * (sigma.dim() - 1))
    noise_codes = rescale(
        sigma.long() * codes.long(), multiplier.view(channelwise), shift.long().view(channelwise)
    )
    noise_codes = noise_codes.clamp(*limits)
    if mean is not None:
        noise_codes = (noise_codes + mean).clamp(*limits)
    return noise_codes.to(torch.int8)
