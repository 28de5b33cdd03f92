"""Equalised channels: the same function and the same draws, from numbers of one range."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.sites import Site, place_sites
from qbayes.quant.graph.equalize import equalise
from qbayes.quant.layers.gaussian import GaussianWeights
from qbayes.quant.layers.weighted import PointWeights, QuantWeighted
from qbayes.quant.network import QuantNetwork
from qbayes.quant.prepare import quant_network

SITES = {
    "pointwise": [],
    "mcd": [
        Site(0, "mask", "pool", "after", 0.25, channelwise=True),
        Site(1, "mask", "hidden", "before", 0.5),
    ],
    "bbb": [
        Site(0, "gaussian", "conv", "replace", sigma=0.05),
        Site(1, "gaussian", "hidden", "replace", sigma=0.05),
        Site(2, "gaussian", "mean", "replace", sigma=0.1),
    ],
}


class Net(nn.Module):
    """A convolution, pooling, a flattening, a hidden layer, and two heads that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(2, 5, 3), nn.MaxPool2d(2)
        self.hidden, self.mean, self.log_variance = nn.Linear(20, 7), nn.Linear(7, 2), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = F.relu(self.hidden(self.pool(F.relu(self.conv(x))).flatten(1)))
        return {"mean": self.mean(h), "log_variance": self.log_variance(h)}


def rows(count: int = 64) -> Tensor:
    return torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(3))


def network(method: str, precision: qb.Precision | None = None) -> QuantNetwork:
    torch.manual_seed(5)
    net = Net()
    with torch.no_grad():
        # channels of very different sizes, one of them dead.
        net.conv.weight.mul_(torch.tensor([1e-3, 0.1, 1.0, 10.0, 1.0])[:, None, None, None])
        net.hidden.weight[3], net.hidden.bias[3] = 0.0, -1.0
    return quant_network(place_sites(net, SITES[method]), (2, 6, 6), precision or qb.Precision())


def weights(quantised: QuantNetwork, name: str) -> Tensor:
    layer = quantised.layer(name)
    assert isinstance(layer, QuantWeighted)
    held = layer.weights
    assert isinstance(held, PointWeights | GaussianWeights)
    return held.weight if isinstance(held, PointWeights) else held.weight_mean


def drawn(quantised: QuantNetwork, x: Tensor) -> dict[str, Tensor]:
    """A pass in training, with noise and without rounding."""
    for _, quantizer in quantised.quantizers():
        quantizer.quantizing = False
        quantizer.observing = False
    torch.manual_seed(11)
    outputs = quantised.train()(x)
    assert isinstance(outputs, dict)
    return outputs


@pytest.mark.parametrize("method", SITES)
def test_every_draw_is_the_same(method: str) -> None:
    before, x = network(method), rows()
    after = copy.deepcopy(before)
    assert len(equalise(after, [x[:32], x[32:]])) == 2
    one, other = drawn(before, x), drawn(after, x)
    for head in one:
        torch.testing.assert_close(other[head], one[head], rtol=1e-4, atol=1e-5)
    assert not torch.equal(weights(before, "hidden"), weights(after, "hidden"))


@pytest.mark.parametrize("method", SITES)
def test_activations_and_the_weights_that_read_them_have_one_range(method: str) -> None:
    """s = √(k / a): the ratio of the two is then the same for all channels that are alive."""
    quantised, x = network(method), rows()
    equalise(quantised, [x])
    hidden = next(step.name for step in quantised.steps if step.name == "hidden")
    largest = quantised.float_values(x)[hidden].abs().amax(0)
    read = torch.maximum(
        weights(quantised, "mean").abs().amax(0), weights(quantised, "log_variance").abs().amax(0)
    )
    alive = largest > 0
    assert 2 <= int(alive.sum()) <= 6
    ratio = (largest / read)[alive]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-3, atol=0.0)


def test_the_whole_range_stays_and_a_dead_channel_too() -> None:
    before, x = network("pointwise"), rows()
    after = copy.deepcopy(before)
    equalise(after, [x])
    torch.testing.assert_close(after.float_values(x)["hidden"].max(), before.float_values(x)["hidden"].max())
    assert torch.equal(weights(after, "mean")[:, 3], weights(before, "mean")[:, 3])


