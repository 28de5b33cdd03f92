"""The range without its rarest thousandth: from the 0.05th to the 99.95th percentile.

Of activations: the mean over batches of each batch's percentiles. Of weights: of each row, exactly.
"""

import torch
from torch import Tensor

from qbayes.quant.observers.base import QUANTIZERS, RangeRule, State, thin_out

TAIL = 0.0005


@QUANTIZERS.register("percentile")
class Percentile(RangeRule):
    """Percentiles, linear between neighbours, averaged over batches."""

    name = "percentile"

    def init_state(self) -> State:
        return {"low": torch.zeros(()), "high": torch.zeros(()), "batches": torch.zeros(())}

    def update(self, x: Tensor, low: Tensor, high: Tensor, state: State) -> State:
        least, most = percentiles(thin_out(x)[None])
        batches = state["batches"] + 1
        return {
            "low": state["low"] + (least[0] - state["low"]) / batches,
            "high": state["high"] + (most[0] - state["high"]) / batches,
            "batches": batches,
        }

    def batch_range(self, state: State) -> tuple[Tensor, Tensor]:
        return state["low"], state["high"]

    def row_range(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return percentiles(rows)


def percentiles(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Both percentiles of each row (torch.quantile refuses more than 2^24 elements)."""
    ordered = rows.sort(dim=1).values
    last = rows.shape[1] - 1
    place = TAIL * last
    first = int(place)
    second, share = min(first + 1, last), place - first
    low = torch.lerp(ordered[:, first], ordered[:, second], share)
    high = torch.lerp(ordered[:, last - first], ordered[:, last - second], share)
    return low, high
