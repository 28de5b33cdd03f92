"""Where a quantised network has bits to assign: the weights of its layers, and the activations they read."""

from dataclasses import dataclass
from typing import Literal

from qbayes.quant.layers.base import Requantised
from qbayes.quant.layers.elementwise import QuantInput, QuantNarrow
from qbayes.quant.layers.weighted import QuantWeighted
from qbayes.quant.network import QuantNetwork
from qbayes.quant.precision import Precision
from qbayes.quant.quantizer import Quantizer

Part = Literal["weight", "activation"]
WEIGHT: Part = "weight"
ACTIVATION: Part = "activation"


def layer_of(name: str) -> str:
    """The layer that a step belongs to: a second call of ``conv`` is the step ``conv@2``."""
    return name.partition("@")[0]


@dataclass(frozen=True)
class Place:
    """The weights of a layer, or the activation behind it: one number of bits."""

    part: Part
    layer: str


def quantizers_of(network: QuantNetwork) -> dict[Place, list[Quantizer]]:
    """The quantisers of each place: a layer that is called twice has one set of weights, two activations."""
    found: dict[Place, list[Quantizer]] = {}
    for step in network.steps:
        layer = network.layer(step.name)
        if isinstance(layer, QuantWeighted):
            held = [part for part in layer.weights.modules() if isinstance(part, Quantizer)]
            found[Place(WEIGHT, layer_of(step.name))] = held
        if isinstance(layer, Requantised):
            found.setdefault(Place(ACTIVATION, layer_of(step.name)), []).append(layer.out)
    return found


def sources(network: QuantNetwork) -> dict[str, str | None]:
    """For each step with weights the layer whose activation it reads; None: the network's input."""
    found: dict[str, str | None] = {}
    for step in network.steps:
        if isinstance(network.layer(step.name), QuantWeighted):
            computed = _computing_step(network, step.inputs[0])
            found[step.name] = None if isinstance(network.layer(computed), QuantInput) else layer_of(computed)
    return found


def free_places(network: QuantNetwork, precision: Precision, *, activations: bool) -> list[Place]:
    """The places whose bits can be chosen: all weights, and where asked for the activations they read.

    What an override of ``precision`` says by name stays, and so do answers, which have bits of their own.
    """
    read = {name for name in sources(network).values() if name is not None} if activations else set[str]()
    answers = {layer_of(_computing_step(network, name)) for name in network.heads.values()}
    return [
        place
        for place in quantizers_of(network)
        if not precision.overrides_bits(place.layer, place.part)
        and (place.part == WEIGHT or (place.layer in read and place.layer not in answers))
    ]


def narrow_layers(network: QuantNetwork, precision: Precision) -> list[str]:
    """The layers that round a value on its way to those that multiply it, unless an override names them."""
    found = [
        layer_of(step.name) for step in network.steps if isinstance(network.layer(step.name), QuantNarrow)
    ]
    return [layer for layer in dict.fromkeys(found) if not precision.overrides_bits(layer, ACTIVATION)]


def _computing_step(network: QuantNetwork, name: str) -> str:
    """The step that put the codes of ``name`` on their grid: all others only move them, and read one step."""
    inputs = {step.name: step.inputs for step in network.steps}
    while not isinstance(network.layer(name), Requantised | QuantInput):
        (name,) = inputs[name]
    return name
