"""Every spelling of an operation gives what the float network gives, before any rounding."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from qbayes.errors import BadInput
from qbayes.quant.graph.convert_calls import CALLS, METHODS_OF_TENSORS
from qbayes.quant.graph.convert_modules import MODULES
from qbayes.quant.network import QuantNetwork
from qbayes.quant.precision import Precision
from qbayes.quant.prepare import quant_network

IMAGE, LINE, ROW = (4, 6, 6), (4, 12), (8,)
Shape = tuple[int, ...]
Step = Callable[[Any, Tensor], Tensor]


class Around(nn.Module):
    """A step behind a linear map of rows of 8, 4 × 12 or 4 × 6 × 6; its input is positive if so wanted."""

    def __init__(self, step: Step, shape: Shape, layer: nn.Module | None = None) -> None:
        super().__init__()
        maps = {1: nn.Linear(8, 8), 2: nn.Conv1d(4, 4, 1), 3: nn.Conv2d(4, 4, 1)}
        self.map, self.layer, self.step = maps[len(shape)], layer, step
        self.gain = nn.Parameter(torch.linspace(0.5, 2, shape[0]).view(-1, *(1,) * (len(shape) - 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, self.map(x))


def assert_same(network: nn.Module, shape: Shape) -> QuantNetwork:
    """In training mode with the quantisers off: the same answers and the same gradients."""
    made = quant_network(network.eval(), shape, Precision()).train()
    for _, quantizer in made.quantizers():
        quantizer.quantizing = quantizer.observing = False
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, wanted = made(ours), network(theirs)
    assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-5)
    if wanted.requires_grad:
        got.square().sum().backward()
        wanted.square().sum().backward()
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    return made


def positive(function: Callable[..., Tensor]) -> Step:
    return lambda net, x: function(x * x + 0.1)


SMOOTH = ("sigmoid", "tanh", "exp", "abs", "square", "neg", "sin", "cos", "expm1", "erf", "sign", "round")
POSITIVE = ("sqrt", "log1p")
POINTWISE = (
    F.silu, F.gelu, F.hardswish, F.hardsigmoid, F.elu, F.selu, F.celu, F.leaky_relu, F.softplus, F.mish,
    F.logsigmoid, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink, F.sigmoid, F.tanh, F.relu, F.relu6,
    F.hardtanh, torch.relu,
)  # fmt: skip
STEPS: dict[str, tuple[Step, Shape]] = {
    **{f"torch.{n}": ((lambda net, x, n=n: getattr(torch, n)(x)), ROW) for n in SMOOTH},
    **{f"x.{n}": ((lambda net, x, n=n: getattr(x, n)()), ROW) for n in SMOOTH},
    **{f"x.{n}_": ((lambda net, x, n=n: getattr(x * 1, f"{n}_")()), ROW) for n in (*SMOOTH, "relu")},
    **{f"torch.{n}": (positive(getattr(torch, n)), ROW) for n in POSITIVE},
    **{f"x.{n}": ((lambda net, x, n=n: getattr(x * x + 0.1, n)()), ROW) for n in POSITIVE},
    **{f"x.{n}_": ((lambda net, x, n=n: getattr(x * x + 0.1, f"{n}_")()), ROW) for n in POSITIVE},
    **{f"{f.__module__}.{f.__name__}": ((lambda net, x, f=f: f(x)), ROW) for f in POINTWISE},
    "threshold": (lambda net, x: F.threshold(x, 0.1, 0.0), ROW),
    "slope": (lambda net, x: F.leaky_relu(input=x, negative_slope=0.3), ROW),
    "tanh gelu": (lambda net, x: F.gelu(x, approximate="tanh"), ROW),
    "in place": (lambda net, x: F.elu(x, 0.5, True), ROW),
    "pow": (lambda net, x: torch.pow(x, 2) + x**3 + x.pow(2) + (1 * x).pow_(2), ROW),
    "-x": (lambda net, x: -x, ROW),
    "x + y": (lambda net, x: x + x * 2, ROW),
    "torch.add": (lambda net, x: torch.add(x, x.tanh(), alpha=-0.5), ROW),
    "x.add": (lambda net, x: x.add(x.tanh(), alpha=2).add_(1), ROW),
    "x += y": (lambda net, x: operator.iadd(x, x.tanh()), ROW),
    "x - y": (lambda net, x: (2 - x) - x.tanh(), ROW),
    "torch.sub": (lambda net, x: torch.sub(x, x.tanh(), alpha=0.5), ROW),
    "torch.subtract": (lambda net, x: torch.subtract(x, 1.5), ROW),
    "x.sub": (lambda net, x: x.sub(x.tanh()).sub_(0.5).subtract(1), ROW),
    "x -= y": (lambda net, x: operator.isub(x, x.tanh()), ROW),
    "x * y": (lambda net, x: x * x.tanh(), ROW),
    "torch.mul": (lambda net, x: torch.mul(torch.multiply(x, 2), x), ROW),
    "x.mul": (lambda net, x: x.mul(x.tanh()).mul_(2).multiply(0.5).multiply_(3), ROW),
    "x *= y": (lambda net, x: operator.imul(x, x.tanh()), ROW),
    "a gate": (lambda net, x: x * x.mean((2, 3), keepdim=True).sigmoid(), IMAGE),
    "a gate from the left": (lambda net, x: x[:, :1].sigmoid() * x, IMAGE),
    "x / 2": (lambda net, x: torch.divide(torch.div(x / 2, 3), 0.5), ROW),
    "x.div": (lambda net, x: x.div(2).div_(0.5), ROW),
    "x /= 2": (lambda net, x: operator.itruediv(x, 3), ROW),
    "2 / x": (lambda net, x: 2 / (x * x + 1), ROW),
    "a parameter": (lambda net, x: (net.gain * x - net.gain) / net.gain + net.gain, IMAGE),
    "a parameter first": (lambda net, x: net.gain - x, IMAGE),
    "a constant": (lambda net, x: x * torch.tensor(0.5) + torch.ones(4, 1, 1), IMAGE),
    "relu_": (lambda net, x: torch.relu_(x * 1) + F.relu_(x * 2) + x.relu(), ROW),
    "clamp": (lambda net, x: torch.clamp(x, -0.3, 0.4) + torch.clip(x, max=0.2), ROW),
    "x.clamp": (lambda net, x: x.clamp(min=-0.1) + x.clip(0, 1) + (x * 1).clamp_(max=0.3), ROW),
    "clamps": (lambda net, x: x.clamp(0, 6).clamp(-3, -1), ROW),
    "hardtanh": (lambda net, x: F.hardtanh(x, -0.2, 0.7), ROW),
    "cat": (lambda net, x: torch.cat([x, x.tanh()], 1), IMAGE),
    "concat": (lambda net, x: torch.concat((x, x.tanh()), dim=-1), IMAGE),
    "concatenate": (lambda net, x: torch.concatenate((x, x.tanh()), axis=2), IMAGE),
    "cat by name": (lambda net, x: torch.cat(tensors=(x, x), dim=1), IMAGE),
    "max_pool2d": (lambda net, x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE),
    "torch.max_pool2d": (lambda net, x: torch.max_pool2d(x, (2, 3)), IMAGE),
    "max_pool1d": (lambda net, x: F.max_pool1d(x, 3, stride=2, padding=1, dilation=2), LINE),
    "torch.max_pool1d": (lambda net, x: torch.max_pool1d(x, 2), LINE),
    "avg_pool2d": (lambda net, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE),
    "avg_pool1d": (lambda net, x: F.avg_pool1d(x, 3, 2, 1, True), LINE),
    "divisor": (lambda net, x: F.avg_pool2d(x, 2, divisor_override=3), IMAGE),
    "adaptive average": (lambda net, x: F.adaptive_avg_pool2d(x, (4, 1)), IMAGE),
    "adaptive average 1d": (lambda net, x: F.adaptive_avg_pool1d(x, 5), LINE),
    "adaptive maximum": (lambda net, x: F.adaptive_max_pool2d(x, (3, 1)), IMAGE),
    "adaptive maximum 1d": (lambda net, x: F.adaptive_max_pool1d(x, 4), LINE),
    "mean": (lambda net, x: torch.mean(x, (2, 3)), IMAGE),
    "x.mean": (lambda net, x: x.mean(-1, keepdim=True), LINE),
    "mean of a row": (lambda net, x: x.mean(1, keepdim=True), ROW),
    "flatten": (lambda net, x: torch.flatten(x, 1), IMAGE),
    "reshape": (lambda net, x: torch.reshape(x, (x.shape[0], 2, -1)), IMAGE),
    "view": (lambda net, x: x.view(x.size(0), -1).unflatten(1, (4, 36)).flatten(1), IMAGE),
    "torch.unflatten": (lambda net, x: torch.unflatten(x, 1, (2, 2)).reshape(x.shape[0], -1), IMAGE),
    "squeeze": (lambda net, x: torch.squeeze(torch.unsqueeze(x, 2), 2), LINE),
    "x.squeeze": (lambda net, x: x.unsqueeze(1).squeeze(1), LINE),
    "nothing": (lambda net, x: x.contiguous().clone().float().to(torch.float32).type_as(x), LINE),
    "permute": (lambda net, x: torch.permute(x, (0, 2, 3, 1)).permute(0, 3, 1, 2), IMAGE),
    "transpose": (lambda net, x: torch.transpose(x, 1, -1).transpose(2, 3), IMAGE),
    "swapaxes": (lambda net, x: torch.swapaxes(x, 1, 2).swapaxes(1, 2).swapaxes(-1, -2), IMAGE),
    "pad": (lambda net, x: F.pad(x, (1, 2, 0, 1)), IMAGE),
    "pad by a number": (lambda net, x: F.pad(x.relu(), (1, 2), value=-1.5), LINE),
    "reflect": (lambda net, x: F.pad(x, (1, 2, 0, 1), mode="reflect"), IMAGE),
    "replicate": (lambda net, x: F.pad(x, (1, 2), "replicate"), LINE),
    "interpolate": (lambda net, x: F.interpolate(x, scale_factor=2), IMAGE),
    "interpolate to": (lambda net, x: F.interpolate(x, size=(12, 18), mode="nearest-exact"), IMAGE),
    "slices": (lambda net, x: x[:, 1:3, ::2, -1], IMAGE),
    "an ellipsis": (lambda net, x: x[..., None, 2:5], LINE),
    "chunks": (lambda net, x: x.chunk(2, 1)[1] - torch.chunk(x, 2, dim=1)[0], IMAGE),
    "splits": (lambda net, x: x.split((1, 3), 1)[1].tanh(), IMAGE),
    "one name, two values": (lambda net, x: F.relu(x, inplace=True) + x, ROW),
    "a copy before": (lambda net, x: x.clone() - x.mul_(2), ROW),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    **{
        kind.__name__: (kind, ROW)
        for kind in MODULES
        if kind.__module__ == "torch.nn.modules.activation" and kind not in (nn.Threshold,)
    },
    "Threshold": (lambda: nn.Threshold(0.1, 0.0), ROW),
    "Identity": (nn.Identity, ROW),
    "Flatten": (nn.Flatten, IMAGE),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 4)), ROW),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, 2, 1), LINE),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 1, dilation=2, ceil_mode=True), IMAGE),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 2, 1, count_include_pad=False), LINE),
    "AvgPool2d": (lambda: nn.AvgPool2d((2, 3), ceil_mode=True), IMAGE),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(5), LINE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((1, None)), IMAGE),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), LINE),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), IMAGE),
    "ConstantPad1d": (lambda: nn.ConstantPad1d(2, 3.5), LINE),
    "ConstantPad2d": (lambda: nn.ConstantPad2d((0, 1, 2, 0), -2.0), IMAGE),
    "ZeroPad1d": (lambda: nn.ZeroPad1d((0, 2)), LINE),
    "ZeroPad2d": (lambda: nn.ZeroPad2d(1), IMAGE),
    "ReflectionPad1d": (lambda: nn.ReflectionPad1d(2), LINE),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d((1, 0, 2, 1)), IMAGE),
    "ReplicationPad1d": (lambda: nn.ReplicationPad1d((3, 0)), LINE),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d(2), IMAGE),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), LINE),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=3), IMAGE),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), LINE),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "Conv1d same": (lambda: nn.Conv1d(4, 6, 4, padding="same", padding_mode="replicate"), LINE),
    "Conv2d": (lambda: nn.Conv2d(4, 8, 3, 2, (0, 1), 1, 2, padding_mode="reflect"), IMAGE),
    "Linear on the last axis": (lambda: nn.Linear(12, 5), LINE),
    "Dropout2d": (lambda: nn.Dropout2d(0.0), IMAGE),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_that_of_the_float_network(name: str) -> None:
    step, shape = STEPS[name]
    assert_same(Around(step, shape), shape)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_that_of_the_float_network(name: str) -> None:
    make, shape = LAYERS[name]
    assert_same(Around(lambda net, x: net.layer(x), shape, make()), shape)


def test_every_spelling_that_is_known_is_tried() -> None:
    called: set[Any] = set()
    for step, shape in STEPS.values():
        called |= {node.target for node in fx.symbolic_trace(Around(step, shape)).graph.nodes}
    assert set(CALLS) <= called
    assert set(METHODS_OF_TENSORS) - called == {"detach"}  # the only one whose gradient is not ours
    assert set(MODULES) <= {type(make()) for make, _ in LAYERS.values()}


BAD: dict[str, tuple[Step, Shape, str]] = {
    "a name that changes both": (lambda net, x: (x, x.tanh(), operator.iadd(x, x))[1] + x, ROW, ""),
    "the number of rows": (lambda net, x: x / x.shape[0], ROW, ""),
    "a part changed in place": (lambda net, x: x[:, :2].relu_().sum() * 0 + x, IMAGE, ""),
    "circular": (lambda net, x: F.pad(x, (1, 1), mode="circular"), LINE, "circular"),
    "a cut": (lambda net, x: F.pad(x, (-1, 1)), LINE, "-1"),
    "a padding by infinity": (lambda net, x: F.pad(x, (1, 1), value=-torch.inf), LINE, "inf"),
    "rows joined": (lambda net, x: torch.cat([x, x], 0), ROW, "rows"),
    "rows moved": (lambda net, x: x.transpose(0, 1), ROW, ""),
    "a quotient": (lambda net, x: x / (x * x + 1), ROW, "quotient"),
    "floor division": (lambda net, x: torch.div(x, 2, rounding_mode="floor"), ROW, "rounds"),
    "a mean over channels": (lambda net, x: x.mean(1), IMAGE, "mean"),
    "a constant by position": (lambda net, x: x + torch.arange(6.0), IMAGE, "positions"),
    "limits that cross": (lambda net, x: x.clamp(1, -1), ROW, "clamp"),
    "bilinear": (lambda net, x: F.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE, "bilinear"),
    "half a factor": (lambda net, x: F.interpolate(x, size=9), LINE, "12"),
    "uneven maxima": (lambda net, x: F.adaptive_max_pool1d(x, 5), LINE, "uneven"),
    "an index": (lambda net, x: x[:, [0, 2]], ROW, "index"),
    "an axis too few": (lambda net, x: F.max_pool2d(x, 2), LINE, "(4, 12)"),
    "whole numbers": (lambda net, x: x.to(torch.int64).float(), ROW, "int64"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_expressed_is_refused_and_named(name: str) -> None:
    step, shape, says = BAD[name]
    with pytest.raises(BadInput) as told:
        quant_network(Around(step, shape).eval(), shape, Precision())
    assert says in told.value.got
    assert told.value.do
