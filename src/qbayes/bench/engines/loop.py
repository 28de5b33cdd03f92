"""The float loop that one would write by hand, in eager torch: the baseline."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES, Answer, answers
from qbayes.bench.engines.posteriors import PosteriorEngine, read_posterior
from qbayes.bench.plain import PlainLoop


@ENGINES.register("loop")
class Loop(PosteriorEngine):
    """One forward pass a draw."""

    title = "torch, a loop of float passes"

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        loop, signature = PlainLoop(posterior), posterior.signature
        return lambda x, draws: answers(loop(x, draws), signature)
