"""bayesian-torch: the same network with its variational layers, one pass a draw."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from qbayes.bench.engines.base import Answer, answers
from qbayes.bench.engines.posteriors import PosteriorEngine, plain_network, read_posterior
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


class BayesianTorchEngine(PosteriorEngine):
    """``dnn_to_bnn`` of the plain network."""

    packages = ("bayesian_torch",)

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
