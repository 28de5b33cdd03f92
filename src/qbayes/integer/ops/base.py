"""What an op is: one class that says all that programs, proofs, backends and targets need to know of it.

A *value* is an activation tensor of codes ``0 … 2^n − 1`` in uint8; what a code means, ``f = S (q − Z)``, is
known from the member's scale and zero-point of that value. Two kinds of values may be *wide*, with n of
9 … 16 and codes held in int32: the answers of a weighted op that no other op reads, and the input, also
reshaped, permuted or sliced, where weighted ops alone read it. An *op* reads values and writes one; its
numbers are *constants*, integers of a declared width, one set for each member. ``Op.run`` is the definition
of truth: exact integers, done in float lanes where a bound proves them exact. Backends may run an op another
way, and state how far they stray.

A new op is a class with the decorator ``register_op``. It must say its bound: without one nothing can be
proven of a program that has it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.integer.arithmetic.fixed_point import LARGEST_SHIFT
from qbayes.integer.arithmetic.grid import MOST_BITS

ACCUMULATOR_LIMIT = (1 << 31) - 1
PRODUCT_LIMIT = (1 << 62) - 1
LARGEST_VALUE = 1 << 28  # elements of one row
MOST_WINDOWS = 1 << 22  # of an average pooling, which are listed one by one
DO = "lower the network again; if the program came from a file, it was damaged or made by hand"


@dataclass(frozen=True)
class Bound:
    """The largest sum that int32 must hold, and the largest product or sum of products for int64."""

    accumulator: int = 0
    product: int = 0


def require(holds: bool, must: str, got: object) -> None:
    """Raise BadInput unless the condition of a proof holds."""
    if not holds:
        raise BadInput(must, f"{got}"[:200], DO)


def reach(bits: int, zero: int) -> int:
    """The largest ``|q − Z|``."""
    return max(zero, (1 << bits) - 1 - zero)


def pad_lengths(shape: Sequence[int], padding: Sequence[int]) -> list[int]:
    """The lengths of a row of channels × axes with padding before and after each axis."""
    return [*shape[:1], *(n + 2 * p for n, p in zip(shape[1:], padding, strict=False))]


def check_padded(op: str, shape: Sequence[int], padding: Sequence[int]) -> None:
    """Raise where a row with its padding is absurdly large."""
    count = math.prod(pad_lengths(shape, padding))
    require(count <= LARGEST_VALUE, f"'{op}': a padded row must be below 2^28 elements", count)


def largest(codes: Tensor) -> int:
    """The largest magnitude of integers."""
    return int(codes.long().abs().max())


Constants = Mapping[str, Tensor]
Shape = tuple[int, ...]
# multiplications that one element takes as long as.
ELEMENT = 64


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

    @property
    def reaches(self) -> list[int]:
        """The largest ``|q − Z|`` of each input."""
        return [reach(bits, zero) for bits, zero in zip(self.bits, self.zeros, strict=True)]


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
    """One operation of a program.

    Its class says all about it, as attributes and methods; no other module keeps a list of ops.

    Example:
        >>> op = OPS["reshape"]("flatten", ("input",), "flatten", (64,))
        >>> op.label, op.out_shape([(1, 8, 8)]), op.keeps_grid
        ('reshape', (64,), True)

    Attributes:
        name: The layer's name in the network, unique in a program.
        inputs: The values that it reads, by name.
        output: The value that it writes.
    """

    # the name of the op in files and reports.
    kind: ClassVar[str]
    # bytes that ``run`` takes for each element that it reads and for each that it writes: the most it held.
    lanes: ClassVar[tuple[int, int]]
    # codes are moved or chosen, none is computed: the output has the bits, scale and zero-point of the input.
    keeps_grid: ClassVar[bool] = False
    # codes only change their places.
    moves_codes: ClassVar[bool] = False
    # hands on codes of any width, also wider than a byte.
    carries_wide: ClassVar[bool] = False
    # computes with codes wider than a byte, and can make such codes.
    computes_wide: ClassVar[bool] = False
    # the output is the input in the same memory.
    is_view: ClassVar[bool] = False
    # a code depends on the codes at its own place alone: it can be written over them.
    in_place: ClassVar[bool] = False

    name: str
    inputs: tuple[str, ...]
    output: str

    @property
    def is_stochastic(self) -> bool:
        """Whether the op draws noise."""
        return False

    @property
    def label(self) -> str:
        """What the op does, in a few words for people."""
        return self.kind.replace("_", " ")

    @property
    def weight_count(self) -> int:
        """How many weights the op has; a Gaussian one counts once."""
        return 0

    @property
    def weight_bits(self) -> tuple[int, ...]:
        """The bits of a weight, of a Gaussian one those of μ and σ; none without weights."""
        return ()

    def constants(self, values: Mapping[str, Value]) -> tuple[Constant, ...]:
        """The integer constants of this op, in the order in which a file holds them; none by default.

        Args:
            values: Shape and bits of every activation of the program, by name.
        """
        return ()

    @abstractmethod
    def out_shape(self, shapes: Sequence[Shape]) -> Shape:
        """The shape of one output row; raises BadInput where the inputs do not fit.

        Args:
            shapes: The shapes of one row of each input.
        """

    @abstractmethod
    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        """The output's codes, exactly.

        Args:
            inputs: The inputs' codes, each of ``type_of_codes``.
            grids: Zero-points and widths around the op.
            constants: The integer constants by name.
            noise: Which noise the op draws.
        """

    @abstractmethod
    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        """How large the sums and products become for any input; ``Bound()`` without any.

        Args:
            constants: The integer constants by name.
            grids: Zero-points and widths around the op.
            shapes: The shapes of one row of each input.
        """

    def check_size(self, shapes: Sequence[Shape]) -> None:  # noqa: B027  (most ops ask for no more than their values)
        """Raise where computing the shape, or running the op, would ask for absurd amounts of memory.

        Args:
            shapes: The shapes of one row of each input.
        """

    def limits(self, name: str, grids: Grids) -> tuple[int, int] | None:
        """The range in which a constant must lie by what it is for; None: all that its bits hold.

        Args:
            name: The constant's name.
            grids: Zero-points and widths around the op.
        """
        if name in ("shift", "shifts") or name.endswith("_shift"):
            return 0, LARGEST_SHIFT
        if "multiplier" in name or name == "mix":
            return -ACCUMULATOR_LIMIT, ACCUMULATOR_LIMIT
        if name in ("low", "high", "fill"):
            return 0, (1 << grids.out_bits) - 1
        return None

    def sites(self) -> list[tuple[int, object]]:
        """Each site that the op draws from, with what must be the same for another op to share it."""
        return []

    def macs(self, values: Mapping[str, Value]) -> int:
        """Multiply-accumulates for one row and one draw; 0 by default.

        Args:
            values: Shape and bits of every activation of the program, by name.
        """
        return 0

    def window_count(self, out: Shape) -> int:
        """Windows that are listed one by one; 0 by default.

        Args:
            out: The shape of one output row.
        """
        return 0

    def elements_read(self, shapes: Sequence[Shape], out: Shape) -> int:
        """Elements of the largest input as the op sees it: with padding, and what lies between two axes.

        Args:
            shapes: The shapes of one row of each input.
            out: The shape of one output row.
        """
        return max(math.prod(shape) for shape in shapes)

    def operations(self, shapes: Sequence[Shape], out: Shape, macs: int) -> int:
        """Multiplications, and ``ELEMENT`` for each element that is read or written.

        Args:
            shapes: The shapes of one row of each input.
            out: The shape of one output row.
            macs: What the method ``macs`` gave.
        """
        elements = max(self.elements_read(shapes, out), math.prod(out))
        return macs + ELEMENT * elements * max(1, len(self.inputs))

    def lane_bytes(self, shapes: Sequence[Shape], out: Value) -> int:
        """Bytes that the op takes for one row while it runs, beside the codes of its inputs and its output.

        Args:
            shapes: The shapes of one row of each input.
            out: The value that it writes.
        """
        read, written = self.lanes
        taken = read * self.elements_read(shapes, out.shape) + written * math.prod(out.shape)
        return taken if out.bits <= MOST_BITS else 4 * taken

    def bytes_for_all_rows(self, out: Shape) -> int:
        """Bytes that the op takes besides, for all rows together; 0 by default.

        Args:
            out: The shape of one output row.
        """
        return 0


OPS: dict[str, type[Op]] = {}
OpClass = TypeVar("OpClass", bound=type[Op])


def register_op(op: OpClass) -> OpClass:
    """A decorator of classes: from here on programs may have such ops, also those that are read from files.

    Refused are a class that leaves something out, such as its bound, and a kind that another class has.
    """
    missing = sorted(op.__abstractmethods__)
    missing += [name for name in ("kind", "lanes") if not hasattr(op, name)]
    if missing:
        raise BadInput(
            "the class of an op must say all that a proof needs",
            f"{op.__name__} without {', '.join(missing)}",
            "define it, or derive from MovingOp where codes only change their places",
        )
    if OPS.setdefault(op.kind, op) is not op:
        raise BadInput("ops must be of different kinds", f"'{op.kind}' again", "choose another kind")
    return op


@dataclass(frozen=True)
class MovingOp(Op):
    """An op that only puts codes at other places: ``move`` is all that it has to say.

    The same ``move`` acts on the floats of training and on codes.
    """

    lanes: ClassVar[tuple[int, int]] = (0, 4)
    keeps_grid: ClassVar[bool] = True
    moves_codes: ClassVar[bool] = True

    @abstractmethod
    def move(self, x: Tensor) -> Tensor:
        """The rows of ``x`` (any type of number) with their elements at their new places."""

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        return self.move(inputs[0])

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound()


def type_of_codes(bits: int) -> torch.dtype:
    """uint8 for codes of up to 8 bits, int32 for wide ones: torch computes little in uint16."""
    return torch.uint8 if bits <= MOST_BITS else torch.int32


def clamp_codes(codes: Tensor, constants: Constants, bits: int = MOST_BITS) -> Tensor:
    """``clamp(q, low, high)`` in the type of ``bits`` bits; ``codes`` are integers in any type."""
    low, high = int(constants["low"]), int(constants["high"])
    return codes.clamp(low, high).to(type_of_codes(bits))
