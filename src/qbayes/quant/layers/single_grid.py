"""The paper's Gaussian weights: quantisers on μ, on σ, on σ·ε and on μ + σ·ε, each per tensor.

    n = clamp(round(σ_q e S_σ S_ε / S_n)),   w_q = clamp(Z_w + round(((μ_q − Z_μ) S_μ + n S_n) / S_w))

It is here to show what it does: with few bits the grid of w swallows the noise, and nothing says so.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes import noise
from qbayes.integer.arithmetic.epsilon_table import epsilon_scale
from qbayes.integer.arithmetic.fixed_point import fixed_point, real, shared_shifts
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.quant.layers.base import Coded, Constants, broadcast_vector, multiplier_constants
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.layers.weighted import Geometry, accumulate, apply_weights, bias_codes, in_steps
from qbayes.quant.quantizer import Quantizer

# S_μ / S_w and S_n / S_w have this many bits before the point at most.
_LARGEST_MULTIPLIER = float(1 << 28)


class SingleGridWeights(GaussianWeights):
    """Gaussian weights that are rounded to one grid, the noise included."""

    def __init__(
        self,
        layer: GaussianLayer,
        gain: Tensor | None,
        bias: Tensor | None,
        quantizer: Quantizer,
        sigma_quantizer: Quantizer,
        noise_quantizer: Quantizer,
        sample_quantizer: Quantizer,
        noise_bits: int,
        geometry: Geometry | None,
    ) -> None:
        super().__init__(
            layer, gain, bias, quantizer, sigma_quantizer, noise_bits, geometry, train_sigma=True
        )
        self.noise_quantizer, self.sample_quantizer = noise_quantizer, sample_quantizer
        self.grids.fill_(0)

    @property
    def largest_scale(self) -> Tensor:
        return self.sample_quantizer.grid()[0]

    def simulate(self, x: Tensor) -> Tensor:
        """One draw of the weights for the batch, through all four quantisers; in evaluation the mean."""
        if not self.training:
            weight = self.sample_quantizer(self.quantizer(self.weight_mean))
            return apply_weights(self.geometry, x, weight, self.bias_mean)
        bits, unit = self.noise_bits, epsilon_scale(self.noise_bits)
        limit = (1 << (bits - 1)) - 1
        epsilon = (self.training_noise(self.weight_mean) / unit).round().clamp(-limit, limit) * unit
        sign = broadcast_vector(self.sign, epsilon.ndim, 0)
        noise_part = self.noise_quantizer(self.sigma_quantizer(self.weight_sigma) * epsilon * sign)
        weight = self.sample_quantizer(self.quantizer(self.weight_mean) + noise_part)
        bias = self.bias_mean
        if bias is not None and self.bias_rho is not None:
            bias = bias + F.softplus(self.bias_rho) * self.training_noise(bias)
        return apply_weights(self.geometry, x, weight, bias)

    def make_room_for_noise(self) -> None:
        """Nothing: the ranges of noise and weight are those of what was drawn."""

    @torch.no_grad()
    def settle(self, x_scale: Tensor) -> None:
        self._make_room(self.sample_quantizer, x_scale)
        noise_scale, sample_scale = self.noise_quantizer.scale, self.sample_quantizer.scale
        noise_scale.copy_(self._at_least(self.noise_quantizer.grid()[0]).max())
        step, _ = self.noise_quantizer.grid()
        largest = torch.maximum(self.quantizer.grid()[0], step) / _LARGEST_MULTIPLIER
        sample_scale.copy_(torch.maximum(self.sample_quantizer.grid()[0], largest))
        self.noise_step.copy_(step.expand_as(self.noise_step))
        self.noise_unit.copy_(self.noise_step)

    def _mix(self) -> tuple[Tensor, Tensor]:
        """``S_μ / S_w`` and ``S_n / S_w`` with one shift, as integers."""
        scales = [q.grid()[0].double() for q in (self.quantizer, self.noise_quantizer, self.sample_quantizer)]
        return shared_shifts(torch.stack([scales[0] / scales[2], scales[1] / scales[2]]))

    def _codes(self, epsilon: Tensor) -> Tensor:
        """Codes of the weights, centred on their zero-point, ``(draws, *weight)``."""
        # n has all codes of its width, as the weights have; only its zero-point is 0.
        low, high = self.sample_quantizer.low, self.sample_quantizer.high
        multiplier = broadcast_vector(self._noise_multiplier(self.noise_step), epsilon.ndim, 1)
        part = (self.sigma_codes().double() * epsilon * multiplier).round().clamp(low, high)
        mean_factor, noise_factor = real(*self._mix()).unbind()
        _, mean_zero = self.quantizer.grid()
        _, zero = self.sample_quantizer.grid()
        mixed = (self.mean_codes().double() - mean_zero) * mean_factor + part * noise_factor
        codes = (zero + mixed.round()).clamp(low, high)
        return (codes - zero).float()

    def constants(self, x: Coded, out_scale: Tensor) -> Constants:
        scale, zero = self.sample_quantizer.grid()
        noise_code, noise_shift = fixed_point(self._real_noise_multiplier(self.noise_step))
        mix, mix_shift = self._mix()
        found = {
            "mean": self.mean_codes().to(torch.int8),
            "sigma": self.sigma_codes().to(torch.uint8),
            "noise_multiplier": noise_code,
            "noise_shift": noise_shift,
            "mean_zero": self.quantizer.grid()[1].reshape(-1).to(torch.int8),
            "weight_zero": zero.reshape(-1).to(torch.int8),
            "mix": mix,
            "mix_shift": mix_shift.reshape(-1),
            "bias": bias_codes(self.bias_mean, x.scale, scale, len(self.weight_mean), zero.device),
        }
        found |= multiplier_constants(x.scale.double() * scale.double() / out_scale.double())
        return found | (self._bias_noise(x.scale, scale) if self.bias_rho is not None else {})

    def steps(self, x: Coded, constants: Constants) -> Tensor:
        stream = noise.current()
        if stream is None:
            draws = torch.zeros(1, dtype=torch.int8, device=self.weight_mean.device)
            weight = self._codes(draws.expand(1, *self.weight_mean.shape))[0]
        else:
            weight = stream.weights[self.site]
        total = accumulate(self.geometry, x, weight, 255, None)
        total = total + broadcast_vector(self.bias_of_draw(constants), total.ndim, self.channel_axis)
        return in_steps(x, [(total, constants["multiplier"])], constants["shift"], self.channel_axis)
