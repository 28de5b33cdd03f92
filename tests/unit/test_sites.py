"""Sites on a network: placed on a copy, read back, and taken off again."""

import copy

import pytest
import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.posterior.gaussian import GaussianLayer
from qbayes.posterior.likelihood import ConstantNoise
from qbayes.posterior.sites import (
    Attachment,
    Mask,
    Masked,
    Site,
    gaussian_layers,
    place_sites,
    point_state,
    sites_of,
    stochastic_layers,
)


class Awkward(nn.Module):
    """Children called like our wrappers' own: ``layer``, ``before``, ``network``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.before = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.Flatten())
        self.network = nn.ModuleDict({"after": nn.Linear(8, 4), "weight_rho": nn.Linear(4, 3)})
        self.log_variance = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        z = self.before(self.layer(x)[:, None])
        return self.network["weight_rho"](torch.relu(self.network["after"](z))) * self.log_variance


SITES = (
    Site(0, "gaussian", "layer", "replace", sigma=0.05),
    Site(1, "mask", "layer", "after", 0.25),
    Site(2, "mask", "before.0", "before", 0.5, True),
    Site(3, "mask", "before", "after", 0.125),
    Site(4, "gaussian", "network.after", "replace", sigma=0.1, bias_number=5),
    Site(6, "mask", "network.weight_rho", "before", 0.3),
)


def test_original_is_not_touched() -> None:
    network = Awkward()
    text, state = str(network), copy.deepcopy(network.state_dict())
    module = place_sites(network, SITES)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    assert str(network) == text
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())


def test_sites_are_read_back() -> None:
    assert sites_of(place_sites(Awkward(), SITES)) == SITES
    assert sites_of(ConstantNoise(place_sites(Awkward(), SITES), (3,))) == SITES
    assert sites_of(Awkward()) == ()


def test_point_state_is_the_plain_networks() -> None:
    network = Awkward()
    module = place_sites(network, SITES)
    for wrapped in (module, ConstantNoise(module, (3,))):
        plain = point_state(wrapped, wrapped.state_dict())
        expected = network.state_dict()
        assert plain.keys() == expected.keys()
        assert all(torch.equal(plain[name], expected[name]) for name in expected)
    Awkward().load_state_dict(plain)


def test_without_a_stream_the_placed_network_is_the_plain_one() -> None:
    network = Awkward().eval()
    module = place_sites(network, SITES).eval()
    x = torch.randn(5, 4)
    torch.testing.assert_close(module(x), network(x))


@pytest.mark.parametrize(
    "sites",
    [
        (Site(0, "gaussian", "", "replace", sigma=0.2, bias_number=1),),
        (Site(0, "mask", "", "before", 0.5), Site(1, "mask", "", "after", 0.5)),
        (Site(0, "mask", "", "before", 0.5), Site(1, "gaussian", "", "replace", sigma=0.3)),
    ],
)
def test_the_network_itself_may_be_a_layer(sites: tuple[Site, ...]) -> None:
    network = nn.Linear(4, 3).eval()
    module = place_sites(network, sites).eval()
    assert sites_of(module) == sites
    x = torch.randn(2, 4)
    torch.testing.assert_close(module(x), network(x))
    plain = point_state(module, module.state_dict())
    assert all(torch.equal(plain[name], value) for name, value in network.state_dict().items())


class Shared(nn.Module):
    """One layer under two names of one parent, and under another parent."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.deep = nn.Sequential(nn.ReLU(), self.first)

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.second(self.first(x)))


@pytest.mark.parametrize("kind", ["mask", "gaussian"])
def test_a_shared_module_is_replaced_everywhere(kind: str) -> None:
    site = (
        Site(0, "mask", "first", "before", 0.5) if kind == "mask" else Site(0, "gaussian", "first", "replace")
    )
    module = place_sites(Shared(), [site])
    assert module.first is module.second is module.deep[1]
    assert isinstance(module.first, Masked if kind == "mask" else GaussianLayer)
    assert len(list(stochastic_layers(module))) == 1
    assert sites_of(module) == (site,)


def test_a_mask_in_place_of_a_dropout_with_another_behind_it() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    sites = (Site(0, "mask", "1", "replace", 0.5), Site(1, "mask", "1", "after", 0.25))
    module = place_sites(network, sites)
    assert sites_of(module) == sites
    assert not any(isinstance(layer, nn.Dropout) for layer in module.modules())


def test_masks_of_rate_zero_draw_nothing() -> None:
    module = place_sites(nn.Sequential(nn.Dropout(0.5)), [Site(0, "mask", "0", "replace", 0.0)])
    assert list(stochastic_layers(module)) == []
    assert isinstance(module[0], Mask)


def test_gaussian_layers_are_found_once_each() -> None:
    assert [layer.site for layer in gaussian_layers(place_sites(Awkward(), SITES))] == [0, 4]


def test_wrapped_layers_answer_for_their_attributes() -> None:
    """Real networks ask a layer for its width, or tie its weight."""
    module = place_sites(nn.Sequential(nn.Linear(4, 3)), [Site(0, "mask", "0", "before", 0.5)])
    assert module[0].in_features == 4
    assert module[0].weight is module[0].layer.weight
    with pytest.raises(AttributeError, match="nonsense"):
        _ = module[0].nonsense
    assert copy.deepcopy(module)[0].out_features == 3


def test_wrapped_modules_take_all_their_arguments() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
            return (x + y) * scale

    masked = Masked(Sum(), None, Mask(0.5, 0)).eval()
    assert float(masked(torch.ones(()), torch.ones(()), scale=3.0)) == 6.0


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site(0, "mask", "layr", "before", 0.5), "did you mean 'layer'"),
        (Site(0, "gaussian", "before.1", "replace"), "BatchNorm1d at 'before.1'"),
        (Site(0, "gaussian", "", "replace"), "Awkward"),
        (Site(0, "mask", "layer", "before", 1.0), "rate"),
        (Site(0, "gaussian", "layer", "replace", sigma=0.0), "σ"),
    ],
)
def test_sites_that_cannot_be(site: Site, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        place_sites(Awkward(), [site])


@pytest.mark.parametrize(
    "sites",
    [
        [Site(0, "mask", "layer", "before", 0.5), Site(0, "mask", "layer", "after", 0.5)],
        [Site(0, "mask", "layer", "before", 0.5), Site(1, "mask", "layer", "before", 0.2)],
        [Site(0, "gaussian", "layer", "replace", bias_number=1), Site(1, "mask", "before", "after", 0.5)],
    ],
)
def test_sites_must_be_distinct(sites: list[Site]) -> None:
    """Equal numbers would share their noise without a word."""
    with pytest.raises(BadInput, match="of its own"):
        place_sites(Awkward(), sites)


@pytest.mark.parametrize("site", SITES)
def test_json_round_trip(site: Site) -> None:
    assert Site.from_json(site.to_json()) == site


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "noise"},
        {"place": "beside"},
        {"number": -1},
        {"number": 1.0},
        {"number": True},
        {"number": 2**32},
        {"rate": "0.5"},
        {"module": 3},
        {"channelwise": 1},
        {"bias_number": "2"},
        {"extra": 1},
    ],
)
def test_json_of_another_kind(change: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="a site must be"):
        Site.from_json({**SITES[0].to_json(), **change})


def test_summary_names_everything() -> None:
    lines = Attachment(SITES, (("before.1", "BatchNorm1d: deterministic"),)).summary().splitlines()
    assert len(lines) == len(SITES) + 1
    assert "rate 0.5 channel-wise" in lines[2]
    assert "before.1" in lines[-1]
