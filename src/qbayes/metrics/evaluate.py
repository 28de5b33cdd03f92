"""``evaluate``: clean, shifted and confusion scores of anything that predicts, in one call."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from numbers import Integral
from typing import Any, Protocol, final

import torch
from torch import Tensor

from qbayes import noise
from qbayes.errors import BadInput, RunFailed, unknown_name
from qbayes.metrics import calibration, classification, detection, regression
from qbayes.metrics.scores import Numbers, Scores
from qbayes.posterior.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from qbayes.posterior.signature import Signature
from qbayes.provenance import versions
from qbayes.tasks.shifts import LEVELS, Level, shift

INTERVAL = 0.9


class Predicts(Protocol):
    """What is evaluated: a float, fake-quantised or integer posterior, or anything else that predicts."""

    def predict(
        self, x: Tensor, draws: int = ..., seed: int = ..., *, first_row: int = ...
    ) -> Predictive: ...


class Evaluable(Protocol):
    """What it is evaluated on: raw inputs and targets in batches, in a fixed order."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def shifts(self) -> tuple[str, ...]: ...
    @property
    def input_range(self) -> tuple[Level, Level] | None: ...
    @property
    def confusion_name(self) -> str | None: ...
    def batches(self, split: str, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]: ...
    def confusion_batches(self, batch_size: int) -> Iterator[Tensor]: ...


def evaluate(
    posterior: Predicts,
    task: Evaluable,
    draws: int = 20,
    seed: int = 0,
    *,
    batch_size: int = 2048,
    split: str = "test",
    shifts: bool = True,
    confusion: bool = True,
    meta: Mapping[str, Any] | None = None,
) -> Scores:
    """Scores over the whole split, under the task's shifts, and against its confusion data.

    The index of a row continues over the batches, so that its noise, and with it every score, does not depend
    on ``batch_size``; shifted rows see the noise of the clean ones, so that differences are paired.
    ``meta`` is added to what the scores record about themselves.
    """
    if not all(isinstance(count, Integral) and count >= 1 for count in (draws, batch_size)):
        raise BadInput(
            "draws and batch_size must be whole numbers of at least 1",
            f"draws={draws!r}, batch_size={batch_size!r}",
            "try draws=20, batch_size=2048",
        )
    _check_fits(posterior, task)
    run = _Run(posterior, task, int(draws), noise.check_seed(seed), int(batch_size), split)
    clean = run.rows("clean rows", lambda x: x)
    return Scores(
        clean=clean.scores(),
        shifted={name: run.shifted(name) for name in task.shifts} if shifts else {},
        confusion=run.confusion(clean) if confusion and task.confusion_name is not None else {},
        meta=run.meta(clean) | dict(meta or {}),
    )


def _check_fits(posterior: Predicts, task: Evaluable) -> None:
    """The task must ask what the posterior answers, where both say it."""
    given, asked = (getattr(side, "signature", None) for side in (posterior, task))
    if not isinstance(given, Signature) or not isinstance(asked, Signature):
        return
    if given.likelihood != asked.likelihood:
        answers, question = given.likelihood.to_json(), asked.likelihood.to_json()
        raise BadInput(
            "the task must have the posterior's kind and number of outputs",
            f"'{task.name}' asks for {question}, the posterior gives {answers}",
            f"evaluate on '{given.task}', or fit on '{task.name}'",
        )


