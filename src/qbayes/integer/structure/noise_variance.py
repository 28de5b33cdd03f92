"""How much of the posterior's variance the integer weights of a Gaussian layer keep.

A coarse grid rounds small noise away, and a deterministic network would pass for a Bayesian one. The ratio

    Var(w_q S_w) / σ²,   the mean over the weights of a layer above and below,

is computed by running through the finite table of ε for every weight (a strided sample of at most 200,000),
so above there is no chance in it. A step of channel c is worth ``S_c = M_c S_o / S_x``, as its multiplier
is ``M_c = S_x S_c / S_o``: the second multiplier where the noise has a grid of its own (grids 2), with any
correction of the variance in it, else the first. The code that varies is ``w = clamp(μ_q + n)`` on one
grid, n on two, and the mixed ``w`` of the paper's.

Below stands the mean of σ² that the member records (``Member.deviations``). A member that records none is
measured by its own codes of σ: the noise should be ``σ/S_n · ε = σ_q (S_σ/S_n) S_ε e`` in steps of its grid
and its multiplier is ``M_n = S_σ S_ε / S_n``, with ``S_ε`` the scale that gives ε unit variance, so the
deviation wanted is ``σ_q M_n / S_ε`` steps (times ``M_b``, the worth of a step of n in steps of w, with the
paper's). Then neither the rounding of σ to its code nor a correction in the second multiplier can show.
"""

import math

import torch
from torch import Tensor

from qbayes.integer.arithmetic.epsilon_table import epsilon_scale, epsilon_table
from qbayes.integer.arithmetic.fixed_point import real, rescale, round_shift
from qbayes.integer.ops import Constants, Weighted
from qbayes.integer.structure.program_data import Member, ProgramData

MOST_WEIGHTS = 200_000
_CHUNK = 1 << 21  # of weights × levels of ε at a time


def variance_ratio(program: ProgramData, member: Member, op: Weighted) -> float | None:
    """``Var(w_q S_w) / σ²`` of a Gaussian layer; None where no weight should have any variance."""
    constants = member.constants[op.name]
    kinds, counts = torch.unique(_weight_rows(op, constants), dim=0, return_counts=True)
    channel, sigma, mean = kinds.unbind(1)
    levels = torch.unique(epsilon_table(op.weights.noise_bits)).numel()
    parts = zip(*(t.split(max(_CHUNK // levels, 1)) for t in (channel, sigma, mean)), strict=True)
    variance = torch.cat([_variance(op, constants, *part) for part in parts])
    unit = member.scales[op.output] / member.scales[op.inputs[0]]
    squares = (_multiplier(op, constants)[channel] * unit) ** 2 * counts / counts.sum()
    wanted = member.deviations.get(op.name, 0.0) ** 2
    if not wanted:
        wanted = float((_ideal_steps(op, constants, channel, sigma) ** 2 * squares).sum())
    return float((variance * squares).sum()) / wanted if wanted > 0 else None


def _weight_rows(op: Weighted, constants: Constants) -> Tensor:
    """Rows of (channel, σ_q, μ_q): what the variance of a weight depends on."""
    sigma, mean = constants["sigma"].flatten(), constants["mean"].flatten()
    fan_in = math.prod(op.weight_shape[1:])
    stride = -(-sigma.numel() // MOST_WEIGHTS)
    while math.gcd(stride, fan_in) > 1:  # else it would meet the same taps of every kernel
        stride += 1
    places = torch.arange(0, sigma.numel(), stride, device=sigma.device)
    # the noise alone has its own grid, whose clamp does not know the mean.
    means = torch.zeros_like(places) if op.weights.grids == 2 else mean[places].long()
    return torch.stack([places // fan_in, sigma[places].long(), means], dim=1).cpu()


def _ideal_steps(op: Weighted, constants: Constants, channel: Tensor, sigma: Tensor) -> Tensor:
    factor = real(constants["noise_multiplier"].cpu(), constants["noise_shift"].cpu().long())[channel]
    steps = sigma.double() * factor.abs() / epsilon_scale(op.weights.noise_bits)
    if op.weights.grids == 0:
        steps = steps * float(real(constants["mix"].cpu()[1], constants["mix_shift"].cpu().long()).abs())
    return steps


def _multiplier(op: Weighted, constants: Constants) -> Tensor:
    """The real multiplier of the grid that the noise stands on, for each channel."""
    name = "second_multiplier" if op.weights.grids == 2 else "multiplier"
    return real(constants[name].cpu(), constants["shift"].cpu().long()).expand(op.weight_shape[0])


def _variance(op: Weighted, constants: Constants, channel: Tensor, sigma: Tensor, mean: Tensor) -> Tensor:
    """Variance of each drawn code over the 4096 equally likely entries of the table."""
    codes, counts = torch.unique(epsilon_table(op.weights.noise_bits), return_counts=True)
    multiplier, shift = (
        constants[name].cpu().long()[channel, None] for name in ("noise_multiplier", "noise_shift")
    )
    drawn = rescale(sigma[:, None] * codes.long(), multiplier, shift).clamp(*op.weights.limits)
    if op.weights.grids == 1:
        drawn = (mean[:, None] + drawn).clamp(*op.weights.limits)
    elif op.weights.grids == 0:
        of_mean, of_noise = constants["mix"].cpu().long()
        total = (mean[:, None] - int(constants["mean_zero"])) * of_mean + drawn * of_noise
        mixed = int(constants["weight_zero"]) + round_shift(total, constants["mix_shift"].cpu())
        drawn = mixed.clamp(*op.weights.limits)
    share = counts.double() / counts.sum()
    values = drawn.double()
    return (values**2) @ share - (values @ share) ** 2
