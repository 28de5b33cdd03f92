"""Telling confusion data (positive) from test data (negative) by a score that should be higher for confusion.

The score is the predictive entropy or the mutual information of each row. Everything is exact with ties.
"""

import math

import torch
from torch import Tensor

from qbayes.errors import BadInput


def auroc(test: Tensor, confusion: Tensor) -> float:
    """Area under the ROC curve: ``P(s⁺ > s⁻) + ½ P(s⁺ = s⁻)`` (Mann–Whitney, midranks for ties).

    0.5 is chance; below it, test rows are the more uncertain ones.
    """
    test, confusion = _check(test, confusion)
    ordered = test.sort().values
    below = torch.searchsorted(ordered, confusion, right=False)
    at_most = torch.searchsorted(ordered, confusion, right=True)
    # whole numbers up to here: twice the count of pairs won, ties as one half.
    return int((below + at_most).sum()) / (2 * len(test) * len(confusion))


def aupr(test: Tensor, confusion: Tensor) -> float:
    """Average precision ``Σ_t (R_t − R_{t−1}) P_t`` over the distinct scores t, from the highest down.

    Chance is the share of confusion rows, not 0.5.
    """
    test, confusion = _check(test, confusion)
    distinct, hits = torch.unique(confusion, return_counts=True)
    caught = hits.flip(0).cumsum(0).flip(0).double()
    flagged = len(test) - torch.searchsorted(test.sort().values, distinct, right=False)
    precision = caught / (caught + flagged)
    return (hits * precision).sum().item() / len(confusion)


def fpr95(test: Tensor, confusion: Tensor, recall: float = 0.95) -> float:
    """Share of test rows flagged by the highest threshold that catches 95 % of the confusion rows.

    A row is flagged when ``s ≥ t``; ``t`` is the ``⌈0.95 N⁺⌉``-th largest score of the confusion rows.
    """
    test, confusion = _check(test, confusion)
    if not 0 < recall <= 1:
        raise BadInput("the recall must lie above 0 and at most at 1", f"{recall}", "use 0.95")
    # 1e-9: a product such as 0.95 · 20 must not be rounded up by its last bit.
    needed = max(1, math.ceil(recall * len(confusion) - 1e-9))
    threshold = confusion.sort(descending=True).values[needed - 1]
    return (test >= threshold).double().mean().item()


def _check(test: Tensor, confusion: Tensor) -> tuple[Tensor, Tensor]:
    for name, scores in (("test", test), ("confusion", confusion)):
        if scores.ndim != 1 or len(scores) == 0:
            raise BadInput(
                f"the scores of the {name} rows must be one number a row, of at least one row",
                f"shape {tuple(scores.shape)}",
                "give for example predictive.entropy of the whole set",
            )
        if bool(torch.isnan(scores).any()):
            raise BadInput(
                f"the scores of the {name} rows must not be NaN",
                f"{int(torch.isnan(scores).sum())} NaN of {len(scores)}",
                "find the inputs or weights that are not finite",
            )
    return test.double().contiguous(), confusion.double().to(test.device).contiguous()
