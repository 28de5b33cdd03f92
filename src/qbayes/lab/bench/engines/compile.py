"""The same loop by ``torch.compile``: its kernels are compiled on the first call for each shape of rows."""

import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call

from qbayes.lab.bench.engines.base import ENGINES, Answer, answers
from qbayes.lab.bench.engines.posteriors import PlainLoop, PosteriorEngine, read_posterior
from qbayes.posterior.likelihood import Outputs
from qbayes.posterior.network import NetworkPosterior


class CompiledLoop(PlainLoop):
    """The loop with one compiled pass, which takes the state of each member: compiled once for all."""

    def __init__(self, posterior: NetworkPosterior) -> None:
        super().__init__(posterior)
        shape = self.networks[0]
        self._states = [
            {**dict(network.named_parameters()), **dict(network.named_buffers())} for network in self.networks
        ]

        def passed(state: dict[str, Tensor], inputs: Tensor) -> Outputs:
            return functional_call(shape, state, (inputs,))

        self._pass = torch.compile(passed, dynamic=False)

    def one_draw(self, inputs: Tensor, member: int) -> Outputs:
        return self._pass(self._states[member], inputs)


class Compile(PosteriorEngine):
    """One compiled forward pass a draw."""

    def why_missing(self) -> str | None:
        found = any(shutil.which(name) for name in ("g++", "clang++", "cl"))
        return None if found else "torch.compile needs a C++ compiler: install g++"

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        loop, signature = CompiledLoop(posterior), posterior.signature
        return lambda x, draws: answers(loop(x, draws), signature)


ENGINES.register("compile")(Compile(title="torch.compile of the loop", by_default=False))
