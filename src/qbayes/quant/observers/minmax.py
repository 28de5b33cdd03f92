"""The extremes of all data seen: nothing is clipped, and one outlier coarsens the grid for ever."""

import torch
from torch import Tensor

from qbayes.quant.observers.base import QUANTIZERS, RangeRule, State


@QUANTIZERS.register("minmax")
class MinMax(RangeRule):
    """Smallest and largest number of all batches, and 0."""

    name = "minmax"
    extremes = True

    def init_state(self) -> State:
        # every range contains 0, so nothing is lost by starting there.
        return {"low": torch.zeros(()), "high": torch.zeros(())}

    def update(self, x: Tensor, low: Tensor, high: Tensor, state: State) -> State:
        return {"low": torch.minimum(state["low"], low), "high": torch.maximum(state["high"], high)}

    def batch_range(self, state: State) -> tuple[Tensor, Tensor]:
        return state["low"], state["high"]

    def row_range(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        low, high = rows.aminmax(dim=1)
        return low, high
