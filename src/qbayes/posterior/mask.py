"""A Bernoulli mask on activations: the randomness of MC dropout (Gal and Ghahramani, ICML 2016).

``y = k ⊙ x / (1 − p)`` with ``k ~ Bernoulli(1 − p)``, one ``k`` for each element, or for each channel of a
feature map.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qbayes import noise
from qbayes.errors import BadInput


def check_rate(rate: float, where: str) -> float:
    # the mask's threshold has 16 bits: a rate that rounds to 1 would drop everything, always.
    if not 0.0 <= rate < 1.0 or noise.keep_threshold(rate) >= 1 << noise.THRESHOLD_BITS:
        raise BadInput(
            f"the dropout rate {where} must be at least 0 and below 1 − 2^−17",
            f"{rate}",
            "give the share of activations to drop, such as 0.1",
        )
    return float(rate)


class Mask(nn.Module):
    """Drops elements, or whole channels, of its input.

    Training: torch's own generator. Evaluation under a noise stream: the mask of (seed, draw, site, row).
    Evaluation without one: the identity, which is the network of mean activations.
    """

    def __init__(self, rate: float, site: int, channelwise: bool = False) -> None:
        super().__init__()
        self.rate = check_rate(rate, f"of site {site}")
        self.site = site
        self.channelwise = channelwise

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0:
            return x
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channelwise else x.shape
        if self.training:
            return x * self.training_mask(shape, x)
        stream = noise.current()
        if stream is None:
            return x
        return x * (self.keep(x, stream).to(x.dtype) / (1.0 - self.rate))

    def training_mask(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        """A mask of ``shape`` from torch's own generator, already divided by 1 − p: dropout of ones."""
        return F.dropout(torch.ones(shape, dtype=x.dtype, device=x.device), self.rate)

    def keep(self, x: Tensor, stream: noise.Stream) -> Tensor:
        """Which elements (or channels) of ``x`` this draw keeps: bool, of a shape that broadcasts to it."""
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channelwise else x.shape
        rows = stream.rows or shape[0]
        if shape[0] % rows:
            raise BadInput(
                "the rows must stay on the first axis, or be its outer part, for their noise to follow them",
                f"{rows} rows in, but {shape[0]} along the first axis at site {self.site}",
                "keep the batch first (x.flatten(0, 1) of (rows, time, …) is fine, time first is not)",
            )
        keep = noise.keep_masks(
            stream.draw,
            stream.seed,
            self.site,
            stream.first_row,
            rows,
            math.prod(shape) // rows,
            noise.keep_threshold(self.rate),
        )
        return keep.view(shape)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, site={self.site}" + (", channelwise" if self.channelwise else "")