class Chain(nn.Module):
    def __init__(self, read: list[float]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 4, bias=False), nn.Linear(4, 1)
        with torch.no_grad():
            self.first.weight.fill_(1.0)
            self.last.weight.copy_(torch.tensor([read]))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


def test_factors_are_the_roots_of_what_is_read_and_no_smaller_than_a_hundredth() -> None:
    """Activations are 1, so s = √k, by the largest of them; what nobody reads has nothing to trade."""
    quantised = quant_network(Chain([1.0, 0.25, 0.0, 1e-12]), (1,), qb.Precision())
    assert equalise(quantised, [torch.ones(4, 1)]) == ["first"]
    factors = torch.tensor([1.0, 0.5, 1.0, 0.01])
    torch.testing.assert_close(weights(quantised, "first").flatten(), factors)
    read = torch.tensor([1.0, 0.25, 0.0, 1e-12]) / factors
    torch.testing.assert_close(weights(quantised, "last").flatten(), read)


def test_no_factor_is_above_a_hundred() -> None:
    """The last channel is a millionth of the others and read as they are: s would be √(1 / 1e-6)."""
    quantised = quant_network(Chain([1.0, 1.0, 1.0, 1.0]), (1,), qb.Precision())
    with torch.no_grad():
        weights(quantised, "first")[3] = 1e-6
    equalise(quantised, [torch.ones(4, 1)])
    torch.testing.assert_close(weights(quantised, "first").flatten(), torch.tensor([1.0, 1.0, 1.0, 1e-4]))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        return self.last(F.relu(h + self.second(h)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.layer(F.relu(self.layer(x)))))


class ReadTwice(nn.Module):
    """What reads ``first`` reads its own answers too: it has one weight for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.shared(F.relu(self.shared(F.relu(self.first(x)))))))


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu6(self.first(x)))


class Answer(nn.Module):
    """The first answer is read on: factors would cancel behind it, but it is given as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean = self.first(x)
        return {"mean": mean, "log_variance": self.last(mean)}


class Groups(nn.Module):
    """The second axis of a grouped weight counts the channels of one group: 2, where 4 are read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.grouped = nn.Conv1d(1, 4, 1), nn.Conv1d(4, 6, 4, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.grouped(F.relu(self.first(x.unsqueeze(1)))).flatten(1)


class Across(nn.Module):
    """The last map reads positions, each with numbers of all channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.across = nn.Conv1d(1, 3, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.across(F.relu(self.first(x.unsqueeze(1)))).flatten(1)


@pytest.mark.parametrize(
    "make", [Residual, Twice, ReadTwice, Bounded, Answer, Groups, Across, lambda: nn.Linear(4, 3)]
)
def test_factors_that_would_not_cancel_are_not_made(make: type[nn.Module]) -> None:
    quantised = quant_network(make(), (4,), qb.Precision())
    before = {name: value.clone() for name, value in quantised.state_dict().items()}
    assert equalise(quantised, [torch.randn(16, 4)]) == []
    assert all(torch.equal(value, before[name]) for name, value in quantised.state_dict().items())


def test_four_bits_lose_less() -> None:
    """Channels from 1e-3 to 10 on one grid of 16 codes: the small ones are lost, unless they are scaled."""
    x = torch.randn(512, 6, generator=torch.Generator().manual_seed(0))
    target = x[:, :3].sin() @ torch.randn(3, 1, generator=torch.Generator().manual_seed(1))
    task = qb.Task.from_arrays(x.numpy(), target.numpy(), kind="regression", name="own")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    factors = torch.logspace(-2, 1, 16)
    with torch.no_grad():
        net[0].weight.mul_(factors[:, None])
        net[0].bias.mul_(factors)
        net[2].weight.div_(factors)
    posterior = qb.Posterior.from_trained(ConstantNoise(net, (1,)).eval(), task.signature)
    wanted = posterior.predict(x.numpy(), draws=1).mean
    errors = {}
    for chosen in (True, False):
        made = qb.quantize(
            posterior,
            task,
            qb.Precision(4, 4),
            qb.FineTuning(epochs=0, batch_size=128, equalize=chosen),
            device="cpu",
        )
        errors[chosen] = (made.predict(x.numpy(), draws=1).mean - wanted).square().mean().sqrt()
    assert errors[True] < 0.5 * errors[False]
