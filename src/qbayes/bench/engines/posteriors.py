"""Float posteriors as files: what the engines that run in torch write and read."""

from pathlib import Path

from torch import nn

from qbayes.bench.engines.base import Engine
from qbayes.bench.subjects import Subject
from qbayes.networks import REBUILT
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.save import load_posterior, save_posterior
from qbayes.posterior.sites import point_state


class PosteriorEngine(Engine):
    """Deploys the posterior's folder: weights as safetensors, and what they are as JSON."""

    numbers = "float"

    def write(self, subject: Subject, folder: Path, draws: int) -> list[Path]:
        posterior = subject.posterior
        kept = NetworkPosterior(
            posterior.network,
            posterior.members[:draws],
            posterior.signature,
            architecture=posterior.architecture,
        )
        save_posterior(kept, folder)
        return sorted(folder.iterdir())


def read_posterior(folder: Path) -> NetworkPosterior:
    return load_posterior(folder, REBUILT)


def plain_network(posterior: NetworkPosterior) -> nn.Module:
    """The network without its randomness: masks left out, Gaussian weights at their means."""
    network = REBUILT(posterior.architecture or {})
    network.load_state_dict(point_state(posterior.network, posterior.members[0]))
    return network.eval().requires_grad_(False)
