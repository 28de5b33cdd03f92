"""From the fake-quantised network to integers: odd networks, and the same predictions on both sides."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from fine_tuned import tuning
from qbayes import noise
from qbayes.errors import BadInput
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import Site, gaussian_layers, place_sites
from qbayes.quant.network import QuantNetwork

ROWS = 48


class Of(nn.Module):
    """A forward pass around some layers."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def norm(gain: list[float], kind: type[nn.Module] = nn.BatchNorm1d) -> nn.Module:
    made = kind(len(gain))
    made.weight.data = torch.tensor(gain)
    made.bias.data = torch.linspace(-1, 1, len(gain))
    made.running_mean = torch.linspace(0.5, -0.5, len(gain))
    made.running_var = torch.linspace(0.5, 2, len(gain))
    return made


def filled(layer: nn.Module, weight: float, bias: float | None = None) -> nn.Module:
    layer.weight.data.fill_(weight)
    if bias is not None:
        layer.bias.data.fill_(bias)
    return layer


GAINS = [1.0, -2.0, 0.0, 0.5]
FLAT: dict[str, Callable[[], nn.Module]] = {
    "an identity head": lambda: nn.Sequential(nn.Linear(4, 4), nn.Identity()),
    "x + x": lambda: Of(lambda net, x: x + x),
    "x - x": lambda: Of(lambda net, x: net.fc(x - x), fc=nn.Linear(4, 4)),
    "x * x": lambda: Of(lambda net, x: x * x),
    "a head that moves": lambda: Of(
        lambda net, x: net.fc(x).view(-1, 2, 2).transpose(1, 2).flatten(1), fc=nn.Linear(4, 4)
    ),
    "a slice as the head": lambda: Of(lambda net, x: net.fc(x)[:, 1:5], fc=nn.Linear(4, 8)),
    "gains of all signs": lambda: nn.Sequential(nn.Linear(4, 4), norm(GAINS), nn.ReLU(), nn.Linear(4, 4)),
    "a norm first": lambda: nn.Sequential(norm(GAINS), nn.Linear(4, 4)),
    "two norms": lambda: nn.Sequential(nn.Linear(4, 4), norm(GAINS), norm(GAINS[::-1])),
    "one layer, two norms": lambda: Of(
        lambda net, x: net.b(net.fc(F.relu(net.a(net.fc(x))))),
        fc=nn.Linear(4, 4),
        a=norm(GAINS),
        b=norm(GAINS[::-1]),
    ),
    "zeros": lambda: nn.Sequential(filled(nn.Linear(4, 8), 0.0, 0.0), nn.ReLU(), nn.Linear(8, 4)),
    "all zeros": lambda: nn.Sequential(filled(nn.Linear(4, 4), 0.0, 0.0), nn.ReLU()),
    "a dead ReLU": lambda: nn.Sequential(filled(nn.Linear(4, 8), 0.1, -50.0), nn.ReLU(), nn.Linear(8, 4)),
    "a ReLU that never acts": lambda: nn.Sequential(filled(nn.Linear(4, 4), 0.1, 50.0), nn.ReLU()),
    "tiny": lambda: nn.Sequential(filled(nn.Linear(4, 8), 1e-20, 0.0), nn.ReLU(), nn.Linear(8, 4)),
    "huge": lambda: nn.Sequential(filled(nn.Linear(4, 8), 1e15), nn.ReLU(), filled(nn.Linear(8, 4), 1e-15)),
    "a layer alone": lambda: nn.Linear(4, 4),
    "a bias beyond 30 bits": lambda: nn.Sequential(filled(nn.Linear(4, 8), 1e-12, 3.0), nn.Linear(8, 4)),
    "limits that leave 0 out": lambda: Of(
        lambda net, x: torch.clamp(net.fc(x), 0.5, 1.5), fc=nn.Linear(4, 4)
    ),
    "a lower limit alone": lambda: Of(lambda net, x: net.fc(x).clamp(min=-0.25), fc=nn.Linear(4, 4)),
    "limits behind limits": lambda: Of(
        lambda net, x: net.fc(x).clamp(0, 6).clamp(-3, -1), fc=nn.Linear(4, 4)
    ),
    "a ReLU behind means": lambda: Of(
        lambda net, x: net.fc(F.relu(F.avg_pool1d(x.view(-1, 2, 2), 2, 1, 1)).flatten(1)), fc=nn.Linear(6, 4)
    ),
    "a ReLU behind a sum": lambda: Of(
        lambda net, x: net.fc(F.relu(x + net.a(x))), fc=nn.Linear(4, 4), a=nn.Linear(4, 4)
    ),
    "a ReLU behind a product": lambda: Of(
        lambda net, x: net.fc(F.relu(x * net.a(x))), fc=nn.Linear(4, 4), a=nn.Linear(4, 4)
    ),
    "a ReLU behind parts side by side": lambda: Of(
        lambda net, x: net.fc(F.relu(torch.cat([x, net.a(x)], 1))), fc=nn.Linear(8, 4), a=nn.Linear(4, 4)
    ),
    "a gate": lambda: Of(
        lambda net, x: net.wide(x) * torch.sigmoid(net.gate(x)), wide=nn.Linear(4, 4), gate=nn.Linear(4, 1)
    ),
    "a gate from the left": lambda: Of(
        lambda net, x: torch.sigmoid(net.gate(x)) * net.wide(x), wide=nn.Linear(4, 4), gate=nn.Linear(4, 1)
    ),
    "a root of a ReLU": lambda: Of(lambda net, x: torch.sqrt(F.relu(net.fc(x))), fc=nn.Linear(4, 4)),
    "names of Python": lambda: Of(
        lambda net, x: net.values(net.keys(x)), values=nn.Linear(4, 4), keys=nn.Linear(4, 4)
    ),
    "a layer called input": lambda: Of(lambda net, x: net.input(x), input=nn.Linear(4, 4)),
    "dropout that is no site": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)),
    "dropout as the head": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "a slope to learn": lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()),
}
SITES = {
    "mask": [Site(0, "mask", "0", "after", 0.25)],
    "gaussian": [Site(0, "gaussian", "0", "replace", sigma=0.1, bias_number=1)],
}
ALONE = {
    "mask before": Site(0, "mask", "", "before", 0.25),
    "mask after": Site(0, "mask", "", "after", 0.25),
    "gaussian": Site(0, "gaussian", "", "replace", sigma=0.1, bias_number=1),
}


