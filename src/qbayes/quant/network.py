"""The fake-quantised network: the graph's nodes as layers, run in order."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput
from qbayes.quant.layers.base import Coded, QuantLayer, Span
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
    ) -> None:
        super().__init__()
        self.steps = tuple(steps)
        # dots are not allowed in the names of a ModuleDict.
        named = zip(self.steps, layers, strict=True)
        self.layers = nn.ModuleDict({key_of(step.name): layer for step, layer in named})
        self.heads = dict(heads)
        # part of the state: what was saved in training still has to settle where it is loaded.
        self.register_buffer("settled", torch.zeros((), dtype=torch.bool))
        # of class scores: what ``qbayes.quant.finetune.temperature`` multiplies them by.
        self.register_buffer("sharpness", torch.ones(()))
        self.register_load_state_dict_post_hook(_settle_loaded)
        self.is_calibrating = False
        # whether an evaluation has been found to have ranges.
        self._checked = False

    settled: Tensor
    sharpness: Tensor
    # buffers that posteriors saved by earlier versions lack: they had the values of a new network.
    added_later: ClassVar[tuple[str, ...]] = ("sharpness",)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        return self.run(x)

    def run(self, x: Tensor, watch: Watch | None = None) -> Tensor | dict[str, Tensor]:
        """The answers; ``watch`` is shown each layer with its inputs and output (evaluation only)."""
        if not self.training and not self._checked:
            self.check_ready()
            self._checked = True
        values: dict[str, Any] = {}
        for step in self.steps:
            layer = self.layer(step.name)
            inputs: list[Any] = [values[name] for name in step.inputs] if step.inputs else [x]
            values[step.name] = (
                self._call_layer(step, layer, inputs) if self.is_calibrating else layer(*inputs)
            )
            if watch is not None and step.inputs:
                watch(step, layer, inputs, values[step.name])
        return self._answers({name: self._sharpen(values[name]) for name in self.heads.values()})

    def _sharpen(self, value: Tensor | Coded) -> Tensor | Coded:
        """An answer times the sharpness: the same codes with another scale. Training knows nothing of it."""
        return value.times(self.sharpness) if isinstance(value, Coded) else value

    def _answers(self, values: Mapping[str, Tensor | Coded]) -> Tensor | dict[str, Tensor]:
        answers = {head: _real(values[name]) for head, name in self.heads.items()}
        return answers[""] if list(answers) == [""] else answers

    @staticmethod
    def _call_layer(step: Step, layer: QuantLayer, inputs: Sequence[Any]) -> Any:
        """The layer's answer; numbers that no range can be set from are told with its name."""
        try:
            return layer(*inputs)
        except BadInput as error:
            raise BadInput(error.must, f"{error.got} behind '{step.name}'", error.do) from None

    @torch.no_grad()
    def without_rounding(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        """The folded network in float, at its mean weights and without masks: what it was made from."""
        return self._answers(self.float_values(x))

    @torch.no_grad()
    def float_values(self, x: Tensor) -> dict[str, Tensor]:
        """What every layer of that float network gives, by name."""
        before = self.training
        nn.Module.train(self, False)
        switched = [quantizer for _, quantizer in self.quantizers() if quantizer.quantizing]
        for quantizer in switched:
            quantizer.quantizing = False
        values: dict[str, Tensor] = {}
        for step in self.steps:
            inputs = [values[name] for name in step.inputs] if step.inputs else [x]
            values[step.name] = self.layer(step.name).simulate(*inputs)
        for quantizer in switched:
            quantizer.quantizing = True
        nn.Module.train(self, before)
        return values

    def layer(self, name: str) -> QuantLayer:
        found = self.layers[key_of(name)]
        assert isinstance(found, QuantLayer)
        return found

    def train(self, mode: bool = True) -> "QuantNetwork":
        settles = self.training and not mode and self.is_ready
        super().train(mode)
        self._checked = False
        if mode:
            self.settled.fill_(False)
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
        """Make what depends on several ranges final: scales that must be larger, the noise's grids."""
        held = [layer.weights for layer in self.layers.values() if isinstance(layer, QuantWeighted)]
        # a second call of a layer may raise the weights' scale behind the first one's back.
        for _ in range(1 if len({id(weights) for weights in held}) == len(held) else 2):
            spans: dict[str, Span] = {}
            for step in self.steps:
                spans[step.name] = self.layer(step.name).settle(*(spans[name] for name in step.inputs))
        self.settled.fill_(True)

    def quantizers(self) -> Iterator[tuple[str, Quantizer]]:
        """All quantisers, named by their layer and what they round."""
        for name, module in self.named_modules():
            if isinstance(module, Quantizer):
                yield name.removeprefix("layers.").replace("/.", ".").replace("/", "."), module

    @contextlib.contextmanager
    def calibrating(self) -> Iterator[None]:
        """Within this block ranges of activations are set by what passes, and activations are not rounded.

        Those of weights are set at once, from the weights themselves.
        """
        self.train()
        for step in self.steps:
            layer = self.layer(step.name)
            if isinstance(layer, QuantWeighted):
                layer.weights.calibrate(step.name)
        self.is_calibrating = True
        for _, quantizer in self.quantizers():
            quantizer.calibrating, quantizer.quantizing = not quantizer.weight, quantizer.weight
            quantizer.observing = False
        try:
            yield
        finally:
            self.is_calibrating = False
            for _, quantizer in self.quantizers():
                quantizer.end_calibration()
                quantizer.calibrating, quantizer.quantizing = False, True
                quantizer.observing = True

    def without_quantisers(self) -> "QuantNetwork":
        """From now on no quantiser rounds, looks at data or learns: the folded network in float (itself)."""
        for _, quantizer in self.quantizers():
            quantizer.quantizing = quantizer.observing = False
            quantizer.requires_grad_(False)
        return self

    def observe(self, on: bool) -> bool:
        """Let ranges follow the data in training, or freeze them; gives back ``on``."""
        for _, quantizer in self.quantizers():
            quantizer.observing = on
        return on


def _settle_loaded(module: nn.Module, keys: object) -> None:
    """A state that was saved in training and is loaded in evaluation."""
    assert isinstance(module, QuantNetwork)
    if not module.training and module.is_ready and not bool(module.settled):
        module.settle()


def key_of(name: str) -> str:
    """The name under which a ModuleDict can hold a layer: without dots, and none of its own attributes."""
    key = name.replace(".", "/")
    return f"{key}/" if key in _TAKEN else key


_TAKEN = frozenset(dir(nn.ModuleDict()))


def _real(value: Tensor | Coded) -> Tensor:
    return value.real if isinstance(value, Coded) else value
