"""bayesian-torch in float."""

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.bayesian_layers import BayesianTorchEngine


@ENGINES.register("bayesian_torch")
class BayesianTorch(BayesianTorchEngine):
    """One pass a draw."""

    title = "bayesian-torch, float"