def make_task() -> qb.Task:
    x, y = inputs()[:ROWS], torch.arange(ROWS) % 4
    return qb.Task.from_arrays(x, y, x, y, kind="classification", name="odd")


def quantised(
    network: nn.Module, precision: qb.Precision | str = "W8A8", epochs: int = 0
) -> qb.NetworkPosterior:
    task = make_task()
    posterior = qb.Posterior.from_trained(network.eval(), task.signature)
    budget = tuning(epochs=epochs, batch_size=16, learning_rate=1e-3)
    return qb.quantize(posterior, task, precision, budget, device="cpu", progress=False)


def inputs() -> Tensor:
    return 2 * torch.randn(64, 4, generator=torch.Generator().manual_seed(6))


def assert_same_on_integers(posterior: qb.NetworkPosterior, draws: int = 3) -> None:
    program = qb.load(qb.lower(posterior), backend="reference")
    ours, theirs = (one.predict(inputs(), draws, 7).draws for one in (posterior, program))
    assert torch.isfinite(ours).all()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bits", [8, 3])
@pytest.mark.parametrize("name", FLAT)
def test_odd_networks_give_the_same_on_codes_and_on_integers(name: str, bits: int) -> None:
    posterior = quantised(FLAT[name](), qb.Precision(bits, bits))
    assert_same_on_integers(posterior)


@pytest.mark.parametrize("name", FLAT)
def test_eight_bits_stay_near_the_float_network(name: str) -> None:
    network = FLAT[name]().eval()
    # the rows that set the ranges: nothing is clipped.
    x = make_task().signature.transform.apply(inputs()[:ROWS])
    precision = qb.Precision(weight_range="minmax", activation_range="minmax")
    with torch.no_grad():
        wanted, got = network(x), quantised(network, precision).network(x)
    span = float(wanted.max().clamp(min=0) - wanted.min().clamp(max=0))
    assert float((got - wanted).abs().max()) <= 0.04 * span + 1e-6


