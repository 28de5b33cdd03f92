"""Scores of class probabilities, each over the whole set of N rows and K classes, never a mean of batches."""

import torch
from torch import Tensor

from qbayes.errors import BadInput


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
