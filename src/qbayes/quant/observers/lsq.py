r"""Learned step size (Esser, McKinstry, Bablani, Appuswamy and Modha, ICLR 2020).

The scale is a parameter. It starts where the squared error is least (the paper's own start, 2⟨|x|⟩/√Q_p,
diverges more easily) and then follows its gradient, multiplied by 1/√(N Q_p) so that scales move at the pace
of weights. Give scales an optimiser group of their own, without weight decay.
"""

from qbayes.quant.observers.base import QUANTIZERS
from qbayes.quant.observers.mse import Mse


@QUANTIZERS.register("lsq")
class Lsq(Mse):
    """Least squared error at the start, then learned."""

    name = "lsq"
    learned = True
