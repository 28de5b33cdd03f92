"""Float through this library's ``predict``: noise keyed by row and draw, draws folded together."""

from pathlib import Path

from qbayes.bench.engines.base import ENGINES, Answer
from qbayes.bench.engines.posteriors import PosteriorEngine, read_posterior


@ENGINES.register("predict")
class Predict(PosteriorEngine):
    """The float posterior itself."""

    title = "qbayes, float"
    ours = True

    def open(self, folder: Path) -> Answer:
        posterior = read_posterior(folder)
        return lambda x, draws: posterior.predict(x, draws).draws
