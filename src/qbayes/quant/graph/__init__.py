"""From a PyTorch network to a dozen kinds of nodes, and what is done to them before layers are made."""

# registers our kinds of nodes.
from qbayes.quant.graph import kinds

__all__ = ["kinds"]
