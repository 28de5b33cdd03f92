"""Gaussian weights on integer grids: ``w = μ + σ ε`` from codes of μ, σ and ε.

    n = clamp(round(σ_q e M_n), ±(2^(b−1) − 1)),     M_n = ± S_σ S_ε / S_n

One grid: ``w_q = clamp(μ_q + n)`` with ``S_n = S_μ``. On a coarse grid the rounding swallows the noise (all
of it for σ < S_μ / 8) or inflates it, and a deterministic network would pass for a Bayesian one. There the
noise has an accumulator of its own, ``Σ x μ_q`` and ``Σ x n`` with two scales: ``S_n`` is a near-optimal step
for the channel's σ, and the unit in which n is counted behind the accumulator is such that its variance is
the wanted one, ``S_n'² Σ Var(n) = Σ σ²``. The sign is that of a folded BatchNorm.

On one grid the clamp would take the noise of the largest weights on one side, so it ends where the drawn
weights err least (``qbayes.quant.layers.drawn_grid``).

The paper's scheme (``gaussian="single"``) quantises σ·ε and μ + σ·ε with grids of their own.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes import noise
from qbayes.integer.arithmetic.epsilon_table import (
    GAUSSIAN_STEPS,
    epsilon_codes,
    epsilon_scale,
    epsilon_table,
)
from qbayes.integer.arithmetic.fixed_point import fixed_point, real, shared_shifts
from qbayes.integer.arithmetic.grid import dequantize, per_channel
from qbayes.integer.ops import Weights
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.reparametrize.draw import reparametrise, square_values
from qbayes.quant.layers.base import Coded, Constants, broadcast_vector, multiplier_constants
from qbayes.quant.layers.drawn_grid import scale_for_draws
from qbayes.quant.layers.weighted import (
    Geometry,
    accumulate,
    apply_weights,
    bias_codes,
    in_steps,
    raise_scale,
)
from qbayes.quant.observers.mse import Mse
from qbayes.quant.quantizer import Quantizer

# one grid keeps the noise if its variance ratio stays this close to 1.
_KEPT = (0.9, 1.1)
# … and if all channels but a few do too: an average can hide those that lost all of it.
_KEPT_BY_CHANNEL = (0.8, 1.25)
_MOST_LOST = 0.05
# weights from which variances are computed: this many of a channel, fewer where there are many channels.
_SAMPLE = 512
_SAMPLE_IN_ALL = 1 << 16
_LEAST_SAMPLE = 32
_LEAST_SIGMA = 1e-30
# weights of smaller deviations are points: those of nothing were made 1e-30.
_NO_NOISE = 1e-25
_BIAS_SIGMA_LEVELS = 255.0
# no entry of a table of ε is larger.
_MOST_SIGMAS = 5.0


class GaussianWeights(GaussianLayer):
    """The Gaussian of one layer, folded, with the quantisers of its mean and deviation.

    ``draw_weights`` gives codes: of the weights on one grid, of the noise alone on two.
    """

    def __init__(
        self,
        layer: GaussianLayer,
        gain: Tensor | None,
        bias: Tensor | None,
        quantizer: Quantizer,
        sigma_quantizer: Quantizer,
        noise_bits: int,
        geometry: Geometry | None,
        train_sigma: bool,
    ) -> None:
        nn.Module.__init__(self)
        self.site, self.bias_site, self.first_sigma = layer.site, layer.bias_site, layer.first_sigma
        self.described = layer.described
        self.geometry, self.noise_bits = geometry, noise_bits
        channels = len(layer.weight_mean)
        factor = torch.ones(channels).to(layer.weight_mean) if gain is None else gain.to(layer.weight_mean)
        by_channel = broadcast_vector(factor, layer.weight_mean.ndim, 0)
        self.weight_mean = nn.Parameter(layer.weight_mean.detach() * by_channel)
        self.weight_rho = nn.Parameter(
            rho_of(layer.weight_sigma.detach() * by_channel.abs()), requires_grad=train_sigma
        )
        self.bias_mean = None if bias is None else nn.Parameter(bias.detach().clone())
        self.bias_rho = None
        if layer.bias_rho is not None:
            spread = F.softplus(layer.bias_rho.detach()) * factor.abs()
            self.bias_rho = nn.Parameter(rho_of(spread), requires_grad=train_sigma)
        self.quantizer, self.sigma_quantizer = quantizer, sigma_quantizer
        # members of one ensemble become one program: where one needs two grids, all have them.
        self.always_two = False
        self.register_buffer("sign", torch.where(factor < 0, -1.0, 1.0))
        self.register_buffer("grids", torch.ones((), dtype=torch.int64))
        self.register_buffer("noise_step", torch.ones(channels))
        self.register_buffer("noise_unit", torch.ones(channels))

    sign: Tensor
    grids: Tensor
    noise_step: Tensor
    noise_unit: Tensor

    @property
    def channel_axis(self) -> int:
        return -1 if self.geometry is None else 1

    @property
    def largest_scale(self) -> Tensor:
        """The largest scale that multiplies an accumulator."""
        return torch.maximum(self.quantizer.grid()[0].max(), self.noise_unit.max())

    @property
    def limit(self) -> int:
        return (1 << (self.quantizer.bits - 1)) - 1

    def forward(self, x: Tensor) -> Tensor:
        return self.simulate(x)

    def simulate(self, x: Tensor) -> Tensor:
        """Local reparametrisation with fake-quantised mean and deviation; the mean alone in evaluation."""
        if self.training and self.quantizer.observing and not self.quantizer.started:
            self._start()
        weight = self.quantizer(self.weight_mean, factor=True)
        mean = apply_weights(self.geometry, x, weight, self.bias_mean)
        sigma = self.sigma_quantizer(self.weight_sigma)
        spread = None if self.bias_rho is None else F.softplus(self.bias_rho) ** 2
        if not self.training:
            return mean
        variance = apply_weights(self.geometry, square_values(x), sigma * sigma, spread)
        # the sign of a folded BatchNorm: with the ε of the float layer this is the float layer's draw.
        sign = broadcast_vector(self.sign, mean.ndim, self.channel_axis).to(mean.dtype)
        epsilon = self.training_noise(mean) * sign
        return reparametrise(mean, variance, epsilon)

    @torch.no_grad()
    def scale_noise(self, factors: Tensor, axis: int) -> None:
        """Multiply the deviations by positive ``factors`` along ``axis``, with axis 0 the bias's too."""
        self.weight_rho.copy_(
            rho_of(self.weight_sigma * broadcast_vector(factors, self.weight_rho.ndim, axis))
        )
        if axis == 0 and self.bias_rho is not None:
            self.bias_rho.copy_(rho_of(F.softplus(self.bias_rho) * factors))

    def calibrate(self, name: str) -> None:
        """Set the ranges from the means and deviations as they are."""
        self.quantizer.calibrate(self.weight_mean, f"the weights' means of '{name}'")
        self.sigma_quantizer.calibrate(self.weight_sigma, f"the weights' deviations of '{name}'")
        self.make_room_for_noise()

    def _start(self) -> None:
        """As ``calibrate``, in the first step of a training that nothing calibrated."""
        self.quantizer.observe(self.weight_mean)
        self.sigma_quantizer.observe(self.weight_sigma)
        self.make_room_for_noise()

    @torch.no_grad()
    def make_room_for_noise(self) -> None:
        """End the grid where the drawn weights err least, and not where their means do one by one.

        That is for rules which look for the least error; the ends of others are what they say.
        """
        if not isinstance(self.quantizer.rule, Mse) or self.always_two or not bool(self.quantizer.ready):
            return
        scale = self.quantizer.scale
        plain = scale.detach().clone()
        coded = dequantize(self.sigma_codes(), *self._along_rows(self.sigma_quantizer))
        scale.copy_(self._scale_for_draws(plain, self.weight_sigma.detach(), coded))
        if not self.keeps_noise():
            # the noise gets a grid of its own, and is not clipped with the mean.
            none = torch.zeros_like(coded)
            scale.copy_(self._scale_for_draws(plain, none, none))

    def keeps_noise(self) -> bool:
        """Whether the grid of the means, as it is, keeps the noise too."""
        step, _ = self.quantizer.grid()
        return self._keeps_noise(self._at_least(step.expand(len(self.weight_mean))))

    def _scale_for_draws(self, plain: Tensor, sigma: Tensor, coded: Tensor) -> Tensor:
        """The scale for weights of these deviations; ``plain`` is that of the means, and of points."""
        mean, sigma, coded = (part.detach().flatten(1) for part in (self.weight_mean, sigma, coded))
        found = scale_for_draws(mean, sigma, coded, plain, limit=self.limit, noise_bits=self.noise_bits)
        loudest = self.weight_sigma.detach().flatten(1).amax(1)
        return torch.where((loudest if plain.ndim else loudest.max()) > _NO_NOISE, found, plain)

    def _along_rows(self, quantizer: Quantizer) -> tuple[Tensor, Tensor]:
        scale, zero = (per_channel(part, self.weight_mean.ndim, 0) for part in quantizer.grid())
        return scale, zero

    @torch.no_grad()
    def settle(self, x_scale: Tensor) -> None:
        """Choose one grid or two, and the noise's step and unit, from the weights as they are now."""
        self._make_room(self.quantizer, x_scale)
        step, _ = self.quantizer.grid()
        one_grid = self._at_least(step.expand(len(self.weight_mean)))
        sigma = self.weight_sigma.flatten(1).double()
        if not self.always_two and self.keeps_noise():
            self.grids.fill_(1)
            self.noise_step.copy_(one_grid)
            self.noise_unit.copy_(one_grid)
            return
        wanted = sigma.square().mean(1)
        fine = self._at_least((GAUSSIAN_STEPS[self.quantizer.bits] * wanted.sqrt()).float())
        variance = self._variance(fine, with_mean=False)
        # S_n' with S_n'² Var(n) = σ² on average over the channel; a channel without noise keeps its step.
        unit = torch.where(variance > 0, (self._ideal_scale(sigma) / variance).sqrt(), fine.double())
        self.grids.fill_(2)
        self.noise_step.copy_(fine)
        self.noise_unit.copy_(unit.float())

    def _make_room(self, quantizer: Quantizer, x_scale: Tensor) -> None:
        """Raise the weights' scale where the bias, with its noise, would not fit an int32."""
        if self.bias_mean is not None:
            noise_of_bias = 0.0 if self.bias_rho is None else _MOST_SIGMAS * F.softplus(self.bias_rho)
            raise_scale(quantizer, self.bias_mean.abs() + noise_of_bias, x_scale)

    def _at_least(self, step: Tensor) -> Tensor:
        """Steps so fine that one of σ_q e is 2^20 of them tell nothing more, and M_n would leave 31 bits."""
        sigma_scale, _ = self.sigma_quantizer.grid()
        return torch.maximum(step, sigma_scale * (epsilon_scale(self.noise_bits) * 2.0**-20))

    def _ideal_scale(self, sigma: Tensor) -> Tensor:
        return _spread_sample(sigma).square().mean(1)

    def _keeps_noise(self, step: Tensor) -> bool:
        """Whether one grid keeps the noise: ``Σ S² Var(code) / Σ σ²`` near 1, by layer and by channel."""
        wanted = self._ideal_scale(self.weight_sigma.flatten(1).double()).clamp_min(_LEAST_SIGMA)
        got = step.double().square() * self._variance(step, with_mean=True)
        low, high = _KEPT_BY_CHANNEL
        lost = ((got < low * wanted) | (got > high * wanted)).double().mean()
        ratio = float(got.sum() / wanted.sum())
        return _KEPT[0] <= ratio <= _KEPT[1] and float(lost) <= _MOST_LOST

    def _variance(self, step: Tensor, with_mean: bool) -> Tensor:
        """Each channel's mean Var(code), exactly over the table of ε."""
        sigma = _spread_sample(self.sigma_codes().flatten(1).double())
        mean = _spread_sample(self.mean_codes().flatten(1).double()) if with_mean else torch.zeros_like(sigma)
        multiplier = self._noise_multiplier(step)[:, None]
        levels, counts = torch.unique(epsilon_table(self.noise_bits), return_counts=True)
        first, second = torch.zeros_like(sigma), torch.zeros_like(sigma)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
            code = (sigma * (level * multiplier)).round().clamp(-self.limit, self.limit)
            code = (mean + code).clamp(-self.limit, self.limit)
            first += count * code
            second += count * code * code
        total = float(counts.sum())
        return (second / total - (first / total).square()).mean(1)

    def mean_codes(self) -> Tensor:
        return self.quantizer.codes(self.weight_mean)

    def sigma_codes(self) -> Tensor:
        return self.sigma_quantizer.codes(self.weight_sigma)

    def _noise_multiplier(self, step: Tensor) -> Tensor:
        """``M_n`` of each channel in the form that integers hold."""
        return real(*fixed_point(self._real_noise_multiplier(step)))

    def _real_noise_multiplier(self, step: Tensor) -> Tensor:
        sigma_scale, _ = self.sigma_quantizer.grid()
        return self.sign.double() * sigma_scale.double() * epsilon_scale(self.noise_bits) / step.double()

    def draw_weights(self, seed: int, draws: Tensor) -> dict[int, Tensor]:
        shape = tuple(self.weight_mean.shape)
        epsilon = epsilon_codes(seed, self.site, draws, shape, self.noise_bits)
        drawn = {self.site: self._codes(epsilon)}
        if self.bias_site is not None and self.bias_mean is not None:
            codes = epsilon_codes(seed, self.bias_site, draws, tuple(self.bias_mean.shape), self.noise_bits)
            drawn[self.bias_site] = codes.float()
        return drawn

    def _codes(self, epsilon: Tensor) -> Tensor:
        """Codes of the weights (one grid) or of the noise (two), ``(draws, *weight)``."""
        multiplier = broadcast_vector(self._noise_multiplier(self.noise_step), epsilon.ndim, 1)
        codes = (self.sigma_codes().double() * epsilon * multiplier).round().clamp(-self.limit, self.limit)
        if int(self.grids) == 1:
            codes = (codes + self.mean_codes()).clamp(-self.limit, self.limit)
        return codes.float()

    def constants(self, x: Coded, out_scale: Tensor) -> Constants:
        scale, _ = self.quantizer.grid()
        codes = self.mean_codes()
        found = {"mean": codes.to(torch.int8), "sigma": self.sigma_codes().to(torch.uint8)}
        noise_code, noise_shift = fixed_point(self._real_noise_multiplier(self.noise_step))
        found |= {"noise_multiplier": noise_code, "noise_shift": noise_shift}
        found["bias"] = bias_codes(self.bias_mean, x.scale, scale, len(codes), codes.device)
        main = x.scale.double() * scale.double().reshape(-1) / out_scale.double()
        if int(self.grids) == 2:
            second = x.scale.double() * self.noise_unit.double() / out_scale.double()
            both, shift = shared_shifts(torch.stack([main.expand_as(second), second]))
            found |= {"multiplier": both[0], "second_multiplier": both[1], "shift": shift}
        else:
            found |= multiplier_constants(main)
        if self.bias_rho is not None:
            found |= self._bias_noise(x.scale, scale)
        return found

    def _bias_noise(self, x_scale: Tensor, scale: Tensor) -> Constants:
        """``b = b_q + round(σ_b,q e M_b)`` at scale S_x S_w."""
        assert self.bias_rho is not None
        sigma = F.softplus(self.bias_rho).double()
        unit = (sigma.max() / _BIAS_SIGMA_LEVELS).clamp_min(_LEAST_SIGMA)
        factor = self.sign.double() * unit * epsilon_scale(self.noise_bits)
        code, shift = fixed_point(factor / (x_scale.double() * scale.double()))
        codes = (sigma / unit).round().to(torch.uint8)
        return {"bias_sigma": codes, "bias_noise_multiplier": code, "bias_noise_shift": shift}

    def lower(self) -> Weights:
        """How the op holds the weights."""
        return Weights(
            "gaussian",
            self.quantizer.bits,
            affine=not self.quantizer.symmetric,
            per_channel=self.quantizer.channels is not None,
            sigma_bits=self.sigma_quantizer.bits,
            noise_bits=self.noise_bits,
            site=self.site,
            grids=int(self.grids),
            bias_site=self.bias_site,
        )

    def deviation(self) -> float | None:
        """The root mean square of σ."""
        return float(self.weight_sigma.detach().double().square().mean().sqrt())

    def steps(self, x: Coded, constants: Constants) -> Tensor:
        stream, axis = noise.current(), self.channel_axis
        mean = constants["mean"].float()
        drawn = None if stream is None else stream.weights[self.site]
        single = drawn is not None and int(self.grids) == 1
        total = accumulate(self.geometry, x, drawn if single and drawn is not None else mean, 127, None)
        total = total + broadcast_vector(self.bias_of_draw(constants), total.ndim, axis)
        sums = [(total, constants["multiplier"])]
        if drawn is not None and int(self.grids) == 2:
            spread = accumulate(self.geometry, x, drawn, 127, None)
            sums.append((spread, constants["second_multiplier"]))
        return in_steps(x, sums, constants["shift"], axis)

    def bias_of_draw(self, constants: Constants) -> Tensor:
        """The integer bias with its own noise, where it has one."""
        stream, bias = noise.current(), constants["bias"].double()
        if stream is None or self.bias_site is None:
            return bias
        multiplier = real(constants["bias_noise_multiplier"], constants["bias_noise_shift"])
        code = stream.weights[self.bias_site].double() * constants["bias_sigma"].double()
        return bias + (code * multiplier).round()


def rho_of(sigma: Tensor) -> Tensor:
    """``ρ`` with softplus(ρ) = σ; a deviation of nothing becomes one of 1e-30."""
    sigma = sigma.double().clamp_min(_LEAST_SIGMA)
    return (sigma + torch.log(-torch.expm1(-sigma))).float()


def _spread_sample(by_channel: Tensor) -> Tensor:
    """Some weights of each channel, evenly spread."""
    channels, weights = by_channel.shape
    kept = min(_SAMPLE, max(_LEAST_SAMPLE, _SAMPLE_IN_ALL // channels))
    return by_channel[:, :: -(-weights // kept)]
