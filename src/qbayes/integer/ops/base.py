"""The second waist: a program is a short list of these operations on integer codes.

A *value* is an activation tensor of codes ``0 … 2^n − 1`` in uint8; what a code means, ``f = S (q − Z)``, is
known from the member's scale and zero-point of that value. Two kinds of values may be *wide*, with n of
9 … 16 and codes held in int32: the answers of a weighted op that no other op reads, and the input, also
reshaped, permuted or sliced, where weighted ops alone read it. An *op* reads values and writes one; its
numbers are *constants*, integers of a declared width, one set for each member. ``Op.run`` is the definition
of truth: exact integers, done in float lanes where a bound proves them exact. Backends may run an op another
way, and state how far they stray.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qbayes.quant.affine import MOST_BITS

Constants = Mapping[str, Tensor]


@dataclass(frozen=True)
class Value:
    """An activation: the shape of one row (without the batch) and the width of its codes."""

    name: str
    shape: tuple[int, ...]
    bits: int


@dataclass(frozen=True)
class Constant:
    """An integer constant that an op declares: name, shape, and the bits one element is packed to."""

    name: str
    shape: tuple[int, ...]
    bits: int
    signed: bool


@dataclass(frozen=True)
class Grids:
    """What the codes around an op mean for one member: zero-points and widths of inputs and output."""

    zeros: tuple[int, ...]
    zero: int
    bits: tuple[int, ...]
    out_bits: int


@dataclass(frozen=True, eq=False)
class Noise:
    """Which noise an op draws: the seed, the draws (int64 ids) and the rows of the folded batch.

    The batch is ``draws × rows`` with the draw as the outer part: row ``i`` of the batch belongs to draw
    ``draws[i // rows]`` and has the number ``first_row + i % rows``.
    """

    seed: int
    draws: Tensor
    first_row: int
    rows: int


@dataclass(frozen=True)
class Op(ABC):
    """One operation; ``name`` is the layer's name in the network, unique in a program."""

    kind: ClassVar[str]

    name: str
    inputs: tuple[str, ...]
    output: str

    @property
    def is_stochastic(self) -> bool:
        """Whether the op draws noise."""
        return False

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        """The integer constants of this op, in the order in which a file holds them."""
        return ()

    @abstractmethod
    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Shape of one output row from those of the inputs; raises BadInput where they do not fit."""

    @abstractmethod
    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        """The output's codes from the inputs' codes (each of ``type_of_codes``), exactly."""

    def macs(self, values: Mapping[str, Value]) -> int:
        """Multiply-accumulates for one row and one draw."""
        return 0


def type_of_codes(bits: int) -> torch.dtype:
    """uint8 for codes of up to 8 bits, int32 for wide ones: torch computes little in uint16."""
    return torch.uint8 if bits <= MOST_BITS else torch.int32


def clamp_codes(codes: Tensor, constants: Constants, bits: int = MOST_BITS) -> Tensor:
    """``clamp(q, low, high)`` in the type of ``bits`` bits; ``codes`` are integers in any type."""
    low, high = int(constants["low"]), int(constants["high"])
    return codes.clamp(low, high).to(type_of_codes(bits))
