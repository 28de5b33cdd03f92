"""Range quantisers: minmax, ema, percentile, mse and lsq, one file each."""

from qbayes.quant.observers.base import QUANTIZERS, RangeRule, State

__all__ = ["QUANTIZERS", "RangeRule", "State"]
