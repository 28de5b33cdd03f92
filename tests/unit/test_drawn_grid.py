"""The grid of drawn weights. The oracle enumerates the integer codes over all words of the table of ε."""

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes import noise
from qbayes.integer.arithmetic.epsilon_table import epsilon_scale, epsilon_table
from qbayes.posterior.sites import Site, place_sites
from qbayes.quant.layers.drawn_grid import candidates_for_draws, errors_of_draws, noise_table, scale_for_draws
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.network import QuantNetwork
from qbayes.quant.observers import QUANTIZERS
from qbayes.quant.prepare import quant_network

ROWS, WEIGHTS = 3, 16


def inverse_softplus(sigma: Tensor) -> Tensor:
    return (sigma.double() + torch.log(-torch.expm1(-sigma.double()))).float()


def weights(share: float, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Means, deviations of that share of a mean's size, and deviations as codes of so many bits have them."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(ROWS, WEIGHTS, generator=generator)
    sigma = share * (0.5 + torch.rand(ROWS, WEIGHTS, generator=generator))
    unit = sigma.amax(1, keepdim=True) / (2**bits - 1)
    return mean, sigma, (sigma / unit).round() * unit


def enumerated(
    mean: Tensor, sigma: Tensor, coded: Tensor, scale: Tensor, limit: int, bits: int
) -> tuple[Tensor, Tensor]:
    """Error and mean of the drawn weights as the integer program makes them; ε lies in a word's cell."""
    finer = 4
    words = (torch.arange(4096 * finer, dtype=torch.float64) + 0.5) / (4096 * finer)
    epsilon = torch.special.ndtri(words)
    codes = epsilon_table(bits).double().repeat_interleave(finer) * epsilon_scale(bits)
    step = scale.double()[:, None]
    means = (mean.double() / step).round().clamp(-limit, limit)
    around = (coded.double()[..., None] * codes / step[..., None]).round().clamp(-limit, limit)
    drawn = (means[..., None] + around).clamp(-limit, limit) * step[..., None]
    wanted = mean.double()[..., None] + sigma.double()[..., None] * epsilon
    apart = (drawn - wanted).square().mean(2).sum(1)
    together = (mean * (mean - drawn.mean(2))).sum(1).square() / mean.double().square().mean(1)
    return apart + together, drawn.mean(2)


# what is left out, that a rounding error depends on being clipped, is a twentieth of the error at most; with
# the few levels of a coarse ε an eighth.
@pytest.mark.parametrize(("noise_bits", "left_out"), [(8, 0.05), (4, 0.125)])
@pytest.mark.parametrize(("bits", "share"), [(8, 0.03), (8, 0.3), (6, 0.1), (6, 0.6), (5, 0.3), (4, 0.6)])
def test_the_expected_error_is_that_of_the_integer_codes(
    bits: int, share: float, noise_bits: int, left_out: float
) -> None:
    mean, sigma, coded = weights(share, bits)
    limit = 2 ** (bits - 1) - 1
    scales = candidates_for_draws(mean, sigma, mean.abs().amax(1) / limit, limit=limit)[:, ::6]
    got = errors_of_draws(mean, sigma, coded, scales, limit=limit, noise_bits=noise_bits)
    true = [enumerated(mean, sigma, coded, scale, limit, noise_bits)[0] for scale in scales.unbind(1)]
    torch.testing.assert_close(got, torch.stack(true, 1), rtol=left_out, atol=0)


def test_without_clipping_the_expected_error_is_exact() -> None:
    """Grids so wide that nothing is clipped, σ without a rounding error, ε nearly so: nothing is left out."""
    mean, sigma, _ = weights(0.2, 8)
    scales = torch.tensor([[0.05, 0.1, 0.2]]).expand(ROWS, 3)
    got = errors_of_draws(mean, sigma, sigma, scales, limit=127, noise_bits=8)
    true = [enumerated(mean, sigma, sigma, scale, 127, 8)[0] for scale in scales.unbind(1)]
    torch.testing.assert_close(got, torch.stack(true, 1), rtol=3e-3, atol=0)


def test_the_sums_over_the_table_begin_with_all_of_it() -> None:
    """Beyond code 0 lies half of ε without its zeros: its variance is 1, and its mean that of |ε| by half."""
    for bits in range(2, 9):
        found, table = noise_table(bits), epsilon_table(bits).double()
        assert float(found.share[0]) == pytest.approx(float((table > 0).double().mean()))
        assert float(found.second[0]) == pytest.approx(0.5)
        assert float(found.first[0]) == pytest.approx(float(table.abs().mean()) * epsilon_scale(bits) / 2)
        assert float(found.share[-1]) == float(found.first[-1]) == float(found.second[-1]) == 0
        assert float(found.rounding[0]) == 0
        assert 0.7 < found.together <= 1
    # noise of a few steps is rounded like any number: a twelfth.
    assert float(noise_table(8).rounding[64 * 3]) == pytest.approx(1 / 12, rel=0.02)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_the_scale_is_that_of_the_least_error_among_the_candidates(bits: int) -> None:
    mean, sigma, coded = weights(0.3, bits)
    limit = 2 ** (bits - 1) - 1
    plain = mean.abs().amax(1) / limit
    found = scale_for_draws(mean, sigma, coded, plain, limit=limit, noise_bits=8)
    scales = candidates_for_draws(mean, sigma, plain, limit=limit)
    true = torch.stack([enumerated(mean, sigma, coded, scale, limit, 8)[0] for scale in scales.unbind(1)], 1)
    got, _ = enumerated(mean, sigma, coded, found, limit, 8)
    # errors are known to a twentieth, and so is the least of them.
    assert bool((got <= 1.05 * true.amin(1)).all())
    errors = errors_of_draws(mean, sigma, coded, scales, limit=limit, noise_bits=8)
    torch.testing.assert_close(found, scales.gather(1, errors.argmin(1)[:, None])[:, 0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_the_scale_grows_with_the_weights(size: float) -> None:
    mean, sigma, coded = weights(0.3, 8)
    plain = mean.abs().amax(1) / 127
    one = scale_for_draws(mean, sigma, coded, plain, limit=127, noise_bits=8)
    other = scale_for_draws(mean * size, sigma * size, coded * size, plain * size, limit=127, noise_bits=8)
    torch.testing.assert_close(other / size, one, rtol=1e-5, atol=0)


def test_one_scale_for_all_rows_adds_their_errors() -> None:
    mean, sigma, coded = weights(0.3, 8)
    plain = mean.abs().max() / 127
    found = scale_for_draws(mean, sigma, coded, plain, limit=127, noise_bits=8)
    scales = candidates_for_draws(mean.reshape(1, -1), sigma.reshape(1, -1), plain[None], limit=127)
    errors = errors_of_draws(mean, sigma, coded, scales.expand(ROWS, -1), limit=127, noise_bits=8).sum(0)
    assert found.shape == ()
    torch.testing.assert_close(found, scales[0, errors.argmin()], rtol=1e-5, atol=0)


def test_inputs_like_the_means_ask_for_more_room() -> None:
    """What is clipped is lost all at once there: the end that is least in squares alone lies further in."""
    mean, sigma, coded = weights(0.3, 4)
    grid = torch.linspace(0.7, 1.6, 40)[None] * mean.abs().amax(1, keepdim=True) / 7
    ends = [
        errors_of_draws(mean, sigma, coded, grid, limit=7, noise_bits=8, together=share).argmin(1)
        for share in (0.0, 1.0)
    ]
    assert bool((ends[0] <= ends[1]).all())
    assert int(ends[0].sum()) < int(ends[1].sum())


def network(inputs: int, share: float, precision: qb.Precision) -> tuple[QuantNetwork, GaussianWeights]:
    """One calibrated layer of three channels whose deviations are that share of the largest mean."""
    torch.manual_seed(0)
    plain = nn.Linear(inputs, 3)
    made = quant_network(place_sites(plain, [Site(0, "gaussian", "", "replace")]), (inputs,), precision)
    layer = next(module for module in made.modules() if isinstance(module, QuantWeighted))
    held = layer.weights
    assert isinstance(held, GaussianWeights)
    with torch.no_grad():
        sigma = torch.full_like(held.weight_mean, max(share, 1e-30)) * held.weight_mean.abs().max()
        held.weight_rho.copy_(inverse_softplus(sigma))
    with made.calibrating():
        made(torch.randn(8, inputs))
    made.eval()
    return made, held


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("rule", ["lsq", "mse"])
def test_at_8_bits_the_mean_of_the_drawn_codes_is_that_of_the_weights(
    rule: str, granularity: Literal["channel", "tensor"]
) -> None:
    """Of the largest weights too, whose noise a grid that ends at max|μ| clips by 0.4 σ on one side."""
    precision = qb.Precision(weight_range=rule, granularity=granularity)
    _, held = network(16, 0.1, precision)
    assert int(held.grids) == 1
    mean, scale = held.weight_mean.detach(), held.quantizer.grid()[0].detach().expand(3)
    sigma = held.weight_sigma.detach()
    coded = held.sigma_codes() * held.sigma_quantizer.grid()[0].reshape(-1, 1)
    _, drawn = enumerated(mean, sigma, coded, scale, 127, 8)
    # half a step of rounding, and what is clipped behind 1½ σ.
    bound = 0.5 * scale[:, None] + 0.03 * sigma
    assert bool(((drawn - mean).abs() <= bound).all())
    ends = (mean.abs().amax(1) / 127).expand(3)
    _, before = enumerated(mean, sigma, coded, ends, 127, 8)
    assert not bool(((before - mean).abs() <= bound).all())


def test_draws_have_the_expected_error() -> None:
    """The codes that the network draws, against the float weights of the same words."""
    _, held = network(16, 0.1, qb.Precision())
    codes = held.draw_weights(3, torch.arange(4000))[0].double()
    scale = held.quantizer.grid()[0].detach()
    mean, sigma = held.weight_mean.detach(), held.weight_sigma.detach()
    epsilon = noise.gaussians(3, held.site, torch.arange(4000), tuple(mean.shape))
    wanted = mean.double() + sigma.double() * epsilon.double().reshape(codes.shape)
    got = (codes * scale.double()[:, None] - wanted).square().mean(0).sum(1)
    coded = held.sigma_codes() * held.sigma_quantizer.grid()[0].reshape(-1, 1)
    errors = errors_of_draws(mean, sigma, coded, scale[:, None], limit=127, noise_bits=8)[:, 0]
    torch.testing.assert_close(got, errors, rtol=0.05, atol=0)


def plain_scale(held: GaussianWeights) -> Tensor:
    low, high = QUANTIZERS["mse"](held.quantizer.bits, True, True).row_range(held.weight_mean.detach())
    return torch.maximum(-low, high) / held.limit


def test_a_layer_without_noise_has_the_plain_scale() -> None:
    _, held = network(16, 0.0, qb.Precision())
    torch.testing.assert_close(held.quantizer.grid()[0].detach(), plain_scale(held), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("bits", "share"), [(8, 1e-4), (4, 0.05), (2, 0.1)])
def test_where_the_noise_has_a_grid_of_its_own_the_means_err_least(bits: int, share: float) -> None:
    """Nothing of the noise is clipped with them: they count as if they had none."""
    _, held = network(16, share, qb.Precision(weight=bits))
    assert int(held.grids) == 2
    mean, none, plain = held.weight_mean.detach(), torch.zeros(3, 16), plain_scale(held)
    scales = candidates_for_draws(mean, none, plain, limit=held.limit)
    true = [enumerated(mean, none, none, scale, held.limit, 8)[0] for scale in scales.unbind(1)]
    got, _ = enumerated(mean, none, none, held.quantizer.grid()[0].detach(), held.limit, 8)
    torch.testing.assert_close(got, torch.stack(true, 1).amin(1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("rule", ["minmax", "percentile", "ema"])
def test_other_rules_end_where_they_say(rule: str) -> None:
    _, held = network(16, 0.1, qb.Precision(weight_range=rule))
    low, high = QUANTIZERS[rule](8, True, True).row_range(held.weight_mean.detach())
    wanted = torch.maximum(-low, high) / 127
    torch.testing.assert_close(held.quantizer.grid()[0].detach(), wanted, rtol=1e-6, atol=0)


def test_the_first_step_of_a_training_of_ones_own_starts_there_too() -> None:
    calibrated, held = network(16, 0.1, qb.Precision())
    wanted = held.quantizer.grid()[0].detach().clone()
    calibrated.train()
    for _, quantizer in calibrated.quantizers():
        quantizer.reset()
    calibrated(torch.randn(8, 16))
    assert torch.equal(held.quantizer.grid()[0].detach(), wanted)
