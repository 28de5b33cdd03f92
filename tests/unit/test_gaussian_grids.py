"""One grid for mean and noise, or two: which is chosen, and that no noise is lost or overflows either way.

The oracle is the drawn codes themselves: their variance, channel by channel, beside the wanted σ².
"""

import copy

import pytest
import torch
from torch import Tensor, nn

import qbayes as qb
from qbayes.integer.arithmetic.epsilon_table import epsilon_table
from qbayes.posterior.sites import Site, place_sites
from qbayes.quant.layers.base import Coded
from qbayes.quant.layers.elementwise import QuantInput
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.prepare import quant_network

CHANNELS, INPUTS = 40, 64
PRECISION = qb.Precision(weight=6, weight_range="minmax", activation_range="minmax")
STEP = 1 / 31  # of a channel whose largest weight is 1, at 6 bits


def inverse_softplus(sigma: Tensor) -> Tensor:
    return (sigma.double() + torch.log(-torch.expm1(-sigma.double()))).float()


def settled(in_steps: Tensor) -> GaussianWeights:
    """Weights on a grid of ``STEP`` for every channel, with a σ of so many steps in each."""
    torch.manual_seed(0)
    plain = nn.Linear(INPUTS, CHANNELS, bias=False)
    made = quant_network(place_sites(plain, [Site(0, "gaussian", "", "replace")]), (INPUTS,), PRECISION)
    weights = weights_of(made)
    with torch.no_grad():
        mean = 0.6 * (2 * torch.rand(CHANNELS, INPUTS) - 1)
        mean[:, 0] = 1.0
        weights.weight_mean.copy_(mean)
        weights.weight_rho.copy_(inverse_softplus(STEP * in_steps)[:, None].expand(CHANNELS, INPUTS))
    with made.calibrating():
        made(torch.randn(8, INPUTS))
    made.eval()
    return weights


def weights_of(network: nn.Module) -> GaussianWeights:
    layer = next(module for module in network.modules() if isinstance(module, QuantWeighted))
    assert isinstance(layer.weights, GaussianWeights)
    return layer.weights


def kept(weights: GaussianWeights, in_steps: Tensor) -> Tensor:
    """``Var(w) / σ²`` of each channel over drawn weights; the one at the clamp is left out."""
    drawn = weights.draw_weights(7, torch.arange(300))[0][..., 1:].double()
    worth = weights.noise_unit.double() if int(weights.grids) == 2 else weights.quantizer.grid()[0].double()
    return drawn.var(0).mean(1) * worth**2 / (STEP * in_steps.double()) ** 2


# So many of 40 channels have another σ than the 1.5 steps of the rest. On one grid 0.1 steps round to
# nothing, and of 0.5 steps a third rounds to a whole one, which is 1.3 times their variance.
@pytest.mark.parametrize(
    ("others", "steps", "grids"),
    [
        (0, 1.0, 1),
        (2, 0.1, 1),  # one in twenty may be lost
        (3, 0.1, 2),
        (8, 0.1, 2),  # the layer as a whole has kept 1.03 of its noise
        (2, 0.5, 1),
        (3, 0.5, 2),
        (40, 0.1, 2),
        (40, 0.8, 2),  # every channel is within its bounds, but the layer has 1.13 of its noise
        (40, 0.265, 2),  # … or 0.84
        (40, 1.0, 1),
    ],
)
def test_no_more_than_a_few_channels_lose_their_noise(others: int, steps: float, grids: int) -> None:
    in_steps = torch.full((CHANNELS,), 1.5)
    in_steps[:others] = steps
    weights = settled(in_steps)
    assert int(weights.grids) == grids
    ratios = kept(weights, in_steps)
    wrong = (ratios < 0.75) | (ratios > 1.28)
    assert int(wrong.sum()) <= CHANNELS // 20
    total = float((ratios * in_steps**2).sum() / (in_steps**2).sum())
    assert 0.9 <= total <= 1.12


def test_where_one_member_needs_two_grids_all_have_them() -> None:
    """Members become one program: their ops have the same constants."""
    weights = settled(torch.full((CHANNELS,), 1.5))
    other = copy.deepcopy(weights)
    other.always_two = True
    other.settle(torch.tensor(0.01))
    assert (int(weights.grids), int(other.grids)) == (1, 2)
    ratios = kept(other, torch.full((CHANNELS,), 1.5))
    assert float((ratios - 1).abs().max()) < 0.15


@pytest.mark.parametrize("sigma", [1e-9, 1e-4, 1.0, 1e4])
def test_the_noise_has_a_multiplier_of_31_bits_on_any_grid(sigma: float) -> None:
    """Means of nothing beside the deviations: their grid is too fine for the noise to be counted on it."""
    plain = nn.Linear(3, 2)
    made = quant_network(place_sites(plain, [Site(0, "gaussian", "", "replace")]), (3,), PRECISION)
    weights = weights_of(made)
    with torch.no_grad():
        weights.weight_mean.fill_(1e-16)
        weights.weight_rho.copy_(inverse_softplus(torch.full((2, 3), sigma)))
    with made.calibrating():
        made(torch.randn(8, 3))
    made.eval()
    x = Coded(torch.zeros(1, 3), torch.tensor(0.01), torch.tensor(0.0), 8)
    constants = weights.constants(x, torch.tensor(1.0))
    assert int(constants["noise_multiplier"].long().abs().max()) < 1 << 31
    assert int(weights.sigma_codes().max()) > 0


@pytest.mark.parametrize("bias", [0.0, -1.0, 1.0])
@pytest.mark.parametrize("sigma", [0.2, 3.0])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_bias_with_its_noise_fits_int32(preset: str, sigma: float, bias: float) -> None:
    """Weights of next to nothing make the bias, at the scale S_x S_w, as large as it can be: up to 2^30."""
    precision = qb.Precision.preset(preset, weight=8, activation=8)
    sites = [Site(0, "gaussian", "", "replace", bias_number=1)]
    made = quant_network(place_sites(nn.Linear(3, 2), sites), (3,), precision)
    weights = weights_of(made)
    assert weights.bias_mean is not None
    assert weights.bias_rho is not None
    with torch.no_grad():
        weights.weight_mean.mul_(1e-12)
        weights.weight_rho.fill_(-30.0)
        weights.bias_mean.fill_(bias)
        weights.bias_rho.copy_(inverse_softplus(torch.full((2,), sigma)))
    with made.calibrating():
        made(torch.randn(8, 3))
    made.eval()
    first = made.layer(made.steps[0].name)
    assert isinstance(first, QuantInput)
    x = first.compute(torch.zeros(1, 3))
    found = {name: code.double() for name, code in weights.constants(x, torch.tensor(1.0)).items()}
    epsilon = epsilon_table(weights.noise_bits).unique().double()[:, None]
    noise = found["bias_sigma"] * epsilon * found["bias_noise_multiplier"] * 2.0 ** -found["bias_noise_shift"]
    largest = (found["bias"] + noise).abs().max()
    assert largest <= 1.001 * 2**30
    # no more room is made than five deviations ask for.
    assert largest >= 0.5 * 2**30
