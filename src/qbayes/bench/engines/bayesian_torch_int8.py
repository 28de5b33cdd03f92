"""bayesian-torch's post-training int8: its recipe on the same network, where that runs."""

import importlib
from typing import Any

import torch
from torch import nn

from qbayes.bench.engines.base import ENGINES
from qbayes.bench.engines.bayesian_layers import BayesianTorchEngine
from qbayes.bench.subjects import CALIBRATION_ROWS
from qbayes.errors import BadInput
from qbayes.posterior.network import NetworkPosterior

_CALIBRATION_PASSES = 4


@ENGINES.register("bayesian_torch_int8")
class BayesianTorchInt8(BayesianTorchEngine):
    """Observers in every Gaussian layer, some passes over rows, conversion; it has no file format."""

    title = "bayesian-torch, its int8"
    numbers = "int8"
    deploys = False

    def network(self, posterior: NetworkPosterior) -> nn.Module:
        network = super().network(posterior)
        shape = posterior.signature.input_shape
        rows = torch.randn(CALIBRATION_ROWS, *shape, generator=torch.Generator().manual_seed(0))
        try:
            return _converted(network, rows)
        except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise BadInput(
                "its int8 must run on this network", f"{type(error).__name__}: {reason}", "leave it out"
            ) from None


def _converted(network: nn.Module, rows: torch.Tensor) -> nn.Module:
    theirs: Any = importlib.import_module("bayesian_torch.ao.quantization.quantize")
    # its recipe uses torch's old quantisation tools; a torch without them gives a row that says so.
    tools: Any = importlib.import_module("torch.ao.quantization")
    theirs.enable_prepare(network)
    prepared: Any = network
    prepared.qconfig = tools.get_default_qconfig("onednn")
    prepared = tools.prepare(prepared)
    for _ in range(_CALIBRATION_PASSES):
        prepared(rows)
    converted = theirs.convert(prepared)
    converted(rows[:1])
    return converted
