"""Scores of class probabilities, each over the whole set of N rows and K classes, never a mean of batches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.errors import BadInput


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


def error(probabilities: Tensor, labels: Tensor) -> float:
    """Share of rows whose most probable class is wrong: ``(1/N) Σ_n 1[argmax_k p_nk ≠ y_n]``."""
    check_labelled(probabilities, labels)
    return (probabilities.argmax(-1) != labels).double().mean().item()


def nll(log_probabilities: Tensor, labels: Tensor) -> float:
    """Negative log-likelihood in nats, from logarithms: ``−(1/N) Σ_n log p_n,y_n``.

    Logarithms (``CategoricalPredictive.log_mean``) stay finite where a probability underflows to 0.
    """
    check_labelled(log_probabilities, labels)
    return -log_probabilities.double().gather(-1, labels.long()[:, None]).mean().item()


def brier(probabilities: Tensor, labels: Tensor) -> float:
    """Brier's (1950) score, summed over classes: ``(1/N) Σ_n Σ_k (p_nk − 1[y_n = k])²``, from 0 to 2."""
    check_labelled(probabilities, labels)
    wide = probabilities.double()
    of_label = wide.gather(-1, labels.long()[:, None])[:, 0]
    # Σ_k (p_k − δ_ky)² = Σ_{k≠y} p_k² + (1 − p_y)²
    return ((wide**2).sum(-1) - of_label**2 + (1 - of_label) ** 2).mean().item()


def average_entropy(probabilities: Tensor) -> float:
    """Average predictive entropy (aPE) in nats: ``−(1/N) Σ_n Σ_k p_nk log p_nk``."""
    check_rows(probabilities, "probabilities", axes=2)
    return torch.special.entr(probabilities.double()).sum(-1).mean().item()


def average_mutual_information(draws: Tensor) -> float:
    """Mean over rows of ``H[p̄_n] − (1/D) Σ_d H[p_dn] ≥ 0``, in nats; ``draws`` are ``(D, N, K)``."""
    check_rows(draws, "the draws' probabilities", axes=3)
    wide = draws.double()
    total = torch.special.entr(wide.mean(0)).sum(-1)
    expected = torch.special.entr(wide).sum(-1).mean(0)
    return (total - expected).clamp_min(0).mean().item()


def check_rows(values: Tensor, name: str, axes: int) -> None:
    """Raise unless ``values`` has so many axes, at least one row and no NaN."""
    if values.ndim != axes or values.numel() == 0:
        raise BadInput(
            f"{name} must have {axes} axes and at least one row",
            f"shape {tuple(values.shape)}",
            "give the values of the whole set, one row an example",
        )
    if bool(torch.isnan(values).any()):
        raise BadInput(
            f"{name} must not contain NaN",
            f"{int(torch.isnan(values).sum())} NaN of {values.numel()} values",
            "find the inputs or weights that are not finite; a score that skips them would mislead",
        )


def check_labelled(probabilities: Tensor, labels: Tensor) -> None:
    """Raise unless there is one label in 0 … K − 1 for each row of ``(N, K)`` values."""
    check_rows(probabilities, "probabilities", axes=2)
    if labels.shape != probabilities.shape[:1] or labels.is_floating_point():
        raise BadInput(
            "there must be one whole-number label a row",
            f"labels {tuple(labels.shape)} of {labels.dtype}, probabilities {tuple(probabilities.shape)}",
            "give class indices of shape (rows,), not one-hot vectors",
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= probabilities.shape[1]:
        raise BadInput(
            f"labels must lie in 0 … {probabilities.shape[1] - 1}",
            f"labels from {lowest} to {highest}",
            "number the classes from 0, and give a probability for each of them",
        )