@final
class _Run:
    """One evaluation: the posterior, the data and the seed that its parts share."""

    def __init__(
        self, posterior: Predicts, task: Evaluable, draws: int, seed: int, batch_size: int, split: str
    ) -> None:
        self.posterior, self.task, self.draws, self.seed = posterior, task, draws, seed
        self.batch_size, self.split = batch_size, split

    def rows(self, what: str, change: Callable[[Tensor], Tensor]) -> "_Rows":
        """Predictions for the split's rows after ``change``, with their targets."""
        if self.task.kind not in _ROWS:
            raise unknown_name("kind of task", self.task.kind, _ROWS)
        rows = _ROWS[self.task.kind]()
        first_row = 0
        for x, y in self.task.batches(self.split, self.batch_size):
            rows.add(self._predict(change(x), first_row, what), y.cpu())
            first_row += len(x)
        if first_row == 0:
            raise _no_rows(f"split '{self.split}' of task '{self.task.name}'")
        return rows

    def shifted(self, name: str) -> dict[int, Numbers]:
        if self.task.input_range is None:
            raise BadInput(
                "shifted scores need the inputs' black and white level",
                f"task '{self.task.name}' has shifts, but no input_range",
                "give the task input_range=(black, white) in raw units, or evaluate with shifts=False",
            )
        low, high = self.task.input_range
        return {
            level: self.rows(
                f"rows under {name} at level {level}",
                lambda x, level=level: shift(x, name, level, low, high),
            ).scores()
            for level in range(1, len(LEVELS[name]) + 1)
        }

    def confusion(self, test: "_Rows") -> Numbers:
        """Uncertainty on the confusion rows, and how well it tells them from the ``test`` rows."""
        parts: list[tuple[Tensor, Tensor]] = []
        first_row = 0
        for x in self.task.confusion_batches(self.batch_size):
            prediction = self._predict(x, first_row, "confusion rows")
            parts.append((prediction.entropy.cpu(), prediction.mutual_information.cpu()))
            first_row += len(x)
        if first_row == 0:
            raise _no_rows(f"the confusion data of task '{self.task.name}'")
        entropy, information = (torch.cat(columns) for columns in zip(*parts, strict=True))
        test_entropy, test_information = test.uncertainty()
        return {
            "entropy": entropy.double().mean().item(),
            "mutual_information": information.double().mean().item(),
            "auroc": detection.auroc(test_entropy, entropy),
            "aupr": detection.aupr(test_entropy, entropy),
            "fpr95": detection.fpr95(test_entropy, entropy),
            "auroc_mutual_information": detection.auroc(test_information, information),
        }

    def meta(self, rows: "_Rows") -> dict[str, Any]:
        provenance = dict(getattr(self.posterior, "provenance", {}))
        return {
            "task": self.task.name,
            "kind": self.task.kind,
            "data": getattr(self.task, "fingerprint", None),
            "confusion": self.task.confusion_name,
            "split": self.split,
            "rows": len(rows),
            "method": provenance.get("method"),
            "posterior": provenance,
            "draws": self.draws,
            "seed": self.seed,
            "device": str(getattr(self.posterior, "device", "unknown")),
            "versions": versions(),
        }

    def _predict(self, x: Tensor, first_row: int, what: str) -> Predictive:
        prediction = self.posterior.predict(x, draws=self.draws, seed=self.seed, first_row=first_row)
        if len(prediction) != len(x):
            raise RunFailed(
                "a posterior must answer with one prediction a row",
                f"{len(prediction)} predictions for {len(x)} rows",
                "keep the first axis of the inputs in the network's forward",
            )
        _check_finite(prediction, first_row, what)
        return prediction


class _Rows(ABC):
    """Predictions and targets, reduced to what the scores of the whole set need."""

    @abstractmethod
    def add(self, prediction: Predictive, y: Tensor) -> None: ...

    @abstractmethod
    def scores(self) -> Numbers: ...

    @abstractmethod
    def uncertainty(self) -> tuple[Tensor, Tensor]:
        """Entropy and mutual information of each row, in nats."""

    @abstractmethod
    def __len__(self) -> int: ...


@final
class _ClassificationRows(_Rows):
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
            "ece": calibration.ece(mean, labels),
            "ece_adaptive": calibration.adaptive_ece(mean, labels),
            "ece_per_batch": calibration.ece_per_batch(mean, labels),
            "entropy": entropy.double().mean().item(),
            "mutual_information": information.double().mean().item(),
        }

    def uncertainty(self) -> tuple[Tensor, Tensor]:
        return self._columns[2], self._columns[3]

    def __len__(self) -> int:
        return len(self._columns[0])


@final
class _RegressionRows(_Rows):
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

    def uncertainty(self) -> tuple[Tensor, Tensor]:
        return self._whole.entropy, self._whole.mutual_information

    def __len__(self) -> int:
        return len(self._whole)


_ROWS: dict[str, type[_ClassificationRows] | type[_RegressionRows]] = {
    "classification": _ClassificationRows,
    "regression": _RegressionRows,
}


def _check_finite(prediction: Predictive, first_row: int, what: str) -> None:
    finite = (torch.isfinite(prediction.mean) & torch.isfinite(prediction.variance)).flatten(1).all(1)
    if not bool(finite.all()):
        bad = (~finite).nonzero()[:, 0]
        where = f"{len(bad)} of {len(finite)} {what}, the first at row {first_row + int(bad[0])}"
        raise RunFailed(
            "every prediction must be finite",
            f"NaN or infinity for {where}",
            "the weights are not finite or far too large: train again with a lower learning rate",
        )


def _no_rows(where: str) -> BadInput:
    return BadInput(
        "there must be rows to evaluate", f"{where}: none", "evaluate another split, or give the task rows"
    )


def _other_kind(kind: str, prediction: Predictive) -> BadInput:
    return BadInput(
        f"a task of kind '{kind}' needs a posterior of that kind",
        f"{prediction!r}",
        "evaluate the posterior on the kind of task that it was trained for",
    )
