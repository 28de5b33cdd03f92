"""MC dropout: where the masks go."""

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.methods import make_method
from qbayes.networks import build_network
from qbayes.posterior.sites import Mask, Site


def places(network: nn.Module, example: Tensor | None = None, **options: Any) -> dict[str, float]:
    """``{"before:fc": rate}`` of what attach placed."""
    _, attachment = make_method("mcd", **options).attach(network, example)
    return {f"{site.place}:{site.module}": site.rate for site in attachment.sites}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))


def test_default_is_before_every_layer_but_the_first() -> None:
    assert places(mlp(), torch.ones(2, 4), rate=0.3) == {"before:2": 0.3, "before:4": 0.3}
    assert places(mlp(), None, rate=0.3) == {"before:2": 0.3, "before:4": 0.3}


def test_the_first_layer_is_the_first_to_run() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.stem = nn.Linear(4, 3), nn.Linear(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x))

    assert set(places(Backwards(), torch.ones(2, 2))) == {"before:head"}


def test_feature_maps_lose_channels_and_features_elements() -> None:
    network = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Conv1d(2, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    _, attachment = make_method("mcd").attach(network, torch.ones(2, 1, 8))
    assert {site.module: site.channelwise for site in attachment.sites} == {"1": True, "3": False}
    assert attachment.left_alone == (("0", "no mask before it"),)


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize("between", [[], [nn.ReLU()], [nn.ReLU(), nn.Flatten()]])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_own_dropouts_become_sites_once(
    kind: type[nn.Dropout], between: list[nn.Module], with_example: bool
) -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3), kind(0.37), *between, nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)
    )
    names = [name for name, module in network.named_children() if isinstance(module, nn.Linear)]
    example = torch.ones(2, 1, 4, 4) if with_example else None
    module, attachment = make_method("mcd", rate=0.1).attach(network, example)
    found = {f"{site.place}:{site.module}": (site.rate, site.channelwise) for site in attachment.sites}
    assert found == {"replace:1": (0.37, kind is nn.Dropout2d), f"before:{names[1]}": (0.1, False)}
    assert isinstance(module[1], Mask)
    assert not any(isinstance(layer, nn.Dropout | nn.Dropout2d) for layer in module.modules())


def test_own_dropouts_become_sites_under_the_paper_placement_too() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    network.paper_masks = ("before:2",)  # pyright: ignore[reportArgumentType]
    assert places(network, torch.ones(2, 4), placement="paper", rate=0.2) == {
        "replace:1": 0.5,
        "before:2": 0.2,
    }


def test_a_dropout_switched_off_is_off_in_training() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9), nn.Linear(4, 4), nn.Linear(4, 2))
    module, _ = make_method("mcd", rates={"1": 0}).attach(network, torch.ones(2, 4))
    x = torch.randn(3, 4)
    assert torch.equal(module[1].train()(x), x)
    with pytest.raises(BadInput, match="must find"):
        make_method("mcd", rates={"1": 0, "3": 0}).attach(network, torch.ones(2, 4))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"4": 0}, {"before:2": 0.1}),
        ({"0": 0.4}, {"before:0": 0.4, "before:2": 0.1, "before:4": 0.1}),
        ({"*": 0.4}, {"before:2": 0.4, "before:4": 0.4}),
        ({"*": 0.4, "2": 0.2}, {"before:2": 0.2, "before:4": 0.4}),
        ({"[24]": 0.3}, {"before:2": 0.3, "before:4": 0.3}),
    ],
)
def test_rates_override_by_pattern(rates: dict[str, float], expected: dict[str, float]) -> None:
    assert places(mlp(), torch.ones(2, 4), rates=rates) == expected


def test_after_puts_masks_behind_named_modules() -> None:
    found = places(mlp(), torch.ones(2, 4), after=("1",), rates={"2": 0, "4": 0, "1": 0.25})
    assert found == {"after:1": 0.25}


