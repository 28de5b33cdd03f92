"""The trial of a runtime's kernel at load finds what is wrong, also behind an output that hides its sums."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from handmade.programs import Maker
from qbayes.integer.backends.base import Drawn, Kernel
from qbayes.integer.backends.exact_kernel import exact_kernel
from qbayes.integer.backends.onnx_ops.trial import is_right
from qbayes.integer.ops.base import Constants, Grids, Noise, Op

Spoil = Callable[[Tensor], Tensor]


class Spoiled(Kernel):
    """Exact integers, but for what ``spoil`` does to the codes."""

    def __init__(self, op: Op, grids: Grids, constants: Constants, spoil: Spoil) -> None:
        super().__init__(op, grids, constants, "spoiled")
        self.inner, self.spoil = exact_kernel(op, grids, constants), spoil

    @property
    def draws_weights(self) -> bool:
        return self.inner.draws_weights

    def draw(self, seed: int, draw: int) -> Drawn:
        return self.inner.draw(seed, draw)

    def __call__(self, inputs: Sequence[Tensor], noise: Noise, drawn: Sequence[Drawn]) -> Tensor:
        return self.spoil(self.inner(inputs, noise, drawn))


def wrong_by(apart: int, rows: range) -> Spoil:
    """One code of every image, where there are so many rows."""

    def spoil(codes: Tensor) -> Tensor:
        if len(codes) not in rows:
            return codes
        changed = codes.int()
        flat = changed.flatten(1)
        flat[:, 0] = torch.where(flat[:, 0] > 100, flat[:, 0] - apart, flat[:, 0] + apart)
        return changed.to(codes.dtype)

    return spoil


def tried(spoil: Spoil, *, kind: str = "point", shift: int = 0) -> bool:
    """A convolution whose output is so much wider, by powers of two; below 0 its ends hide its sums."""
    make = Maker((3, 6, 5), seed=1)
    make.conv(make.input, 4, 3, padding=1, relu=False, kind=kind)
    op, constants = make.ops[-1], dict(make.constants[0]["conv0"])
    constants["shift"] = constants["shift"] + shift
    grids = Grids((7,), 128, (8,), 8)
    constants["low"], constants["high"] = torch.tensor([0]), torch.tensor([255])

    def compiled(grids: Grids, constants: Constants) -> Kernel:
        # what lies beyond the ends is lost: a runtime clamps its wrong sums as well.
        return Spoiled(
            op, grids, constants, lambda codes: spoil(codes) if shift >= 0 else hidden(codes, spoil)
        )

    return is_right(compiled, compiled(grids, constants), (3, 6, 5), 1)


def hidden(codes: Tensor, spoil: Spoil) -> Tensor:
    inside = (codes > 2) & (codes < 253)
    return torch.where(inside, spoil(codes), codes)


@pytest.mark.parametrize("kind", ["point", "gaussian"])
def test_a_right_kernel_passes(kind: str) -> None:
    assert tried(lambda codes: codes, kind=kind)


@pytest.mark.parametrize("kind", ["point", "gaussian"])
def test_a_code_that_is_wrong_by_more_than_the_tolerance_is_found(kind: str) -> None:
    everywhere = range(1, 100)
    assert tried(wrong_by(1, everywhere), kind=kind)
    assert not tried(wrong_by(2, everywhere), kind=kind)


def test_a_kernel_that_is_wrong_for_a_single_row_only_is_found() -> None:
    assert not tried(wrong_by(2, range(1, 2)))


def test_a_kernel_that_is_wrong_for_many_rows_only_is_found() -> None:
    assert not tried(wrong_by(2, range(5, 100)))


def test_an_output_whose_ends_hide_the_sums_is_tried_with_a_wider_one() -> None:
    """Behind so small a step nearly every code is 0 or 255, where a wrong sum does not show."""
    assert tried(lambda codes: codes, shift=-8)
    assert not tried(wrong_by(9, range(1, 100)), shift=-8)