@pytest.mark.parametrize("precision", [qb.Precision(), qb.Precision(3, 3), qb.Precision.preset("paper")])
@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("gain", [GAINS, [0.0] * 4, [-1.0] * 4])
def test_noise_behind_gains_of_all_signs(kind: str, precision: qb.Precision, gain: list[float]) -> None:
    plain = nn.Sequential(nn.Linear(4, 4), norm(gain), nn.ReLU(), nn.Linear(4, 4))
    posterior = quantised(place_sites(plain, SITES[kind]), precision, epochs=1)
    assert_same_on_integers(posterior, draws=5)


@pytest.mark.parametrize("kind", ALONE)
def test_a_layer_that_is_the_whole_network_may_be_stochastic(kind: str) -> None:
    posterior = quantised(place_sites(nn.Linear(4, 4), [ALONE[kind]]))
    assert float(posterior.predict(inputs(), 8, 0).draws.std(0).mean()) > 0.01
    assert_same_on_integers(posterior)


def test_a_gaussian_layer_called_twice_has_one_draw() -> None:
    plain = Of(lambda net, x: net.fc(x) - net.fc(x), fc=nn.Linear(4, 4))
    noisy = place_sites(plain, [Site(0, "gaussian", "fc", "replace", sigma=0.5)])
    posterior = quantised(noisy, qb.Precision(activation_range="minmax"))
    inner = posterior.network
    assert isinstance(inner, QuantNetwork)
    found: dict[str, Tensor] = {}
    (layer,) = gaussian_layers(inner)
    draw = torch.zeros(1, dtype=torch.int64)
    weights = {site: drawn[0] for site, drawn in layer.draw_weights(0, draw).items()}
    with torch.no_grad(), noise.streaming(noise.Stream(0, torch.tensor(0), 0, weights, ROWS)):
        inner.run(inputs()[:ROWS] / 4, lambda step, layer, given, out: found.__setitem__(step.name, out.real))
    once, twice = found["fc"], found["fc@2"]
    with torch.no_grad():
        mean = layer.simulate(inputs()[:ROWS] / 4)
    # the two calls differ by the rounding of their outputs, not by a draw.
    assert float((once - twice).abs().max()) < 0.1 < 0.3 < float((once - mean).abs().max())
    assert_same_on_integers(posterior)


@pytest.mark.parametrize("network", [nn.Identity(), nn.Sequential(nn.Dropout(0.5)), nn.Flatten()])
def test_a_network_that_computes_nothing_is_refused_before_training(network: nn.Module) -> None:
    with pytest.raises(BadInput, match="nothing"):
        qb.prepare(qb.Posterior.from_trained(network, make_task().signature), qb.Precision())


def test_only_a_quantised_posterior_can_be_lowered() -> None:
    posterior = qb.Posterior.from_trained(nn.Linear(4, 4), make_task().signature)
    with pytest.raises(BadInput, match="a float one"):
        qb.lower(posterior)
    with pytest.raises(BadInput, match="Linear"):
        qb.lower(posterior.network)  # pyright: ignore[reportArgumentType]


def test_members_that_would_become_other_operations_are_refused() -> None:
    made = quantised(place_sites(nn.Linear(4, 4), [Site(0, "gaussian", "", "replace", sigma=0.1)]))
    state = made.members[0]
    name = next(name for name in state if name.endswith("grids"))
    other = {**state, name: 3 - state[name]}  # one grid for two, or two for one
    both = NetworkPosterior(
        made.network, [state, other], made.signature, sites=made.sites, quantised=made.quantised
    )
    with pytest.raises(BadInput, match="member 1 differs from member 0"):
        qb.lower(both)


def test_constants_are_integers_of_the_widths_that_were_asked_for() -> None:
    precision = qb.Precision(4, 5, input=6, output=7, overrides={"2": {"weight": 3}})
    program = qb.lower(quantised(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), precision))
    assert [program.values[name].bits for name in ("input", "0", "2")] == [6, 5, 7]
    constants = program.members[0].constants
    assert all(not value.is_floating_point() for held in constants.values() for value in held.values())
    for name, largest in (("0", 7), ("2", 3)):
        assert int(constants[name]["weight"].abs().max()) == largest
    # ReLU is a limit of the codes at 0.
    assert int(constants["0"]["low"]) == program.members[0].zeros["0"]
