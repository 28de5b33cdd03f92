"""Is a prediction of 80 % right 80 % of the time? Confidence ``c = max_k p_k`` against accuracy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.metrics.classification import check_labelled


@dataclass(frozen=True, eq=False)
class Reliability:
    """What a reliability diagram draws, one entry a bin; an empty bin has confidence and accuracy NaN."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def ece(self) -> float:
        """``Σ_b (n_b / N) |accuracy_b − confidence_b|``."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num(nan=0.0)
        return (self.count * gap).sum().item() / int(self.count.sum())


def reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> Reliability:
    """Confidence and accuracy in ``bins`` of equal width, ``((b − 1)/B, b/B]``."""
    confidence, correct = _confidence(probabilities, labels, bins)
    inner_edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return _table(torch.bucketize(confidence, inner_edges), confidence, correct, bins)


def adaptive_reliability(probabilities: Tensor, labels: Tensor, bins: int = 10) -> Reliability:
    """Confidence and accuracy in ``bins`` of equal mass: the sorted confidences cut into equal parts.

    Rows of one confidence may fall on both sides of a cut; each then counts with their common accuracy, so
    that the table does not depend on the order of the rows.
    """
    confidence, correct = _confidence(probabilities, labels, bins)
    distinct, group, size = torch.unique(confidence, return_inverse=True, return_counts=True)
    accuracy = torch.zeros_like(distinct).index_add_(0, group, correct) / size
    ordered = distinct.repeat_interleave(size)
    rank = torch.arange(len(ordered), device=ordered.device)
    return _table(rank * bins // len(ordered), ordered, accuracy.repeat_interleave(size), bins)


def ece(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """Expected calibration error with bins of equal width (Guo et al., 2017), over the whole set.

    ``ECE = Σ_b (n_b / N) |accuracy_b − confidence_b|``
    """
    return reliability(probabilities, labels, bins).ece


def adaptive_ece(probabilities: Tensor, labels: Tensor, bins: int = 10) -> float:
    """The same with bins of equal mass (Nixon et al., 2019): confident networks fill one equal-width bin."""
    return adaptive_reliability(probabilities, labels, bins).ece


def ece_per_batch(probabilities: Tensor, labels: Tensor, batch_size: int = 256, bins: int = 10) -> float:
    """The mean of the ECEs of mini-batches, **for comparison with published tables only**: it is inflated.

    ``(1/M) Σ_m ECE(batch_m)``. A bin of n_b rows shows a gap of about ``√(2 c (1 − c) / (π n_b))`` by chance
    alone, so a calibrated network scores several per cent, more the smaller the batch (and it depends on
    the order of the rows). Ferianc et al. (2021) report this number, at two different batch sizes.
    """
    check_labelled(probabilities, labels)
    if batch_size < 1:
        raise BadInput("the batch size must be at least 1", f"{batch_size}", "the paper uses 256")
    pairs = zip(probabilities.split(batch_size), labels.split(batch_size), strict=True)
    scores = [ece(some, theirs, bins) for some, theirs in pairs]
    return sum(scores) / len(scores)


def _confidence(probabilities: Tensor, labels: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    check_labelled(probabilities, labels)
    if bins < 1:
        raise BadInput("there must be at least one bin", f"{bins}", "10 bins are usual")
    confidence, predicted = probabilities.double().max(-1)
    return confidence, (predicted == labels).double()


def _table(index: Tensor, confidence: Tensor, correct: Tensor, bins: int) -> Reliability:
    count = torch.bincount(index, minlength=bins)
    sums = [torch.zeros(bins, dtype=torch.float64, device=index.device) for _ in range(2)]
    sums = [total.index_add_(0, index, of) for total, of in zip(sums, (confidence, correct), strict=True)]
    return Reliability(confidence=sums[0] / count, accuracy=sums[1] / count, count=count)
