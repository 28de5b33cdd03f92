"""Predictions of a split beside their targets, and the scores of the whole set."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.metrics import classification, regression
from qbayes.metrics.scores import Numbers
from qbayes.posterior.predictive import CategoricalPredictive, GaussianPredictive, Predictive

INTERVAL = 0.9


class Rows(ABC):
    """Predictions and targets, reduced to what the scores of the whole set need."""

    @abstractmethod
    def add(self, prediction: Predictive, y: Tensor) -> None: ...

    @abstractmethod
    def scores(self) -> Numbers: ...

    @abstractmethod
    def each(self) -> dict[str, Tensor]:
        """What was found for each row."""

    @abstractmethod
    def uncertainty(self) -> tuple[Tensor, Tensor]:
        """Entropy and mutual information of each row, in nats."""

    @abstractmethod
    def __len__(self) -> int: ...


@final
class ClassificationRows(Rows):
    """Keeps ``(rows, classes)``, not the draws: those of a large set would not fit memory."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, prediction: Predictive, y: Tensor) -> None:
        if not isinstance(prediction, CategoricalPredictive):
            raise _other_kind("classification", prediction)
        reduced = prediction.log_mean, prediction.mean, prediction.entropy, prediction.mutual_information
        self._parts.append((*(t.cpu() for t in reduced), y))

    @cached_property
    def _columns(self) -> tuple[Tensor, ...]:
        return tuple(torch.cat(column) for column in zip(*self._parts, strict=True))

    def scores(self) -> Numbers:
        log_mean, mean, entropy, information, labels = self._columns
        return {
            "error": classification.error(mean, labels),
            "nll": classification.nll(log_mean, labels),
            "brier": classification.brier(mean, labels),
            "ece": classification.ece(mean, labels),
            "ece_adaptive": classification.adaptive_ece(mean, labels),
            "ece_per_batch": classification.ece_per_batch(mean, labels),
            "ece_per_batch_1024": classification.ece_per_batch(mean, labels, 1024),
            "entropy": entropy.double().mean().item(),
            "mutual_information": information.double().mean().item(),
        }

    def each(self) -> dict[str, Tensor]:
        log_mean, mean, entropy, information, labels = self._columns
        confidence, answer = mean.max(-1)
        return {
            "nll": -log_mean.gather(-1, labels.long()[:, None])[:, 0].float(),
            "correct": (answer == labels).to(torch.uint8),
            "confidence": confidence.float(),
            "entropy": entropy.float(),
            "mutual_information": information.float(),
        }

    def uncertainty(self) -> tuple[Tensor, Tensor]:
        return self._columns[2], self._columns[3]

    def __len__(self) -> int:
        return len(self._columns[0])


@final
class RegressionRows(Rows):
    def __init__(self) -> None:
        self._predictions: list[GaussianPredictive] = []
        self._targets: list[Tensor] = []

    def add(self, prediction: Predictive, y: Tensor) -> None:
        if not isinstance(prediction, GaussianPredictive):
            raise _other_kind("regression", prediction)
        self._predictions.append(prediction.to_cpu())
        self._targets.append(y)

    @cached_property
    def _whole(self) -> GaussianPredictive:
        return GaussianPredictive.concatenate(self._predictions)

    def scores(self) -> Numbers:
        whole, y = self._whole, torch.cat(self._targets)
        means, variances = whole.draws, whole.draw_variances
        return {
            "rmse": regression.rmse(whole.mean, y),
            "nll": regression.nll_mixture(means, variances, y),
            "nll_moment_matched": regression.nll_moment_matched(whole.mean, whole.variance, y),
            "crps": regression.crps(means, variances, y),
            "coverage_90": regression.coverage(whole.cdf(y), INTERVAL),
            "interval_width_90": regression.interval_width(*whole.interval(INTERVAL)),
        }

    def each(self) -> dict[str, Tensor]:
        whole, y = self._whole, torch.cat(self._targets)
        nll = regression.nll_of_rows(whole.draws, whole.draw_variances, y)
        squares = (whole.mean.double() - y.double()).square()
        return {
            "nll": _of_row(nll),
            "squared_error": _of_row(squares),
            "entropy": _of_row(whole.entropy),
            "mutual_information": _of_row(whole.mutual_information),
        }

    def uncertainty(self) -> tuple[Tensor, Tensor]:
        return self._whole.entropy, self._whole.mutual_information

    def __len__(self) -> int:
        return len(self._whole)


ROWS: dict[str, type[ClassificationRows] | type[RegressionRows]] = {
    "classification": ClassificationRows,
    "regression": RegressionRows,
}


def _of_row(values: Tensor) -> Tensor:
    """The mean over the targets of a row, where it has several."""
    return values.reshape(len(values), -1).mean(1).float()


def _other_kind(kind: str, prediction: Predictive) -> BadInput:
    return BadInput(
        f"a task of kind '{kind}' needs a posterior of that kind",
        f"{prediction!r}",
        "evaluate the posterior on the kind of task that it was trained for",
    )
