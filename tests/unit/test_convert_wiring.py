"""How layers are wired, named and shared: what the quantised network computes, and what its program does."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import qbayes as qb
from fine_tuned import tuning
from qbayes.errors import BadInput
from qbayes.quant.graph.convert import graph_of
from qbayes.quant.prepare import quant_network

Forward = Callable[[Any, Tensor], Any]
ROWS = 6
VECTOR, SEQUENCE, IMAGE = (8,), (4, 12), (4, 6, 6)


class Net(nn.Module):
    """A network whose forward is given; layers are its attributes."""

    def __init__(self, forward: Forward, **layers: Any) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class Case:
    """A spelling, the shape of its rows, and its layers."""

    def __init__(self, shape: tuple[int, ...], forward: Forward, **layers: Callable[[], Any]) -> None:
        self.shape, self.function, self.layers = shape, forward, layers

    def build(self) -> Net:
        torch.manual_seed(0)
        net = Net(self.function, **{name: make() for name, make in self.layers.items()})
        for norm in [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]:
            nn.init.normal_(norm.weight)  # negative ones too
            nn.init.normal_(norm.bias)
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.5, 2.0)
        return net.eval()


def positive(x: Tensor) -> Tensor:
    return x.abs() + 0.1


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(shape))


ARITHMETIC = {
    "numbers": Case(VECTOR, lambda net, x: (2 - (x * 3 + 0.5) / 1.5) * 0.5 - 1),
    "alpha": Case(VECTOR, lambda net, x: torch.add(x, x.abs(), alpha=0.5) + x.sub(x.tanh(), alpha=2)),
    "named": Case(
        VECTOR,
        lambda net, x: torch.add(input=x, other=F.relu(input=x)) + net.fc(input=x),
        fc=lambda: nn.Linear(8, 8),
    ),
    "x + x": Case(VECTOR, lambda net, x: x + x),
    "x - x": Case(VECTOR, lambda net, x: net.fc(x) - net.fc(x), fc=lambda: nn.Linear(8, 8)),
    "x * x": Case(VECTOR, lambda net, x: torch.mul(x, x) + torch.multiply(x, x.abs())),
    "broadcast": Case(IMAGE, lambda net, x: x * x.mean((2, 3), keepdim=True) - x[:, :, :1]),
    "broadcast both ways": Case(IMAGE, lambda net, x: x[:, :, :1] * x[:, :, :, 2:3] + x[:, 1:2]),
    "constants": Case(
        IMAGE,
        lambda net, x: (x - net.mean) / net.std * net.one + net.bias,
        mean=parameter(4, 1, 1),
        std=lambda: nn.Parameter(torch.rand(4, 1, 1) + 1),
        one=parameter(),
        bias=parameter(1, 4, 1, 1),
    ),
    "computed constant": Case(
        VECTOR, lambda net, x: F.softplus(net.beta) * x - net.beta.exp(), beta=parameter(8)
    ),
    "√ where codes reach below 0": Case(VECTOR, lambda net, x: torch.log1p(x.clamp(-0.995, 9))),
    "pad with a number": Case(IMAGE, lambda net, x: F.pad(x, (1, 1), value=9.5) + 0.0),
    "uneven split": Case(
        IMAGE,
        lambda net, x: (
            x.split([1, 3], dim=1)[1] + torch.split(tensor=x[:, :3], split_size_or_sections=3, dim=1)[0]
        ),
    ),
    "tensor_split": Case(SEQUENCE, lambda net, x: x.tensor_split(2, 2)[0] + torch.tensor_split(x, 2, 2)[1]),
    "cat of one": Case(SEQUENCE, lambda net, x: torch.cat([x], 1).tanh()),
    "index": Case(IMAGE, lambda net, x: x[:, -1, None] * x[..., 0, :].unsqueeze(2)),
}

WEIGHTED = {
    "Linear": Case(VECTOR, lambda net, x: net.fc(x), fc=lambda: nn.Linear(8, 5)),
    "Linear on the last axis": Case(SEQUENCE, lambda net, x: net.fc(x), fc=lambda: nn.Linear(12, 3)),
    "Conv1d": Case(SEQUENCE, lambda net, x: net.conv(x), conv=lambda: nn.Conv1d(4, 6, 3, 2, 2, 2, 2)),
    "Conv2d": Case(IMAGE, lambda net, x: net.conv(x), conv=lambda: nn.Conv2d(4, 6, (3, 1), (1, 2))),
    "same": Case(SEQUENCE, lambda net, x: net.conv(x), conv=lambda: nn.Conv1d(4, 4, 4, padding="same")),
    "valid": Case(IMAGE, lambda net, x: net.conv(x), conv=lambda: nn.Conv2d(4, 2, 3, padding="valid")),
    "reflect": Case(
        IMAGE, lambda net, x: net.conv(x), conv=lambda: nn.Conv2d(4, 2, 3, padding=2, padding_mode="reflect")
    ),
    "replicate": Case(
        SEQUENCE,
        lambda net, x: net.conv(x),
        conv=lambda: nn.Conv1d(4, 2, 4, padding="same", padding_mode="replicate"),
    ),
    "norm": Case(
        IMAGE,
        lambda net, x: net.norm(net.conv(x)).relu(),
        conv=lambda: nn.Conv2d(4, 5, 3),
        norm=lambda: nn.BatchNorm2d(5),
    ),
    "norm before": Case(
        IMAGE,
        lambda net, x: net.conv(torch.relu(net.norm(x))),
        conv=lambda: nn.Conv2d(4, 5, 3, padding=1),
        norm=lambda: nn.BatchNorm2d(4),
    ),
    "norm on the channels": Case(
        SEQUENCE,
        lambda net, x: net.norm(net.fc(x)),
        fc=lambda: nn.Linear(12, 4),
        norm=lambda: nn.BatchNorm1d(4),
    ),
    "two norms": Case(
        VECTOR,
        lambda net, x: net.second(net.first(net.fc(x))),
        fc=lambda: nn.Linear(8, 4, bias=False),
        first=lambda: nn.BatchNorm1d(4),
        second=lambda: nn.BatchNorm1d(4),
    ),
    "norm behind a shared layer": Case(
        VECTOR,
        lambda net, x: net.first(net.fc(x)) + net.second(net.fc(net.fc(x).relu())),
        fc=lambda: nn.Linear(8, 8),
        first=lambda: nn.BatchNorm1d(8),
        second=lambda: nn.BatchNorm1d(8),
    ),
    "dropout": Case(
        IMAGE,
        lambda net, x: net.last(net.middle(net.conv(net.first(x)))),
        first=lambda: nn.Dropout2d(0.5),
        conv=lambda: nn.Conv2d(4, 3, 3),
        middle=lambda: nn.Dropout(0.9, inplace=True),
        last=lambda: nn.AlphaDropout(0.3),
    ),
}


class SmallConv(nn.Conv2d):
    """A layer of somebody's own that only sets the options of torch's."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)


