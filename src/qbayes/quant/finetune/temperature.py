r"""One factor on the class scores, so that a quantised posterior is as sure of itself as its float one.

Each draw of a quantised network imitates a draw of the float one, and hedges where its few bits do not let it
follow. The prediction is the mean over draws, which hedges once more: at three bits MC dropout comes out less
sure than it should be, although its answers are hardly worse. The factor ``c`` that makes up for it is

.. math:: \arg\min_{c \ge 1} \sum_x \mathrm{KL}(\bar p_{float}(x) \,\|\, \bar p_c(x)), \qquad
          \bar p_c = \frac{1}{D} \sum_d \mathrm{softmax}(c\, z_d)

over validation rows, or training rows where there are none: the float posterior's prediction is the truth,
labels are not looked at. In integers it is the scale of the output's codes: no operation, no code and no bit
changes. It only ever sharpens: where members that are very sure disagree with the float ones, as SGHMC's do,
the least divergence asks for more hedging, and the calibration on labels pays for it.

(With labels in the place of the float posterior this is temperature scaling: Guo et al., ICML 2017.)
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qbayes.errors import RunFailed
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.predictive import CategoricalPredictive
from qbayes.tasks import Task

# a factor that is off by 2 % moves the mean confidence by about a tenth of a point.
ROWS = 1024
DRAWS = 10
SEED = 0
# a factor is sought up to 2^2: beyond that it is not the sharpness that is wrong.
_OCTAVES = 2
_STEPS_AN_OCTAVE = 4
_EXACT = 1e-4
# nats that are no gain: where every row is certain, rounding would choose the factor.
_NOTHING = 1e-9
_GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def sharpness(quantised: NetworkPosterior, wanted: NetworkPosterior, task: Task) -> float:
    """The factor for the scores of ``quantised``; both see the same rows and the same noise."""
    x, members = some_rows(task), len(quantised.networks)
    draws = max(DRAWS, members) if quantised.is_stochastic or members > 1 else 1
    theirs, ours = (one.predict(x, draws, SEED) for one in (wanted, quantised))
    assert isinstance(theirs, CategoricalPredictive)
    assert isinstance(ours, CategoricalPredictive)
    mean, scores = theirs.log_mean.double(), ours.log_draws.double()
    # a probability of 0 has the logarithm −∞, which is a number to compare; NaN is not.
    sound = ~(mean.isnan().any(-1) | scores.isnan().any(-1).any(0))
    if not bool(sound.any()):
        raise RunFailed(
            "class scores must be numbers to be matched with the float network's",
            f"NaN in all of {len(x)} rows",
            "look at the float network's scores, or give match_temperature=False",
        )
    return least_divergence(mean[sound], scores[:, sound])


def some_rows(task: Task, rows: int = ROWS) -> Tensor:
    """So many of the validation rows, or of the training rows where there are none, in raw units.

    They are drawn from all of them, since rows may lie sorted by their class; no more are held at a time.
    """
    split = "validation" if "validation" in task.splits else "train"
    generator = torch.Generator().manual_seed(SEED)
    found, places = [], torch.empty(0, dtype=torch.float64)
    for x, _ in task.batches(split, rows):
        found.append(x)
        places = torch.cat([places, torch.rand(len(x), generator=generator, dtype=torch.float64)])
        first = places.argsort()[:rows].sort().values
        found, places = [torch.cat(found)[first]], places[first]
    return found[0]


def least_divergence(wanted: Tensor, scores: Tensor) -> float:
    """The factor c ≥ 1 with the least ``KL(wanted ‖ mean of softmax(c · scores))``.

    ``wanted`` are log-probabilities ``(rows, classes)``; ``scores`` ``(draws, rows, classes)`` are logits, or
    log-probabilities, which differ from them by what a softmax forgets.
    """
    weights = wanted.exp()

    def divergence(octave: float) -> float:
        of_draws = F.log_softmax(scores * 2.0**octave, dim=-1)
        mean = torch.logsumexp(of_draws, 0) - math.log(len(scores))
        # where nothing is wanted nothing is lost: 0 · (−∞) is 0 here.
        return float(-(weights * mean.clamp_min(-1e30)).sum(-1).mean())

    places = [index / _STEPS_AN_OCTAVE for index in range(_OCTAVES * _STEPS_AN_OCTAVE + 1)]
    found = {place: divergence(place) for place in places}
    nearest = min(places, key=found.__getitem__)
    apart = 1 / _STEPS_AN_OCTAVE
    low, high = max(nearest - apart, 0.0), min(nearest + apart, float(_OCTAVES))
    octave = _least(divergence, low, high)
    return 2.0**octave if found[0.0] - divergence(octave) > _NOTHING else 1.0


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where ``function`` is least between ``low`` and ``high``, by golden sections."""
    one, two = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_two = function(one), function(two)
    while high - low > _EXACT:
        if at_one < at_two:
            high, two, at_two = two, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = function(one)
        else:
            low, one, at_one = one, two, at_two
            two = low + _GOLDEN * (high - low)
            at_two = function(two)
    return (low + high) / 2
