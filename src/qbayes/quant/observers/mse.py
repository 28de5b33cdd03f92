r"""The range of least squared error.

.. math:: \hat f = \arg\min_f \sum_i \bigl(x_i - Q_{[f a,\, f b]}(x_i)\bigr)^2

over 100 factors f, from the full range [a, b] of the data down to a hundredth of it; a grid that is not
symmetric then moves its lower end alone over the same factors. Few outliers are clipped where that makes the
steps finer for the rest: what matters most at 4 bits and below.

Of weights the sum runs over the tensor itself. Of activations it runs over a histogram of all batches (at
most 2^18 elements of each): bins a power of two wide, so that a growing range merges them, each with its
count and its mean.
"""

import torch
from torch import Tensor

from qbayes.integer.arithmetic.grid import affine_grid, code_range
from qbayes.quant.observers.base import MOST_ELEMENTS, QUANTIZERS, RangeRule, State, thin_out

BINS = 2048
FACTORS = 100
SMALLEST_FACTOR = 0.01
# parts of a bin's width in which sums are taken, and the most such parts that one number may have.
FINENESS = 2.0**20
MOST = 2.0**52
# numbers of a candidate's error that are worked on at a time: they stay in the cache.
CHUNK = 2**18


@QUANTIZERS.register("mse")
class Mse(RangeRule):
    """Least squared error over shrunken ranges."""

    name = "mse"
    needs_bits = True

    def init_state(self) -> State:
        return {
            "low": torch.zeros(()),
            "high": torch.zeros(()),
            "counts": torch.zeros(BINS),
            "sums": torch.zeros(BINS),
        }

    def update(self, x: Tensor, low: Tensor, high: Tensor, state: State) -> State:
        x = thin_out(x)
        low, high = torch.minimum(state["low"], low), torch.maximum(state["high"], high)
        width, start = bins(low, high)
        old_width, old_start = bins(state["low"], state["high"])
        moved = (torch.arange(BINS, device=x.device) + old_start) * old_width
        places = torch.cat([places_of(moved, width, start), places_of(x, width, start)])
        counts = torch.cat([state["counts"], torch.ones_like(x)])
        sums = torch.cat([state["sums"], x]) / width
        return {
            "low": low,
            "high": high,
            "counts": _sum_bins(places, counts, 1.0),
            "sums": _sum_bins(places, sums, FINENESS) * width,
        }

    def batch_range(self, state: State) -> tuple[Tensor, Tensor]:
        counts = state["counts"]
        means = state["sums"] / counts.clamp(min=1)
        low, high = self.least_error(means[None], counts[None], state["low"][None], state["high"][None])
        return low[0], high[0]

    def row_range(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        low, high = rows.aminmax(dim=1)
        low, high = low.clamp(max=0), high.clamp(min=0)
        if len(rows) == 1 and rows.numel() > MOST_ELEMENTS:
            rows = thin_out(rows)[None]
        return self.least_error(rows, None, low, high)

    def least_error(
        self, rows: Tensor, counts: Tensor | None, low: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The shrunken range of least squared error for each row; the wider of two equally good ones."""
        # in units of the range: squares of very large or small numbers are no float32.
        unit = torch.maximum(-low, high).clamp(min=2.0**-100)[:, None]
        rows = rows / unit
        least, most = low[:, None] / unit, high[:, None] / unit
        exponents = torch.linspace(0, 1, FACTORS, device=rows.device)
        factors = SMALLEST_FACTOR ** exponents[None]
        best = self.errors(rows, counts, least * factors, most * factors).argmin(1)
        joint = factors[0, best]
        if self.symmetric:
            return low * joint, high * joint
        kept = (most * joint[:, None]).expand(-1, FACTORS)
        best = self.errors(rows, counts, least * factors, kept).argmin(1)
        return low * factors[0, best], high * joint

    def errors(self, rows: Tensor, counts: Tensor | None, low: Tensor, high: Tensor) -> Tensor:
        """The squared error of each row on the grids of its candidate ranges: (rows, candidates)."""
        first, last = code_range(self.bits, self.signed, self.symmetric)
        scale, zero = affine_grid(low, high, self.bits, signed=self.signed, symmetric=self.symmetric)
        # a compiler fuses all candidates into one loop; without it they would fill the memory.
        together = low.shape[1] if torch.compiler.is_compiling() else max(1, CHUNK // rows.numel())
        x = rows[:, None]
        weight = None if counts is None else counts[:, None]
        found: list[Tensor] = []
        for step, centre in zip(scale.split(together, 1), zero.split(together, 1), strict=True):
            s, z = step[..., None], centre[..., None]
            error = (x / s).round_().clamp(first - z, last - z).mul_(s).sub_(x)
            error = error.mul_(error)
            found.append((error if weight is None else error * weight).sum(-1))
        return torch.cat(found, 1)


def _sum_bins(places: Tensor, values: Tensor, fineness: float) -> Tensor:
    """The sum of the values of each bin, in whole parts of 1 / ``fineness``.

    Whole numbers: a GPU adds in any order, and only their sums do not depend on it.
    """
    # one that is not finite gets some number: its batch is forgotten.
    whole = (values.double() * fineness).round().nan_to_num(0.0, 0.0, 0.0).clamp(-MOST, MOST).long()
    return (whole.new_zeros(BINS).scatter_add(0, places, whole).double() / fineness).float()


def bins(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Width and start of the bins that cover ``[low, high]``; bin k is centred on (start + k) width."""
    span = (high.double() - low.double()).clamp(min=2.0**-100)
    width = torch.exp2(torch.ceil(torch.log2(span / (BINS - 4)))).float()
    return width, torch.floor(low / width)


def places_of(x: Tensor, width: Tensor, start: Tensor) -> Tensor:
    """The bin of each number. One that is not finite gets some bin: its batch is forgotten."""
    place = (x / width).round() - start
    return place.nan_to_num(0.0, 0.0, 0.0).clamp(0, BINS - 1).long()