class SameAgain(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 2.0) -> Tensor:
        return x * scale if mask is None else x * mask


def shortcut_changed_in_place(net: Any, x: Tensor) -> Tensor:
    y = net.fc(x)
    shortcut = y
    y = F.relu(y, inplace=True)
    return net.fc(y) + shortcut  # which is the ReLU now


def layer_changes_in_place(net: Any, x: Tensor) -> Tensor:
    y = net.fc(x)
    z = net.act(y)
    return net.fc(z) - y  # which is the ELU now


WIRING = {
    "own subclass": Case(IMAGE, lambda net, x: net.conv(x), conv=lambda: SmallConv(4, 3)),
    "optional arguments": Case(VECTOR, lambda net, x: net.again(x), again=SameAgain),
    "in-place shortcut": Case(VECTOR, shortcut_changed_in_place, fc=lambda: nn.Linear(8, 8)),
    "in-place layer": Case(
        VECTOR,
        layer_changes_in_place,
        fc=lambda: nn.Linear(8, 8),
        act=lambda: nn.ELU(inplace=True),
    ),
    "ReLU behind a pool": Case(IMAGE, lambda net, x: F.relu(F.max_pool2d(x, 2))),
    "limits behind limits": Case(
        VECTOR, lambda net, x: net.fc(x).relu().clamp(-5, -1) + net.fc(x).clamp(0, 6).clamp(min=7),
        fc=lambda: nn.Linear(8, 8)),
    "names of a dictionary": Case(
        VECTOR, lambda net, x: net.training_(net.values(net.keys(x))).relu(),
        keys=lambda: nn.Linear(8, 4), values=lambda: nn.Linear(4, 4), training_=lambda: nn.Linear(4, 4)),
}  # fmt: skip

