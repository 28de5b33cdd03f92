"""The weights of a Conv or Linear: points, or Gaussians drawn from integer codes of μ, σ and ε.

With ``e`` the code of ε (``quant.epsilon``), σ_q that of σ and ``(m, s)`` of the output channel:

    n = clamp(round(σ_q e · m / 2^s), low, high)
    grids 1:  w = clamp(μ_q + n, low, high)                              one accumulator
    grids 2:  Σ x_c μ_q and Σ x_c n                                      two accumulators, two scales
    grids 0:  w = clamp(Z_w + round(((μ_q − Z_μ) m_a + n m_b) / 2^s), low, high)   the paper's, per tensor

``low`` and ``high`` are ``±(2^(b−1) − 1)``, with a zero-point ``−2^(b−1) … 2^(b−1) − 1``. A Gaussian bias is
``b_q + round(σ_b e · m / 2^s)`` with ε from a site of its own.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qbayes.integer.arithmetic.epsilon_table import epsilon_codes, epsilon_table, sample_codes
from qbayes.integer.arithmetic.fixed_point import rescale, round_shift
from qbayes.integer.arithmetic.grid import MOST_BITS
from qbayes.integer.ops import fields
from qbayes.integer.ops.base import Constant, Constants

SHIFT_BITS = 6


@dataclass(frozen=True)
class Weights:
    """How the weights of an op are stored and drawn; the numbers are constants of the op."""

    kind: Literal["point", "gaussian"]
    bits: int
    affine: bool = False
    per_channel: bool = True
    sigma_bits: int = 8
    noise_bits: int = 8
    site: int = 0
    grids: int = 1
    bias_site: int | None = None

    def __post_init__(self) -> None:
        fields.one_of("the kind of weights", self.kind, ("point", "gaussian"))
        for name in ("bits", "sigma_bits", "noise_bits"):
            fields.width(f"the {name} of weights", getattr(self, name))
        fields.flag("affine", self.affine)
        fields.flag("per_channel", self.per_channel)
        fields.one_of("the grids of weights", self.grids, (0, 1, 2))
        fields.whole("the site of weights", self.site)
        if self.bias_site is not None:
            fields.whole("the bias_site of weights", self.bias_site)
        if not self.is_gaussian:
            fields.one_of("the bias_site of weights that draw no noise", self.bias_site, (None,))
            return
        fields.one_of("affine, with these grids,", self.affine, (self.grids == 0,))
        fields.one_of("per_channel, with these grids,", self.per_channel and self.grids == 0, (False,))

    @property
    def is_gaussian(self) -> bool:
        return self.kind == "gaussian"

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest code of a weight (and of the noise n)."""
        half = 1 << (self.bits - 1)
        return (-half if self.affine else 1 - half), half - 1

    @property
    def accumulators(self) -> int:
        return 2 if self.is_gaussian and self.grids == 2 else 1

    def constants(self, shape: tuple[int, ...], out_bits: int) -> tuple[Constant, ...]:
        """What the op stores for weights of this shape (output channels first), in the order of the file.

        Noise is scaled channel by channel in any case: a folded normalisation may turn a channel's sign.
        """
        channels = shape[:1]
        scales = channels if self.per_channel or self.accumulators == 2 else (1,)
        listed = self._gaussian(shape) if self.is_gaussian else self._point(shape, scales)
        listed += [Constant("bias", channels, 32, True)]
        if self.is_gaussian and self.bias_site is not None:
            listed += [Constant("bias_sigma", channels, 8, False)]
            listed += _scaling("bias_noise_multiplier", "bias_noise_shift", channels)
        if self.accumulators == 2:
            listed += [Constant("second_multiplier", scales, 32, True)]
        listed += _scaling("multiplier", "shift", scales)
        return (*listed, *clamp_constants(out_bits))

    def draw(self, constants: Constants, seed: int, draw: int, threads: int = 1) -> dict[str, Tensor]:
        """The codes of one draw: ``weight`` (with grids 2 ``mean`` and ``noise``) and ``bias`` (int32).

        Codes are int8 and not centred: subtract ``zero(constants)``.
        """
        if not self.is_gaussian:
            return {"weight": constants["weight"], "bias": constants["bias"]}
        drawn = self._weights(constants, seed, draw, threads)
        return {**drawn, "bias": self._bias(constants, seed, draw)}

    def bias_limit(self, constants: Constants) -> Tensor:
        """The largest magnitude of each bias in any draw, in float64."""
        limit = constants["bias"].double().abs()
        if self.bias_site is None:
            return limit
        spread = constants["bias_sigma"].long() * int(epsilon_table(self.noise_bits).max())
        multiplier, shift = constants["bias_noise_multiplier"], constants["bias_noise_shift"]
        return limit + rescale(spread, multiplier, shift).double().abs()

    def zero(self, constants: Constants) -> Tensor | int:
        """The zero-point of the drawn weights: a number, or int64 of the shape (channels,)."""
        if not self.affine:
            return 0
        return constants["weight_zero"].long()

    def _point(self, shape: tuple[int, ...], scales: tuple[int, ...]) -> list[Constant]:
        zeros = [Constant("weight_zero", scales, 8, True)] if self.affine else []
        return [Constant("weight", shape, self.bits, True), *zeros]

    def _gaussian(self, shape: tuple[int, ...]) -> list[Constant]:
        codes = [
            Constant("mean", shape, self.bits, True),
            Constant("sigma", shape, self.sigma_bits, False),
            *_scaling("noise_multiplier", "noise_shift", shape[:1]),
        ]
        if self.grids:
            return codes
        zeros = [Constant(name, (1,), 8, True) for name in ("mean_zero", "weight_zero")]
        mix = [Constant("mix", (2,), 32, True), Constant("mix_shift", (1,), SHIFT_BITS, False)]
        return [*codes, *zeros, *mix]

    def _weights(self, constants: Constants, seed: int, draw: int, threads: int) -> dict[str, Tensor]:
        mean = constants["mean"]
        codes = sample_codes(
            mean if self.grids == 1 else None,
            *(constants["sigma"], constants["noise_multiplier"], constants["noise_shift"], self.limits),
            bits=self.noise_bits,
            seed=seed,
            site=self.site,
            draw=draw,
            threads=threads,
        )
        if self.grids == 1:
            return {"weight": codes}
        if self.grids == 2:
            return {"mean": mean, "noise": codes}
        of_mean, of_noise = constants["mix"].long()
        total = (mean.long() - constants["mean_zero"].long()) * of_mean + codes.long() * of_noise
        mixed = constants["weight_zero"].long() + round_shift(total, constants["mix_shift"])
        return {"weight": mixed.clamp(*self.limits).to(torch.int8)}

    def _bias(self, constants: Constants, seed: int, draw: int) -> Tensor:
        bias = constants["bias"]
        if self.bias_site is None:
            return bias
        draws = torch.tensor([draw], device=bias.device)
        codes = epsilon_codes(seed, self.bias_site, draws, tuple(bias.shape), self.noise_bits)[0].long()
        spread = rescale(
            constants["bias_sigma"].long() * codes,
            constants["bias_noise_multiplier"],
            constants["bias_noise_shift"],
        )
        return (bias.long() + spread).to(torch.int32)


def clamp_constants(bits: int = MOST_BITS) -> tuple[Constant, Constant]:
    """``low`` and ``high`` of an op that clamps its output codes: a byte each, or as wide as the output."""
    width = max(bits, MOST_BITS)
    return Constant("low", (1,), width, False), Constant("high", (1,), width, False)


def _scaling(multiplier: str, shift: str, shape: tuple[int, ...]) -> list[Constant]:
    return [Constant(multiplier, shape, 32, True), Constant(shift, shape, SHIFT_BITS, False)]
