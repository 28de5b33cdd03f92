"""Networks: sizes from the paper, outputs computed by hand, factories of one's own, errors."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qbayes.errors import BadFile, BadInput
from qbayes.networks import Architecture, build_network


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters"),
    [
        ("lenet", (1, 28, 28), {"style": "paper"}, 1_255_500),  # the paper's code
        ("lenet", (1, 28, 28), {"style": "relu"}, 1_255_500 + 20 + 50 + 500 + 10),
        ("lenet", (3, 8, 8), {"style": "paper"}, 3 * 20 * 25 + 20 * 50 * 25 + 200 * 500 + 500 * 10),
        ("resnet18", (3, 32, 32), {"width": "slim"}, 1_575_192),  # the paper's code
        ("resnet18", (3, 32, 32), {"width": 24}, 1_575_192),
        ("resnet18", (3, 32, 32), {"width": "standard"}, 11_173_952),  # the usual 11,173,962 less a head bias
        ("resnet8", (3, 32, 32), {}, 77_360 + 2 * 336 + 10),  # weights, batch norms, biases of the head
        ("mlp", (8,), {}, 9 * 100 + 2 * 101 * 100 + 101 * 10),
        ("mlp", (1, 4, 4), {"hidden": ()}, 17 * 10),
    ],
)
def test_parameter_counts(
    name: str, shape: tuple[int, ...], options: dict[str, object], parameters: int
) -> None:
    assert count(build_network(name, shape, 10, **options)) == parameters


def weighted_layers(network: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    return {name: m for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}


def test_resnet8_is_that_of_mlperf_tiny() -> None:
    """As many weights and multiplications; and as many parameters, where biases stand behind convolutions.

    Its Keras model has 78,666: biases of all layers, and four numbers a channel of the batch norms, which the
    shortcuts lack.
    """
    network = build_network("resnet8", (3, 32, 32), 10).eval()
    layers = weighted_layers(network)
    sizes: dict[str, torch.Size] = {}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _, __, out, name=name: sizes.update({name: out.shape}))
    network(torch.zeros(1, 3, 32, 32))
    weights = {name: layer.weight.numel() for name, layer in layers.items()}
    # a weight of a convolution meets every pixel of its output, one of a Linear layer one number.
    multiplications = {name: weights[name] * sizes[name][2:].numel() for name in layers}
    biases = sum(shape[1] for shape in sizes.values())
    norms = sum(shape[1] for name, shape in sizes.items() if "shortcut" not in name and name != "logits")
    assert sum(weights.values()) == 77_360
    assert sum(multiplications.values()) == 12_501_632
    assert sum(weights.values()) + biases + 4 * norms == 78_666


def test_mlp_by_hand() -> None:
    network = build_network("mlp", (2,), 1, "regression", hidden=(2,))
    layers = dict(network.named_modules())
    with torch.no_grad():
        for name, weight, bias in [
            ("hidden.0", [[1.0, 2.0], [3.0, -4.0]], [0.5, 1.0]),
            ("mean", [[2.0, 5.0]], [-1.0]),
            ("log_variance", [[-1.0, 7.0]], [0.25]),
        ]:
            layers[name].weight.copy_(torch.tensor(weight))
            layers[name].bias.copy_(torch.tensor(bias))
        heads = network(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    # row 1: relu(5.5, −4) = (5.5, 0); row 2: relu(4.5, 3) = (4.5, 3)
    assert heads["mean"].tolist() == [[2 * 5.5 - 1], [2 * 4.5 + 5 * 3 - 1]]
    assert heads["log_variance"].tolist() == [[-5.5 + 0.25], [-4.5 + 7 * 3 + 0.25]]


@pytest.mark.parametrize(
    ("activation", "function"), [("relu", torch.relu), ("tanh", torch.tanh), ("silu", nn.functional.silu)]
)
def test_mlp_activation(activation: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    network = build_network("mlp", (3,), 4, hidden=(5,), activation=activation)
    x = torch.randn(6, 3)
    layers = dict(network.named_modules())
    assert torch.equal(network(x), layers["logits"](function(layers["hidden.0"](x))))


def copy_centre(conv: nn.Conv2d) -> None:
    """Channel 0 to channel 0 by the kernel's centre tap; everything else 0."""
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[0, 0, conv.kernel_size[0] // 2, conv.kernel_size[1] // 2] = 1.0


@pytest.mark.parametrize(("style", "expected"), [("paper", -3.0), ("relu", 0.0)])
def test_lenet_by_hand(style: str, expected: float) -> None:
    """One 4×4 patch, the convolutions copy it: what is left is the maximum, below 0 unless ReLU clips it."""
    network = build_network("lenet", (1, 4, 4), 2, style=style)
    layers = dict(network.named_modules())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        copy_centre(layers["features.conv1"])
        copy_centre(layers["features.conv2"])
        layers["hidden"].weight[0, 0] = 1.0  # relu(z)
        layers["hidden"].weight[1, 0] = -1.0  # relu(−z)
        layers["logits"].weight[0, 0] = 1.0
        layers["logits"].weight[0, 1] = -1.0  # relu(z) − relu(−z) = z
    x = -torch.arange(3.0, 19.0).reshape(1, 1, 4, 4)
    assert network(x).tolist() == [[expected, 0.0]]


@pytest.mark.parametrize(
    ("name", "options", "blocks", "stride"), [("resnet18", {"width": 1}, 8, 8), ("resnet8", {}, 3, 4)]
)
def test_resnet_by_hand(name: str, options: dict[str, object], blocks: int, stride: int) -> None:
    """Convolutions that copy channel 0: each block doubles it, the strides keep each ``stride``-th pixel."""
    network = build_network(name, (1, 16, 16), 3, **options).eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            copy_centre(module)
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0  # then BN in evaluation is the identity at its start
    logits = network.get_submodule("logits")
    assert isinstance(logits, nn.Linear)
    assert (logits.bias is None) == (name == "resnet18")
    with torch.no_grad():
        for parameter in logits.parameters():
            parameter.zero_()
        logits.weight[1, 0] = 1.0
    x = torch.arange(256.0).reshape(1, 1, 16, 16)
    kept = x[0, 0, ::stride, ::stride].mean().item()
    assert network(x).tolist() == [[0.0, 2.0**blocks * kept, 0.0]]


def test_resnet_starts_with_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    weight = build_network("resnet18", (3, 32, 32), 10).get_submodule("stage4.1.conv2").weight
    assert isinstance(weight, torch.Tensor)
    # Var = 2 / (192 · 9); 331,776 values: the estimate's own error is 0.25 %.
    assert weight.var().item() == pytest.approx(2 / (192 * 9), rel=0.02)


def test_places_of_the_papers_dropout() -> None:
    mlp = build_network("mlp", (8,), 1, "regression")
    assert mlp.paper_masks == ("before:hidden.1", "before:hidden.2", "before:mean", "before:log_variance")
    lenet = build_network("lenet", (1, 28, 28), 10)
    assert lenet.paper_masks == ("after:features.conv1", "after:features.conv2", "before:logits")
    resnet = build_network("resnet18", (3, 32, 32), 10, width=1)
    assert isinstance(resnet.paper_masks, tuple)
    assert len(resnet.paper_masks) == 1 + 8 * 2
    assert resnet.paper_masks[:3] == ("after:stem.relu", "after:stage1.0.relu1", "after:stage1.0.bn2")
    tiny = build_network("resnet8", (3, 32, 32), 10)
    inside = [f"after:stage{stage}.0.{place}" for stage in (1, 2, 3) for place in ("relu1", "bn2")]
    assert tiny.paper_masks == ("after:stem.relu", *inside)


@given(
    rows=st.integers(1, 4),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    outputs=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    noise=st.sampled_from(["row", "constant"]),
)
@settings(max_examples=25, deadline=None)
def test_mlp_answers_in_the_shape_of_the_targets(
    rows: int, shape: tuple[int, ...], outputs: tuple[int, ...], noise: str
) -> None:
    network = build_network("mlp", shape, outputs, "regression", hidden=(3,), noise=noise)
    answer = network(torch.randn(rows, *shape))
    heads = answer if noise == "row" else {"mean": answer}
    assert set(heads) == ({"mean", "log_variance"} if noise == "row" else {"mean"})
    assert all(head.shape == (rows, *outputs) for head in heads.values())


def test_architecture_keeps_the_defaults_and_survives_json() -> None:
    network = build_network("mlp", (8,), 3, hidden=[7, 5])
    architecture = network.architecture
    assert isinstance(architecture, Architecture)
    assert architecture.options == {"hidden": (7, 5), "activation": "relu", "noise": "row"}
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture


@pytest.mark.parametrize(
    "damage",
    [{"name": 3}, {"input_shape": "8"}, {"options": None}, {"extra": 1}, {"kind": None}],
)
def test_damaged_architecture_is_refused(damage: dict[str, object]) -> None:
    data = {**Architecture("mlp", (8,), (3,)).to_json(), **damage}
    with pytest.raises(BadFile, match="written by qbayes"):
        Architecture.from_json(data)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "options", "message"),
    [
        ("resnet", (3, 8, 8), 10, {}, "did you mean 'resnet8'"),
        ("mlp", (8,), 10, {"hiden": (3,)}, "did you mean 'hidden'"),
        ("mlp", (8,), 10, {"activation": "tan"}, "did you mean 'tanh'"),
        ("mlp", (8,), 10, {"hidden": (3, 0)}, "hidden widths must be positive integers"),
        ("mlp", (8,), 10, {"hidden": "300"}, "hidden widths must be positive integers"),
        ("mlp", (8,), 10, {"kind": "clasification"}, "did you mean 'classification'"),
        ("mlp", (8,), 1, {"kind": "regression", "noise": "rows"}, "did you mean 'row'"),
        ("mlp", (), 10, {}, "input shape must be positive integers"),
        ("mlp", (8, -1), 10, {}, "input shape must be positive integers"),
        ("mlp", (8,), 0, {}, "outputs must be positive integers"),
        ("mlp", (8,), True, {}, "outputs must be positive integers"),
        ("mlp", (8,), (2, 5), {}, "number of classes"),
        ("lenet", (8,), 10, {}, "images of shape"),
        ("lenet", (1, 3, 28), 10, {}, "at least 4 pixels"),
        ("lenet", (1, 8, 8), 10, {"style": "papper"}, "did you mean 'paper'"),
        ("resnet8", (8,), 10, {}, "images of shape"),
        ("resnet8", (3, 8, 8), 10, {"width": 16}, "option of the network 'resnet8'"),
        ("resnet18", (3, 8, 8), 10, {"width": "slimm"}, "did you mean 'slim'"),
        ("resnet18", (3, 8, 8), 10, {"width": 0}, "positive number of channels"),
    ],
)
def test_bad_input(
    name: str, shape: tuple[int, ...], outputs: int, options: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        build_network(name, shape, outputs, **options)


OWN = """
import torch
LIMIT = 3
class Plain(torch.nn.Linear):
    def __init__(self): super().__init__(4, 2)
def sized(input_shape, outputs, scale=1): return torch.nn.Linear(input_shape[0] * scale, outputs[0])
def anything(**given):
    module = torch.nn.Identity()
    module.given = given
    return module
def number(): return 7
def needs(depth): return torch.nn.Identity()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, which is not on ``sys.path``."""
    (tmp_path / "own_networks_for_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield "own_networks_for_test"
    sys.modules.pop("own_networks_for_test", None)


def test_own_factory(own_module: str) -> None:
    before = list(sys.path)
    assert build_network(f"{own_module}:Plain", (4,), 2).weight.shape == (2, 4)
    network = build_network(f"{own_module}:sized", (4,), 3, scale=2)
    assert network.weight.shape == (3, 8)
    assert network.architecture == Architecture(f"{own_module}:sized", (4,), (3,), options={"scale": 2})
    everything = build_network(f"{own_module}:anything", (4,), 3, "regression", depth=1)
    assert everything.given == {"input_shape": (4,), "outputs": (3,), "kind": "regression", "depth": 1}
    assert sys.path == before


def test_file_cannot_choose_the_code_that_runs(own_module: str) -> None:
    architecture = build_network(f"{own_module}:sized", (4,), 3, scale=2).architecture
    with pytest.raises(BadInput, match="given by the caller"):
        architecture.build()
    assert architecture.build(allow_import=True).weight.shape == (3, 8)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_such_package_anywhere:net", "No module named 'no_such_package_anywhere'"),
        (":net", "module that can be imported"),
        ("{own}:Plane", "did you mean 'Plain'"),
        ("{own}:LIMIT", "class or function called 'LIMIT'"),
        ("{own}:number", "must return a torch.nn.Module"),
        ("{own}:needs", "missing a required argument: 'depth'"),
    ],
)
def test_own_factory_errors(own_module: str, factory: str, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        build_network(factory.format(own=own_module), (4,), 2)
    assert caught.value.do


def test_own_factory_unknown_option(own_module: str) -> None:
    with pytest.raises(BadInput, match="did you mean 'scale'"):
        build_network(f"{own_module}:sized", (4,), 2, scala=2)
