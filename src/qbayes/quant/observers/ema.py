r"""The paper's rule: a moving average of each batch's extremes.

.. math:: a \leftarrow a + 0.01\,(\min x - a), \qquad b \leftarrow b + 0.01\,(\max x - b)

starting at the first batch's. (Jacob et al., CVPR 2018; the constant is that of the paper reproduced here.)
"""

import torch
from torch import Tensor

from qbayes.quant.observers.base import QUANTIZERS, RangeRule, State

CONSTANT = 0.01


@QUANTIZERS.register("ema")
class Ema(RangeRule):
    """Moving average of the extremes of the batches; of weights, their extremes now."""

    name = "ema"
    pace = CONSTANT
    extremes = True

    def init_state(self) -> State:
        return {"low": torch.zeros(()), "high": torch.zeros(()), "started": torch.zeros((), dtype=torch.bool)}

    def update(self, x: Tensor, low: Tensor, high: Tensor, state: State) -> State:
        pace = torch.where(state["started"], CONSTANT, 1.0)
        return {
            "low": torch.lerp(state["low"], low, pace),
            "high": torch.lerp(state["high"], high, pace),
            "started": torch.ones_like(state["started"]),
        }

    def batch_range(self, state: State) -> tuple[Tensor, Tensor]:
        return state["low"], state["high"]

    def row_range(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        low, high = rows.aminmax(dim=1)
        return low, high
