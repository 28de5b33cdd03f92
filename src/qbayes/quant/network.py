"""The fake-quantised network: the graph's nodes as layers, run in order."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qbayes.quant.coded import Coded
from qbayes.quant.layers.base import QuantLayer
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.quantizer import Quantizer


@dataclass(frozen=True)
class Step:
    """One layer's place in the network: its name, and the names of the steps that it reads."""

    name: str
    inputs: tuple[str, ...]


Watch = Callable[[Step, QuantLayer, Sequence[Coded], Coded], None]


class QuantNetwork(nn.Module):
    """Layers in the order they run; ``heads`` says which of them answer (``""``: a single tensor).

    In training it simulates quantisation in float; switched to evaluation it settles its grids and then
    computes on codes, rounding like the integer program that it becomes.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        layers: Sequence[QuantLayer],
        heads: dict[str, str],
        input_shape: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.steps = tuple(steps)
        # dots are not allowed in the names of a ModuleDict.
        named = zip(self.steps, layers, strict=True)
        self.layers = nn.ModuleDict({key_of(step.name): layer for step, layer in named})
        self.heads = dict(heads)
        self.input_shape = tuple(input_shape)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        return self.run(x)

    def run(self, x: Tensor, watch: Watch | None = None) -> Tensor | dict[str, Tensor]:
        """The answers; ``watch`` is shown each layer with its inputs and output (evaluation only)."""
        values: dict[str, Any] = {}
        for step in self.steps:
            layer = self.layers[key_of(step.name)]
            inputs = [values[name] for name in step.inputs] if step.inputs else [x]
            values[step.name] = layer(*inputs)
            if watch is not None and step.inputs:
                assert isinstance(layer, QuantLayer)
                watch(step, layer, inputs, values[step.name])
        answers = {head: _real(values[name]) for head, name in self.heads.items()}
        return answers[""] if list(answers) == [""] else answers

    def layer(self, name: str) -> QuantLayer:
        found = self.layers[key_of(name)]
        assert isinstance(found, QuantLayer)
        return found

    def train(self, mode: bool = True) -> "QuantNetwork":
        settles = self.training and not mode and self.is_ready
        super().train(mode)
        if settles:
            self.settle()
        return self

    @property
    def is_ready(self) -> bool:
        """Whether every range has seen data."""
        return all(bool(quantizer.ready) for _, quantizer in self.quantizers())

    def check_ready(self) -> None:
        for name, quantizer in self.quantizers():
            quantizer.require_ready(name)

    @torch.no_grad()
    def settle(self) -> None:
        """Make what depends on several ranges final: scales that a bias needs larger, the noise's grids."""
        device = next((value.device for value in self.state_dict().values()), torch.device("cpu"))
        values: dict[str, Any] = {}
        for step in self.steps:
            layer = self.layer(step.name)
            inputs = [values[name] for name in step.inputs]
            if isinstance(layer, QuantWeighted):
                layer.settle(inputs[0])
            first = torch.zeros(1, *self.input_shape, device=device)
            values[step.name] = layer.compute(*(inputs or [first]))  # pyright: ignore[reportArgumentType]

    def quantizers(self) -> Iterator[tuple[str, Quantizer]]:
        """All quantisers, named by their layer and what they round."""
        for name, module in self.named_modules():
            if isinstance(module, Quantizer):
                yield name.removeprefix("layers.").replace("/", "."), module

    @contextlib.contextmanager
    def calibrating(self) -> Iterator[None]:
        """Within this block ranges of activations are set by what passes, and activations are not rounded.

        Those of weights are set at once, from the weights themselves.
        """
        self.train()
        for layer in self.layers.values():
            if isinstance(layer, QuantWeighted):
                layer.weights.calibrate()
        for _, quantizer in self.quantizers():
            quantizer.calibrating, quantizer.quantizing = not quantizer.weight, quantizer.weight
            quantizer.observing = False
        try:
            yield
        finally:
            for _, quantizer in self.quantizers():
                quantizer.calibrating, quantizer.quantizing = False, True
                quantizer.observing = True

    def observe(self, on: bool) -> None:
        """Let ranges follow the data in training, or freeze them."""
        for _, quantizer in self.quantizers():
            quantizer.observing = on

    def learned_scales(self) -> list[nn.Parameter]:
        """Step sizes that are trained: an optimiser group of their own, without weight decay."""
        return [q.scale for _, q in self.quantizers() if isinstance(q.scale, nn.Parameter)]


def key_of(name: str) -> str:
    return name.replace(".", "/")


def _real(value: Tensor | Coded) -> Tensor:
    return value.real if isinstance(value, Coded) else value
