"""``evaluate``: clean, shifted and confusion scores of anything that predicts, in one call."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from numbers import Integral
from typing import Any, Protocol, final

import torch
from torch import Tensor

from qbayes import noise
from qbayes.errors import BadInput, RunFailed, unknown_name
from qbayes.metrics import detection
from qbayes.metrics.choice import check_count, check_enough, choose_rows, take
from qbayes.metrics.rows import ROWS, Rows
from qbayes.metrics.scores import Numbers, Scores
from qbayes.posterior.predictive import Predictive
from qbayes.posterior.signature import Signature
from qbayes.provenance import versions
from qbayes.tasks.load import resolve_task
from qbayes.tasks.shifts import LEVELS, Level, shift

Batch = tuple[Tensor, Tensor]


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
    task: Evaluable | str,
    draws: int = 20,
    seed: int = 0,
    *,
    batch_size: int = 2048,
    split: str = "test",
    shifts: bool = True,
    confusion: bool = True,
    shift_rows: int | None = None,
    ood_rows: int | None = None,
    meta: Mapping[str, Any] | None = None,
    each_row: dict[str, Tensor] | None = None,
) -> Scores:
    """Scores over the whole split, under the task's shifts, and against its confusion data.

    The index of a row continues over the batches, so that its noise, and with it every score, does not depend
    on ``batch_size``; shifted rows see the noise of the clean ones, so that differences are paired.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> posterior = qb.fit(qb.network("mlp", task), task, qb.method("mcd"), qb.Budget(epochs=1), seed=0)
        >>> scores = qb.evaluate(posterior, task, draws=5, shift_rows=100)
        >>> rise = scores.shifted["rotation"][3]["ece"] - scores.unshifted["ece"]

    Args:
        posterior: What predicts.
        task: What it is scored on.
        draws: Draws from the posterior.
        seed: Key of the noise.
        batch_size: Rows that are predicted at once.
        split: ``train``, ``validation`` or ``test``.
        shifts: Whether the task's shifts are scored.
        confusion: Whether the task's confusion data are scored, where it has any.
        shift_rows: How many rows of the split are shifted, in a fixed choice that is the same in every run;
            all of them where it is not given. ``Scores.unshifted`` then holds the scores of these rows
            without a shift, with the noise that they have under every shift.
        ood_rows: How many confusion rows are scored, in such a choice; all of them where it is not given.
        meta: Added to what the scores record about themselves; nothing by default.
        each_row: Takes what was found for every clean row (float32; ``correct`` is uint8) and confusion row,
            for intervals by resampling; None by default.

    Returns:
        The scores. ``Scores.flat`` gives them by one name a number.

    Raises:
        BadInput: The task does not fit the posterior, or has fewer rows than are asked for.
        RunFailed: A prediction is not finite.
    """
    if not all(isinstance(count, Integral) and count >= 1 for count in (draws, batch_size)):
        raise BadInput(
            "draws and batch_size must be whole numbers of at least 1",
            f"draws={draws!r}, batch_size={batch_size!r}",
            "try draws=20, batch_size=2048",
        )
    check_count("shift_rows", shift_rows)
    check_count("ood_rows", ood_rows)
    task = resolve_task(task) if isinstance(task, str) else task
    _check_fits(posterior, task)
    run = _Run(posterior, task, int(draws), noise.check_seed(seed), int(batch_size), split)
    under = task.shifts if shifts else ()
    against = confusion and task.confusion_name is not None
    # what is asked for in vain is refused before anything is predicted.
    if under and shift_rows is not None:
        run.choose_shifted(int(shift_rows))
    if against and ood_rows is not None:
        run.choose_confusion(int(ood_rows))
    clean = run.rows("clean rows", run.whole(), _same)
    found = Scores(
        clean=clean.scores(),
        shifted={name: run.score_shift(name) for name in under},
        confusion=run.confusion(clean) if against else {},
        meta=run.meta(clean) | dict(meta or {}),
        unshifted=run.score_unshifted() if run.chosen is not None else {},
    )
    if each_row is not None:
        each_row.update(clean.each() | run.confusion_rows)
    return found


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
        self.confusion_rows: dict[str, Tensor] = {}
        # the rows that are shifted and those of the confusion data, where not all of them are scored.
        self.chosen: Batch | None = None
        self.chosen_confusion: Tensor | None = None

    def choose_shifted(self, rows: int) -> None:
        where = f"the split '{self.split}' of task '{self.task.name}'"
        there = sum(len(x) for x, _ in self.whole())
        check_enough("shift_rows", rows, there, where)
        x, y = take(self.whole(), choose_rows(there, rows))
        self.chosen = x, y

    def choose_confusion(self, rows: int) -> None:
        there = sum(map(len, self.task.confusion_batches(self.batch_size)))
        check_enough("ood_rows", rows, there, f"the confusion data of task '{self.task.name}'")
        batches = ((x,) for x in self.task.confusion_batches(self.batch_size))
        (self.chosen_confusion,) = take(batches, choose_rows(there, rows))

    def whole(self) -> Iterable[Batch]:
        """All rows of the split."""
        return self.task.batches(self.split, self.batch_size)

    def shiftable(self) -> Iterable[Batch]:
        """The rows that are shifted."""
        if self.chosen is None:
            return self.whole()
        x, y = self.chosen
        return zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)

    def rows(self, what: str, batches: Iterable[Batch], change: Callable[[Tensor], Tensor]) -> Rows:
        """Predictions for rows after ``change``, with their targets."""
        if self.task.kind not in ROWS:
            raise unknown_name("kind of task", self.task.kind, ROWS)
        rows = ROWS[self.task.kind]()
        first_row = 0
        for x, y in batches:
            rows.add(self._predict(change(x), first_row, what), y.cpu())
            first_row += len(x)
        if first_row == 0:
            raise _no_rows(f"split '{self.split}' of task '{self.task.name}'")
        return rows

    def score_shift(self, name: str) -> dict[int, Numbers]:
        if self.task.input_range is None:
            raise BadInput(
                "shifted scores need the inputs' black and white level",
                f"task '{self.task.name}' has shifts, but no input_range",
                "give the task input_range=(black, white) in raw units, or evaluate with shifts=False",
            )
        low, high = self.task.input_range
        found: dict[int, Numbers] = {}
        for level in range(1, len(LEVELS[name]) + 1):
            change = partial(shift, name=name, level=level, low=low, high=high)
            rows = self.rows(f"rows under {name} at level {level}", self.shiftable(), change)
            found[level] = rows.scores()
        return found

    def score_unshifted(self) -> Numbers:
        """What the rows that are shifted score without a shift, by the same noise."""
        return self.rows("rows without a shift", self.shiftable(), _same).scores()

    def confusion(self, test: Rows) -> Numbers:
        """Uncertainty on the confusion rows, and how well it tells them from the ``test`` rows."""
        parts: list[tuple[Tensor, Tensor]] = []
        first_row = 0
        kept = self.chosen_confusion
        every = self.task.confusion_batches(self.batch_size) if kept is None else kept.split(self.batch_size)
        for x in every:
            prediction = self._predict(x, first_row, "confusion rows")
            parts.append((prediction.entropy.cpu(), prediction.mutual_information.cpu()))
            first_row += len(x)
        if first_row == 0:
            raise _no_rows(f"the confusion data of task '{self.task.name}'")
        entropy, information = (torch.cat(columns) for columns in zip(*parts, strict=True))
        self.confusion_rows = {
            "confusion_entropy": entropy.float(),
            "confusion_mutual_information": information.float(),
        }
        test_entropy, test_information = test.uncertainty()
        return {
            "entropy": entropy.double().mean().item(),
            "mutual_information": information.double().mean().item(),
            "auroc": detection.auroc(test_entropy, entropy),
            "aupr": detection.aupr(test_entropy, entropy),
            "fpr95": detection.fpr95(test_entropy, entropy),
            "auroc_mutual_information": detection.auroc(test_information, information),
        }

    def meta(self, rows: Rows) -> dict[str, Any]:
        provenance = dict(getattr(self.posterior, "provenance", {}))
        return {
            "task": self.task.name,
            "kind": self.task.kind,
            "data": getattr(self.task, "fingerprint", None),
            "confusion": self.task.confusion_name,
            "split": self.split,
            "rows": len(rows),
            **self._numbers_of_rows(),
            "method": provenance.get("method"),
            "posterior": provenance,
            "draws": self.draws,
            "seed": self.seed,
            "device": str(getattr(self.posterior, "device", "unknown")),
            "versions": versions(),
        }

    def _numbers_of_rows(self) -> dict[str, int]:
        """How many rows were scored under each shift, and of the confusion data, where not all were."""
        shifted, confusing = self.chosen, self.chosen_confusion
        found = {} if shifted is None else {"shift_rows": len(shifted[0])}
        return found if confusing is None else {**found, "ood_rows": len(confusing)}

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


def _same(x: Tensor) -> Tensor:
    return x


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
