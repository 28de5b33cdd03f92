"""A range rule: which interval of numbers the codes of a tensor cover.

Activations are seen batch by batch, so a rule keeps a state of small tensors for them and its range follows
from the state. Weights are seen whole: their range is found anew from the tensor itself, without a state.
Rules are frozen values of pure functions; the quantiser keeps their state as its buffers.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from qbayes.registry import Registry

QUANTIZERS: Registry[type["RangeRule"]] = Registry("range quantiser", "qbayes.quant.observers")

State = dict[str, Tensor]
# elements of one batch that a search looks at; extremes are always taken over all of them.
MOST_ELEMENTS = 2**18


@dataclass(frozen=True)
class RangeRule(ABC):
    """Base of all range rules; the fields say on which codes the range will be laid.

    Example:
        >>> import torch
        >>> rule = QUANTIZERS["minmax"](bits=4, signed=False, symmetric=False)
        >>> x = torch.tensor([-1.0, 3.0])
        >>> state = rule.update(x, x.min(), x.max(), rule.init_state())
        >>> [float(end) for end in rule.batch_range(state)]
        [-1.0, 3.0]

    Attributes:
        bits: Bits of a code.
        signed: Whether codes have a sign, as those of weights.
        symmetric: Whether the grid is symmetric about 0.
    """

    name: ClassVar[str]
    # whether training moves the scale by its gradient, once data have set it.
    learned: ClassVar[bool] = False
    # whether the range itself, and not only its grid, depends on the bits.
    needs_bits: ClassVar[bool] = False
    # of a moving average of the batches' extremes, whose state is low, high and started: its constant.
    pace: ClassVar[float | None] = None
    # whether the range of weights is that of their extremes.
    extremes: ClassVar[bool] = False

    bits: int
    signed: bool
    symmetric: bool

    @abstractmethod
    def init_state(self) -> State:
        """The state before any batch."""

    @abstractmethod
    def update(self, x: Tensor, low: Tensor, high: Tensor, state: State) -> State:
        """The state after one more batch.

        It must not branch on the data, and may answer anything to a batch that is not finite (the quantiser
        forgets that answer).

        Args:
            x: The batch.
            low: Its exact minimum.
            high: Its exact maximum.
            state: The state before the batch; it is not changed.
        """

    @abstractmethod
    def batch_range(self, state: State) -> tuple[Tensor, Tensor]:
        """The range of the batches seen so far: two scalars.

        Args:
            state: The state after them.
        """

    @abstractmethod
    def row_range(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The range of each row of a matrix: lowest and highest number, one a row.

        Args:
            rows: The weights that share a scale, one row for each scale.
        """


def thin_out(x: Tensor) -> Tensor:
    """At most ``MOST_ELEMENTS`` of the elements of ``x``, evenly spaced and always the same ones.

    The stride is odd: an even one would keep to some columns of images whose width is a power of two.
    """
    stride = 2 * (-(-x.numel() // MOST_ELEMENTS) // 2) + 1
    return x.reshape(-1)[::stride]
