"""Float posteriors in torch: the loop that one would write by hand, and this library's ``predict``."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from qbayes.lab.bench.baseline_loop import PlainLoop
from qbayes.lab.bench.engines.base import ENGINES, Answer, Engine, Numbers, answers
from qbayes.lab.bench.subjects import Subject
from qbayes.networks import REBUILT
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.sites import point_state
from qbayes.posterior.storage.save import load_posterior, save_posterior


@dataclass(frozen=True, kw_only=True)
class PosteriorEngine(Engine):
    """Deploys the posterior's folder: weights as safetensors, and what they are as JSON."""

    numbers: Numbers = "float"

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


class Loop(PosteriorEngine):
    """The baseline: one forward pass a draw, in eager torch."""

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        loop, signature = PlainLoop(posterior), posterior.signature
        return lambda x, draws: answers(loop(x, draws), signature)


class Predict(PosteriorEngine):
    """``predict``: noise keyed by row and draw, draws folded together."""

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        return lambda x, draws: posterior.predict(x, draws).draws


ENGINES.register("loop")(Loop(title="torch, a loop of float passes"))
ENGINES.register("predict")(Predict(title="qbayes, float", ours=True))
