"""Mask: ``q_o = k ? q : Z`` with one bit ``k`` for each element or channel; 1 / (1 − p) lives in the scale.

No code changes but those that become Z, so there is no rounding and no error. ``k`` is the mask of
(seed, draw, site, row) that the float network drops by.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from qbayes.integer.ops import fields
from qbayes.integer.ops.base import Bound, Constants, Grids, Noise, Op, Shape, register_op
from qbayes.noise import keep_masks, keep_threshold
from qbayes.posterior.sites import check_rate


@register_op
@dataclass(frozen=True)
class Mask(Op):
    """Drops elements, or whole channels (axis 1), at ``rate``."""

    kind: ClassVar[str] = "mask"
    lanes: ClassVar[tuple[int, int]] = (0, 48)
    keeps_grid: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    site: int
    rate: float
    channelwise: bool = False

    def __post_init__(self) -> None:
        fields.inputs(self.name, self.inputs, 1, 1)
        fields.whole(f"{self.name}: site", self.site)
        fields.fits(type(self.rate) in (float, int), self.name, "the rate must be a number", self.rate)
        check_rate(self.rate, f"of {self.name}")
        fields.flag(f"{self.name}: channelwise", self.channelwise)

    @property
    def is_stochastic(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return f"mask, p = {self.rate:g}" + (" by channel" if self.channelwise else "")

    def sites(self) -> list[tuple[int, object]]:
        return [(self.site, ("mask", self.rate, self.channelwise))]

    def bound(self, constants: Constants, grids: Grids, shapes: Sequence[Shape]) -> Bound:
        return Bound()

    def out_shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        fields.fits(len(shapes[0]) >= 1, self.name, "a row must have an axis to drop along", shapes[0])
        return shapes[0]

    def run(self, inputs: Sequence[Tensor], grids: Grids, constants: Constants, noise: Noise) -> Tensor:
        codes = inputs[0]
        keep = self.keep(codes.shape, noise).to(codes.device)
        return torch.where(keep, codes, grids.zeros[0])

    def keep(self, shape: Sequence[int], noise: Noise) -> Tensor:
        """The bits ``k`` for a folded batch of this shape, to broadcast with it."""
        batch, row = shape[0], tuple(shape[1:])
        right = batch == noise.draws.numel() * noise.rows
        fields.fits(right, self.name, "the batch must be draws × rows", f"{batch} rows")
        if self.channelwise:
            row = (row[0], *(1,) * (len(row) - 1))
        elements, threshold = math.prod(row), keep_threshold(self.rate)
        bits = keep_masks(
            noise.draws, noise.seed, self.site, noise.first_row, noise.rows, elements, threshold
        )
        return bits.view(batch, *row)