PAPER = {
    # as published: MLP after ReLU 1 and 2 and before each head; LeNet after both convolutions and the hidden
    # ReLU; ResNet after the stem, inside and after each block's branch.
    "mlp": (
        ((7,), (1,), "regression", {}),
        ["before:hidden.1", "before:hidden.2", "before:mean", "before:log_variance"],
    ),
    "lenet": (
        ((1, 28, 28), (10,), "classification", {}),
        ["after:features.conv1", "after:features.conv2", "before:logits"],
    ),
    "resnet8": (
        ((3, 8, 8), (10,), "classification", {}),
        [
            "after:stem.relu",
            *(f"after:stage{stage}.0.{place}" for stage in (1, 2, 3) for place in ("relu1", "bn2")),
        ],
    ),
    "resnet18": (
        ((3, 8, 8), (10,), "classification", {"width": 2}),
        [
            "after:stem.relu",
            *(
                f"after:stage{stage}.{block}.{place}"
                for stage in (1, 2, 3, 4)
                for block in (0, 1)
                for place in ("relu1", "bn2")
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", PAPER)
def test_paper_placement(name: str) -> None:
    (shape, outputs, kind, options), expected = PAPER[name]
    network = build_network(name, shape, outputs, kind, **options)
    example = torch.randn(2, *shape)
    found = places(network, example, placement="paper", rate=0.15)
    assert set(found) == set(expected)
    assert set(found.values()) == {0.15}
    _, attachment = make_method("mcd", placement="paper").attach(network, example)
    channelwise = {site.module for site in attachment.sites if site.channelwise}
    assert channelwise == {place.partition(":")[2] for place in expected if place.startswith("after")}


def test_site_numbers_count_from_zero_in_the_order_of_registration() -> None:
    network = build_network("resnet18", (3, 8, 8), 10, width=2)
    rank = {name: index for index, (name, _) in enumerate(network.named_modules())}
    _, attachment = make_method("mcd", placement="paper").attach(network, torch.randn(2, 3, 8, 8))
    assert [site.number for site in attachment.sites] == list(range(len(attachment.sites)))
    order = [rank[site.module] for site in attachment.sites]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("network", "options", "why"),
    [
        (mlp(), {"rates": {"5": 0.1}}, "layer in rates"),
        (nn.Sequential(nn.Linear(4, 2)), {}, "must find"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)), {}, "BatchNorm1d: deterministic"),
        (mlp(), {"placement": "paper"}, "paper_masks"),
        (mlp(), {"after": ("9",)}, "module of the network"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 2)), {}, "rate"),
    ],
)
def test_what_cannot_be_placed(network: nn.Module, options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make_method("mcd", **options).attach(network, torch.ones(2, 4))


def test_the_nearest_spelling_is_offered() -> None:
    network = build_network("lenet", (1, 8, 8), 10)
    with pytest.raises(BadInput, match=r"did you mean 'features\.conv2'"):
        places(network, None, rates={"features.konv2": 0.1})


@pytest.mark.parametrize(
    "options",
    [
        {"rate": -0.1},
        {"rate": 1.0},
        {"rate": "0.1"},
        {"rate": None},
        {"rates": {"a": 2}},
        {"rates": ["a"]},
        {"rates": None},
        {"rates": {"2": "x"}},
        {"rates": {"2": True}},
        {"rates": {2: 0.1}},
        {"after": "conv1"},
        {"after": [1]},
        {"after": 1},
        {"placement": 3},
        {"optimizer": 3},
        {"placement": "papr"},
        {"rat": 0.1},
        {"optimizer": "adagrad"},
        {"weight_decay": -1},
        {"momentum": 1.0},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        make_method("mcd", **options)


def test_functional_dropout_is_refused() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.dropout(self.a(x), 0.5, self.training))

    with pytest.raises(BadInput, match="functional"):
        make_method("mcd").attach(Own(), torch.ones(2, 4))
    # the other methods leave a network's functional dropout to its training.
    make_method("bbb").attach(Own(), torch.ones(2, 4))


def test_a_network_that_reads_its_layers_weights_still_runs() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.b(self.a(x)), self.b.weight.T)

    module, _ = make_method("mcd").attach(Tied(), torch.ones(2, 4))
    assert module(torch.ones(2, 4)).shape == (2, 4)
    with pytest.raises(BadInput, match="weight"):
        make_method("bbb").attach(Tied(), torch.ones(2, 4))


def test_masks_are_in_the_training_pass() -> None:
    network = mlp()
    module, _ = make_method("mcd", rate=0.5).attach(network, torch.ones(2, 4))
    assert module.training
    x = torch.randn(6, 4)
    assert not torch.equal(module(x), module(x))
    torch.testing.assert_close(copy.deepcopy(module).eval()(x), network.eval()(x))


def test_numbers_of_numpy_are_kept_as_json() -> None:
    method = make_method("mcd", rate=np.float32(0.5), rates={"2": np.float32(0.25)}, after=["1"])
    assert json.loads(json.dumps(method.to_json()))["rates"] == {"2": 0.25}
    assert method == make_method("mcd", rate=0.5, rates={"2": 0.25}, after=("1",))


def test_the_modules_to_choose_from_have_names() -> None:
    with pytest.raises(BadInput, match="module of the network") as caught:
        make_method("mcd", after=("first",)).attach(mlp())
    assert caught.value.do == "choose one of: 0, 1, 2, 3, 4"


def test_json_carries_every_option() -> None:
    method = make_method("mcd", rate=0.2, rates={"a": 0.1}, after=("b",))
    assert method.to_json()["rates"] == {"a": 0.1}
    again = {key: value for key, value in method.to_json().items() if key != "name"}
    assert make_method("mcd", **again) == method
    assert Site(0, "mask", "a", "before", 0.2).to_json()["rate"] == 0.2
