"""What the registered networks have in common: their heads, and the checks of their options."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from qbayes.errors import BadInput, unknown_name

Kind = Literal["classification", "regression"]
Noise = Literal["row", "constant"]
# no tensor has an axis that long: their product would not fit the numbers that torch counts with.
_LARGEST = 1 << 31


class Network(nn.Module):
    """A plain network that ends in heads: ``logits``, or ``mean`` and perhaps ``log_variance``.

    - classification: one tensor of logits, ``(rows, classes)``;
    - regression, ``noise="row"``: a dict of ``mean`` and ``log_variance`` (v = exp(log_variance)), each
      ``(rows, *outputs)``, as in the paper;
    - regression, ``noise="constant"``: the mean alone; one noise for all rows is learned outside.

    ``paper_masks`` names the places of the paper's dropout: ``after:<module>`` or ``before:<module>``.

    Example:
        >>> network = Network()
        >>> network.add_heads(4, (10,), "classification", "row", bias=True)
        >>> tuple(network.answer(torch.zeros(2, 4)).shape)
        (2, 10)
    """

    paper_masks: tuple[str, ...]

    def add_heads(
        self, features: int, outputs: tuple[int, ...], kind: Kind, noise: Noise, bias: bool
    ) -> None:
        """Make the head layers.

        Args:
            features: Numbers that each head reads of a row.
            outputs: The number of classes, or the shape of the targets.
            kind: ``classification`` or ``regression``.
            noise: For a regression: ``row`` makes a head of the noise, ``constant`` makes none.
            bias: Whether the heads have a bias.

        Raises:
            BadInput: ``kind`` or ``noise`` is unknown, or a classifier's ``outputs`` is not one number.
        """
        check_choice("kind of task", kind, ("classification", "regression"))
        check_choice("noise option", noise, ("row", "constant"))
        if kind == "classification" and len(outputs) != 1:
            raise BadInput(
                "a classifier's outputs must be the number of classes", f"{outputs}", "give one integer"
            )
        regression = ("mean", "log_variance") if noise == "row" else ("mean",)
        self.heads = ("logits",) if kind == "classification" else regression
        self.outputs = outputs
        for head in self.heads:
            self.add_module(head, nn.Linear(features, math.prod(outputs), bias=bias))

    def answer(self, z: Tensor) -> Tensor | dict[str, Tensor]:
        """The heads' outputs: one tensor, or a dict where there are several heads.

        Args:
            z: Features, ``(rows, features)``.
        """
        answers = {head: self._reshape(self.get_submodule(head)(z)) for head in self.heads}
        return answers if len(answers) > 1 else answers[self.heads[0]]

    def _reshape(self, flat: Tensor) -> Tensor:
        return flat if len(self.outputs) == 1 else flat.unflatten(-1, self.outputs)


def check_choice(what: str, value: object, known: Sequence[str]) -> None:
    """Raise, with the nearest spelling, unless ``value`` is one of ``known``."""
    if value not in known:
        raise unknown_name(what, str(value), known)


def check_sizes(what: str, value: object, may_be_empty: bool = False) -> tuple[int, ...]:
    """``value`` as a tuple of positive integers of 31 bits; one integer is a tuple of itself."""
    given = (value,) if isinstance(value, int) else value
    sizes = tuple(given) if isinstance(given, list | tuple) else None
    if (
        sizes is None
        or not all(type(n) is int and 0 < n < _LARGEST for n in sizes)
        or not (sizes or may_be_empty)
    ):
        raise BadInput(
            f"the {what} must be positive integers below 2^31",
            repr(value),
            "give a tuple such as (100, 100), or one integer",
        )
    return sizes


def check_image(name: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """``input_shape`` as (channels, height, width), each side at least ``smallest`` pixels."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise BadInput(
            f"{name} reads images of shape (channels, height, width), at least {smallest} pixels a side",
            f"{input_shape}",
            "reshape the inputs to (rows, channels, height, width), or use the network 'mlp'",
        )
    channels, height, width = input_shape
    return channels, height, width


# what a network's own forward raises on inputs it was not made for.
_NETWORK_ERRORS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)


def run_example(network: nn.Module, example: Tensor) -> Any:
    """One forward pass without gradients; a failure names the shapes."""
    try:
        with torch.no_grad():
            return network(example)
    except _NETWORK_ERRORS as error:
        raise BadInput(
            f"the network must take inputs of shape (rows, {', '.join(map(str, example.shape[1:]))})",
            f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
            "give a network made for this task's inputs, in float32",
        ) from error
