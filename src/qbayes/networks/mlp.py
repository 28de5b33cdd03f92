"""A multi-layer perceptron, ``h_l = φ(W_l h_(l−1) + b_l)``; the paper's is 3×100 ReLU with two heads."""

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn

from qbayes.networks import NETWORKS
from qbayes.networks.base import Kind, Network, Noise, check_choice, check_sizes

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}


@NETWORKS.register("mlp")
class MLP(Network):
    """Inputs of any shape are flattened; ``hidden=()`` gives a linear model.

    Layers are called ``hidden.0``, ``hidden.1``, … and ``logits``, or ``mean`` and ``log_variance``.

    Args:
        input_shape: The shape of one row, without the batch.
        outputs: The number of classes, or the shape of the targets, as a tuple.
        kind: ``classification`` by default, or ``regression``.
        hidden: The widths of the hidden layers; three of 100 by default.
        activation: The function behind each of them; ``relu`` by default.
        noise: For a regression: ``row``, the default, has a head for the noise of each row; ``constant`` has
            none, and one noise is learned outside.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: tuple[int, ...],
        kind: Kind = "classification",
        *,
        hidden: Sequence[int] = (100, 100, 100),
        activation: str = "relu",
        noise: Noise = "row",
    ) -> None:
        super().__init__()
        widths = check_sizes("hidden widths", hidden, may_be_empty=True)
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.flatten = nn.Flatten()
        sizes = (math.prod(input_shape), *widths)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.activations = nn.ModuleList(ACTIVATIONS[activation]() for _ in widths)
        self.add_heads(sizes[-1], outputs, kind, noise, bias=True)
        # after ReLU 1 and 2 is before hidden layers 2 and 3; each head has a mask of its own.
        inner = tuple(f"before:hidden.{n}" for n in range(1, len(widths)))
        self.paper_masks = inner + tuple(f"before:{head}" for head in self.heads)

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        z = self.flatten(x)
        for layer, activation in zip(self.hidden, self.activations, strict=True):
            z = activation(layer(z))
        return self.answer(z)
