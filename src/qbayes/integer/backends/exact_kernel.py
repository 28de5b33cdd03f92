"""Kernels of exact integers, ``Op.run`` for every op: all of the reference, and what other backends leave."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.c_library import threads_for
from qbayes.integer.ops.base import Constants, Grids, Noise, Op
from qbayes.integer.ops.weighted import Weighted


class ExactKernel(Kernel):
    """``Op.run`` as it stands."""

    is_exact = True

    def __init__(self, op: Op, grids: Grids, constants: Constants, why: str = "") -> None:
        super().__init__(op, grids, constants, "exact", why)

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        return self.op.run(inputs, self.grids, self.constants, noise)


class ExactWeighted(Kernel):
    """``Weighted.run`` with draws that are made once and serve any number of rows."""

    takes_shared = True
    is_exact = True

    def __init__(self, op: Weighted, grids: Grids, constants: Constants, why: str = "") -> None:
        super().__init__(op, grids, constants, "exact", why)
        self.weighted = op
        self._points = None if op.is_stochastic else op.weights.draw(constants, 0, 0)

    @property
    def draws_weights(self) -> bool:
        return self._points is None

    def draw(self, seed: int, draw: int) -> Drawn:
        threads = threads_for(math.prod(self.weighted.weight_shape))
        return self.weighted.weights.draw(self.constants, seed, draw, threads)

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        if self._points is not None:
            return self.weighted.run_draw(inputs[0], self.grids, self.constants, self._points)
        return torch.cat(
            [
                self.weighted.run_draw(rows, self.grids, self.constants, one)
                for rows, one in zip(rows_of_draws(inputs[0], noise), drawn, strict=True)
            ]
        )


def rows_of_draws(x: Tensor, noise: Noise) -> Sequence[Tensor]:
    """The rows of each draw: the same ones where all draws share them."""
    count = noise.draws.numel()
    return x.split(noise.rows) if x.shape[0] == count * noise.rows else [x] * count


def exact_kernel(op: Op, grids: Grids, constants: Constants, why: str = "") -> Kernel:
    """The op in exact integers; ``why`` says what kept a faster backend from it."""
    kind = ExactWeighted if isinstance(op, Weighted) else ExactKernel
    return kind(op, grids, constants, why)  # pyright: ignore[reportArgumentType]