CASES = {**ARITHMETIC, **WEIGHTED, **WIRING}


@pytest.mark.parametrize("name", CASES)
def test_the_converted_network_computes_the_same(name: str) -> None:
    case = CASES[name]
    net = case.build()
    x = torch.randn(ROWS, *case.shape)
    wanted = net(x.clone())
    built = quant_network(net, case.shape, qb.Precision())
    torch.testing.assert_close(built.without_rounding(x), wanted, rtol=1e-5, atol=1e-5)
    # in training too, where nothing is dropped or rounded.
    built.train()
    for _, quantizer in built.quantizers():
        quantizer.quantizing = False
    if not any(isinstance(layer, nn.Dropout | nn.Dropout2d | nn.AlphaDropout) for layer in built.modules()):
        torch.testing.assert_close(built(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_eight_bits_stay_near_and_the_program_agrees(name: str) -> None:
    """Codes in evaluation lie within a few steps of the float network, and the program has the same codes."""
    case = CASES[name]
    net = case.build()
    torch.manual_seed(1)
    x = torch.randn(64, *case.shape)
    features = net(x.clone()).flatten(1).shape[1]
    whole = nn.Sequential(net, nn.Flatten(), nn.Linear(features, 3))
    task = qb.Task.from_arrays(x, torch.arange(64) % 3, kind="classification")
    posterior = qb.NetworkPosterior(whole, [whole.state_dict()], task.signature)
    quantised = qb.quantize(posterior, task, _PLAIN, tuning(epochs=0, batch_size=64), progress=False)
    inputs = task.signature.transform.apply(x)
    wanted, got = posterior.network(inputs), quantised.network(inputs)
    assert float((got - wanted).abs().mean()) < 0.05 * float(wanted.std() + 0.05)
    answers = qb.load(qb.lower(quantised), "reference").predict(x, draws=1)
    assert torch.equal(answers.draws, quantised.predict(x, draws=1).draws)


_PLAIN = qb.Precision(weight_range="minmax", activation_range="minmax")


def doubled(layer: nn.Module, given: Any, y: Any) -> Any:
    return 2 * y


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)
        self.fc.register_forward_hook(doubled)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Remembering(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.seen.add_(1.0)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.start.clone().normal_()

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(8))


def half_changed(net: Any, x: Tensor) -> Tensor:
    y = x * 2.0
    y[:, :4].relu_()
    return y + 1.0


REFUSED: dict[str, tuple[Case | Callable[[], nn.Module], str]] = {
    "another rank": (Case(VECTOR, lambda net, x: x * x[:, None]), "same number of axes"),
    "rows": (Case(IMAGE, lambda net, x: x.flatten(0, 1)), "keep the batch on the first axis"),
    "rows cut": (Case(VECTOR, lambda net, x: x[:2]), "shape"),
    "mean of all": (Case(IMAGE, lambda net, x: x * x.mean()), "shape"),
    "three spatial axes": (Case((2, 2, 4, 4), lambda net, x: x.mean((2, 3, 4))), "1 or 2 spatial axes"),
    "pool without rows": (Case((6, 6), lambda net, x: F.max_pool2d(x, 2)), "a pooling of rows"),
    "clamp to tensors": (Case(VECTOR, lambda net, x: x.clamp(min=x.abs())), "clamp between tensors"),
    "clamp upside down": (Case(VECTOR, lambda net, x: x.clamp(2, 1)), "low ≤ high"),
    "circular": (
        Case(IMAGE, lambda net, x: net.conv(x),
             conv=lambda: nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular")),
        "mode 'circular' at 'conv'",
    ),
    "negative padding": (Case(IMAGE, lambda net, x: F.pad(x, (-1, 0))), "at 'pad'"),
    "reflection of a vector": (Case(VECTOR, lambda net, x: F.pad(x, (2, 2), mode="reflect")), "reflect"),
    "slopes": (Case(IMAGE, lambda net, x: net.act(x), act=lambda: nn.PReLU(4)), "single slope"),
    "positions": (Case(IMAGE, lambda net, x: x + net.place, place=parameter(4, 6, 6)), "by channel only"),
    "hook": (Hooked, "hooks, which may change what it computes at 'fc'"),
    "state": (Remembering, "no state between calls"),
    "noise on a constant": (Noisy, "normal_"),
    "half in place": (Case(VECTOR, half_changed), "of which a part was changed in place"),
    "tuple": (Case(VECTOR, lambda net, x: (x, x)), "one tensor or a dict"),
    "constant head": (Case(VECTOR, lambda net, x: {"mean": x, "log_variance": net.v}, v=parameter(8)), "v"),
    "maximum with places": (Case(VECTOR, lambda net, x: x.max(1)[0]), "a call of max"),
    "statistics of the batch": (
        Case(IMAGE, lambda net, x: net.norm(x), norm=lambda: nn.BatchNorm2d(4, track_running_stats=False)),
        "without running statistics at 'norm'",
    ),
    "two inputs": (Case(VECTOR, lambda net, x: net.two(x), two=lambda: nn.Bilinear(8, 8, 2)), ""),
    "weight norm": (
        Case(VECTOR, lambda net, x: net.fc(x),
             fc=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))),
        "ParametrizedLinear at 'fc'",
    ),
    "softmax that nobody reads": (Case(VECTOR, lambda net, x: (torch.softmax(x, 1), x * 2)[1]), "softmax"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_integers_is_refused_before_any_training(name: str) -> None:
    given, said = REFUSED[name]
    net, shape = (given.build(), given.shape) if isinstance(given, Case) else (given().eval(), VECTOR)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(BadInput) as refusal:
        quant_network(net, shape, qb.Precision())
    assert said in str(refusal.value)
    assert all(part for part in (refusal.value.must, refusal.value.got, refusal.value.do))
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_a_layer_keeps_its_name_beside_calls_and_the_input() -> None:
    """An override must reach the layer called 'input' or 'add', not the call that torch names so."""
    case = Case(
        VECTOR,
        lambda net, x: net.add(x + net.input(x)),
        input=lambda: nn.Linear(8, 8),
        add=lambda: nn.Linear(8, 2),
    )
    graph = graph_of(case.build(), torch.zeros(3, 8))
    kinds = {node.name: node.kind for node in graph.nodes}
    assert kinds == {"input@2": "input", "input": "weighted", "add@2": "add", "add": "weighted"}
    precision = qb.Precision(overrides={"input": {"weight": 3}, "add": {"weight": 5}})
    built = quant_network(case.build(), VECTOR, precision)
    bits = {name: quantizer.bits for name, quantizer in built.quantizers() if "weights" in name}
    assert bits == {"input.weights.quantizer": 3, "add.weights.quantizer": 5}


def test_the_second_call_of_a_layer_is_of_that_layer() -> None:
    case = Case(VECTOR, lambda net, x: net.fc(net.fc(x).relu()), fc=lambda: nn.Linear(8, 8))
    graph = graph_of(case.build(), torch.zeros(3, 8))
    assert [(node.name, node.layer) for node in graph.nodes if node.kind == "weighted"] == [
        ("fc", "fc"),
        ("fc@2", "fc"),
    ]
    built = quant_network(case.build(), VECTOR, qb.Precision(overrides={"fc": {"activation": 3}}))
    out = {name: quantizer.bits for name, quantizer in built.quantizers() if name.endswith(".out")}
    assert out == {"input.out": 8, "fc.out": 3, "fc@2.out": 3}


def test_what_learnt_in_the_float_network_learns_on() -> None:
    """A posterior's own parameters are frozen; those of the network made from it are not."""
    case = Case(
        VECTOR,
        lambda net, x: net.act(net.norm(net.fc(x).relu()) * net.gain),
        fc=lambda: nn.Linear(8, 4),
        norm=lambda: nn.BatchNorm1d(4),
        gain=parameter(4),
        act=nn.PReLU,
    )
    frozen = case.build().requires_grad_(False)
    built = quant_network(frozen, VECTOR, qb.Precision(weight_range="minmax", activation_range="minmax"))
    built.train()(torch.randn(16, *VECTOR)).square().sum().backward()
    learning = {name for name, value in built.named_parameters() if value.grad is not None}
    assert learning == {
        "layers.fc.weights.weight",
        "layers.fc.weights.bias",
        "layers.norm.gain",
        "layers.norm.offset",
        "layers.mul.gain",
        "layers.mul.offset",
        "layers.act.function.weight",
    }
