"""bayesian-torch: the same network with its variational layers, one pass a draw; in float, and its int8.

Its int8 is its recipe of post-training quantisation on the same network, where that runs.
"""

import importlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from qbayes.errors import BadInput
from qbayes.lab.bench.engines.base import ENGINES, Answer, answers
from qbayes.lab.bench.engines.posteriors import PosteriorEngine, plain_network, read_posterior
from qbayes.lab.bench.subjects import CALIBRATION_ROWS
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.network import NetworkPosterior

# Means from the network's weights, deviations a tenth of them: its own way to start from a trained network.
_CONVERSION = {
    "prior_mu": 0.0,
    "prior_sigma": 1.0,
    "posterior_mu_init": 0.0,
    "posterior_rho_init": -3.0,
    "type": "Reparameterization",
    "moped_enable": True,
    "moped_delta": 0.1,
}
_CALIBRATION_PASSES = 4


@dataclass(frozen=True, kw_only=True)
class BayesianTorch(PosteriorEngine):
    """``dnn_to_bnn`` of the plain network."""

    packages: tuple[str, ...] = ("bayesian_torch",)

    def why_not(self, method: str) -> str | None:
        return None if method == "bbb" else "it has layers with Gaussian weights only: bbb"

    def network(self, posterior: NetworkPosterior) -> nn.Module:
        theirs: Any = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
        network = plain_network(posterior)
        theirs.dnn_to_bnn(network, _CONVERSION)
        return network.eval().requires_grad_(False)

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        signature = posterior.signature
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            network = self.network(posterior)

        @torch.inference_mode()
        def answer(x: Tensor, draws: int) -> Tensor:
            inputs = signature.transform.apply(x)
            outputs: list[Outputs] = [network(inputs) for _ in range(draws)]
            stacked = pytree.tree_map(lambda *tensors: torch.stack(tensors), *outputs)
            return answers(stacked, signature)

        return answer


class BayesianTorchInt8(BayesianTorch):
    """Observers in every Gaussian layer, some passes over rows, conversion; it has no file format."""

    def network(self, posterior: NetworkPosterior) -> nn.Module:
        network = super().network(posterior)
        shape = posterior.signature.input_shape
        rows = torch.randn(CALIBRATION_ROWS, *shape, generator=torch.Generator().manual_seed(0))
        try:
            return _convert(network, rows)
        except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise BadInput(
                "its int8 must run on this network", f"{type(error).__name__}: {reason}", "leave it out"
            ) from None


def _convert(network: nn.Module, rows: torch.Tensor) -> nn.Module:
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


ENGINES.register("bayesian_torch")(BayesianTorch(title="bayesian-torch, float"))
ENGINES.register("bayesian_torch_int8")(
    BayesianTorchInt8(title="bayesian-torch, its int8", numbers="int8", deploys=False)
)
