"""A task: what is learnt. Splits in raw units, likelihood, standardisation, shifts and confusion data.

The fixed splits and folds of the literature stand first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadInput, unknown_name
from qbayes.posterior.signature import Signature, Standardize
from qbayes.tasks.arrays import Array, Kind
from qbayes.tasks.assemble import SPLITS, Look, for_testing, in_memory
from qbayes.tasks.augment import Augment
from qbayes.tasks.source import Batch, LoaderFactory, Source, Split
from qbayes.tasks.stream import stream_fields

_SEED = 1
# every split is found behind those before it: where nobody says how many there are, that has an end too.
_MOST_SPLITS = 1000


def split_rows(
    rows: int, split: int, splits: int | None = None, share: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """``(training rows, test rows)`` of split number ``split``.

    One generator, seeded with 1, gives a permutation of the rows for each split in turn, of which the
    first ``round(0.9 rows)`` train. For the UCI sets these are the 20 splits of Hernández-Lobato & Adams,
    "Probabilistic backpropagation" (2015), index for index.
    """
    _check(split, _MOST_SPLITS if splits is None else splits)
    # the legacy generator: the splits were made with it, and numpy promises that its stream never changes.
    generator = np.random.RandomState(_SEED)
    for _ in range(split):
        generator.permutation(rows)
    order = generator.permutation(rows)
    first = round(share * rows)
    return order[:first], order[first:]


def fold(rows: int, number: int, folds: int) -> tuple[np.ndarray, np.ndarray]:
    """``(training rows, test rows)`` of fold ``number`` of ``folds``: shuffled once, cut evenly."""
    _check(number, folds)
    parts = np.array_split(np.random.RandomState(_SEED).permutation(rows), folds)
    return np.concatenate([part for k, part in enumerate(parts) if k != number]), parts[number]


def _check(split: int, splits: int) -> None:
    if not isinstance(split, Integral) or not 0 <= split < splits:
        raise BadInput(f"the split must be 0 … {splits - 1}", f"{split!r}", "split=0 is the first")


__all__ = ["Split", "Task"]


@dataclass(frozen=True, eq=False)
class Task:
    """What is learnt: splits, likelihood, input and target scale, shifts and confusion data of one problem.

    ``load_task`` and ``Task.from_arrays`` make tasks.

    Example:
        >>> import qbayes as qb
        >>> task = qb.load_task("digits")
        >>> task.kind, task.train_rows, task.splits
        ('classification', 1213, ('train', 'validation', 'test'))
        >>> x, y = next(iter(task.batches("test", 8)))
        >>> tuple(x.shape)
        (8, 1, 8, 8)

    Attributes:
        name: The task's name.
        kind: ``classification`` or ``regression``.
        signature: Input shape, input and target scale, likelihood and labels.
        train_rows: The exact number of training rows (the scale of the ELBO); 0 for a task to test on.
        splits: Those of ``train``, ``validation`` and ``test`` that are there.
        input_range: The raw black and white level of images; None otherwise.
        shifts: The shifts under which it can be scored, by name.
        confusion_name: The name of the confusion data; None without any.
        fingerprint: A sha256 of the data, the splits and the options.
        provenance: Where all this came from, as JSON.
        source: Gives the rows in raw units.
        augment: Varies a batch of training inputs in raw units; None by default.
    """

    name: str
    kind: Kind
    signature: Signature
    train_rows: int
    splits: tuple[str, ...]
    input_range: tuple[float, float] | None
    shifts: tuple[str, ...]
    confusion_name: str | None
    fingerprint: str
    provenance: dict[str, Any]
    source: Source = field(repr=False)
    augment: Augment | None = None

    def batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """The rows of a split in order, raw units, on the CPU.

        Args:
            split: ``train``, ``validation`` or ``test``.
            batch_size: Rows of a batch; the last one may have fewer.

        Returns:
            Pairs of inputs and targets.

        Raises:
            BadInput: The task has no such split.
        """
        self._check(split, batch_size)
        return self.source.batches(split, batch_size)

    def confusion_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Raw inputs that belong to none of the classes.

        Args:
            batch_size: Rows of a batch; a batch may have fewer.

        Raises:
            BadInput: The task has no confusion data.
        """
        self._check(None, batch_size)
        if self.confusion_name is None:
            raise BadInput(
                "confusion scores need a task with confusion data",
                f"'{self.name}' has none",
                "give x_confusion=, or fetch the files of the confusion data",
            )
        return self.source.confusion(batch_size)

    def training_batches(
        self, batch_size: int, generator: torch.Generator, device: torch.device, epoch: int
    ) -> Iterator[Batch]:
        """One shuffled epoch: augmented, inputs and regression targets standardised.

        A last batch of a single row is left out where there is another batch: batch normalisation cannot use
        it.

        Args:
            batch_size: Rows of a batch.
            generator: On the CPU; it decides the order. Augmentation draws from torch's global one.
            device: Where the batches lie.
            epoch: Number of the epoch, for messages.

        Returns:
            Pairs of inputs and targets, in network units.
        """
        self._check("train", batch_size)
        return self._prepare(self.source.shuffle(batch_size, generator, device, epoch), device)

    def example(self, rows: int = 2) -> Tensor:
        """The first training inputs, standardised, on the CPU: for dry runs.

        Args:
            rows: How many.
        """
        self._check("train", rows)
        x, _ = next(iter(self.source.batches("train", rows)))
        return self.signature.transform.apply(x)

    def _prepare(self, batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
        transform = self.signature.transform.to(device)
        target = None if self.signature.target is None else self.signature.target.to(device)
        for x, y in batches:
            varied = x if self.augment is None else self.augment(x)
            yield transform.apply(varied), y if target is None else target.apply(y)

    def _check(self, split: str | None, batch_size: int) -> None:
        if batch_size < 1:
            raise BadInput("a batch must have at least one row", f"{batch_size}", "give a positive number")
        if split is None or split in self.splits:
            return
        if split not in SPLITS:
            raise unknown_name("split", split, self.splits)
        raise BadInput(
            f"this needs {split} data",
            f"'{self.name}' has {' and '.join(self.splits)} data only",
            {
                "train": "use another task to train; this one serves for testing and as confusion data",
                "validation": "take a share of the training rows with validation=0.1",
                "test": "give x_test and y_test",
            }[split],
        )

    @staticmethod
    def from_arrays(
        x_train: Array,
        y_train: Array,
        x_test: Array | None = None,
        y_test: Array | None = None,
        *,
        kind: str,
        x_validation: Array | None = None,
        y_validation: Array | None = None,
        validation: float = 0.0,
        x_confusion: Array | None = None,
        confusion_name: str | None = None,
        labels: Sequence[str] | None = None,
        standardize: bool | Standardize = True,
        input_range: tuple[float, float] | None = None,
        shifts: Sequence[str] | None = None,
        augment: Augment | None = None,
        name: str = "arrays",
        seed: int = 0,
    ) -> "Task":
        """A task from arrays, lists or tensors ``(rows, *any_shape)``.

        Example:
            >>> import numpy as np, qbayes as qb
            >>> x = np.random.default_rng(0).normal(size=(100, 3))
            >>> task = qb.Task.from_arrays(x, x.sum(1), kind="regression", validation=0.2)
            >>> task.train_rows, task.splits
            (80, ('train', 'validation'))

        Args:
            x_train: Training inputs, uint8 or real.
            y_train: Labels ``0 … K − 1``, or real targets.
            x_test: Test inputs; by default there is no test split.
            y_test: Their targets.
            kind: ``classification`` or ``regression``.
            x_validation: Validation inputs; none by default.
            y_validation: Their targets.
            validation: The share of the training rows that is taken out for validation; 0, none, by default.
            x_confusion: Inputs that belong to none of the classes; none by default.
            confusion_name: Their name, ``confusion`` by default.
            labels: Names of the classes, or of the targets; by default the classes' numbers, or none.
            standardize: True fits the scales of inputs and regression targets on the training rows that
                remain; False takes none; a ``Standardize`` is that of the inputs.
            input_range: The raw ``(black, white)`` levels of images ``(rows, channels, height, width)``; by
                default 0 … 255 for uint8, and none for float.
            shifts: Names of the shifts to score; by default all for images with a range, and none otherwise.
            augment: Varies a batch of training inputs in raw units; None by default.
            name: The task's name.
            seed: Decides which rows become validation rows.

        Raises:
            BadInput: The arrays do not fit each other, or an option does not fit them.
        """
        given = {
            "train": (x_train, y_train),
            "validation": (x_validation, y_validation),
            "test": (x_test, y_test),
        }
        look = Look(name, labels, standardize, input_range, shifts, augment, confusion_name)
        return Task(**in_memory(given, x_confusion, kind, look, validation=validation, seed=seed))

    @staticmethod
    def for_testing(x_test: Array, y_test: Array, *, labels: Sequence[str], name: str) -> "Task":
        """A classification task without training rows: to test on, or to serve as confusion data.

        Args:
            x_test: Test inputs; they are not standardised.
            y_test: Labels ``0 … K − 1``.
            labels: Names of the classes.
            name: The task's name.
        """
        return Task(**for_testing(x_test, y_test, Look(name, labels, False, None, None, None, None)))

    @staticmethod
    def from_loader(
        factory: LoaderFactory,
        *,
        kind: str,
        splits: Sequence[str] = ("train", "test"),
        classes: int | None = None,
        rows: int | None = None,
        standardize: bool | Standardize = True,
        target: Standardize | None = None,
        labels: Sequence[str] | None = None,
        confusion_name: str | None = None,
        input_range: tuple[float, float] | None = None,
        shifts: Sequence[str] | None = None,
        augment: Augment | None = None,
        name: str = "loader",
        identity: str = "",
    ) -> "Task":
        """A task whose rows do not fit memory.

        What is not given of ``rows``, ``classes``, ``standardize`` and ``target`` is found in one pass over
        the training data. Data of a single class, or of equal targets, is refused by that pass, or without
        one after the first epoch.

        Args:
            factory: ``factory(split, seed)`` gives an iterable of batches ``(x, y)``. The seed changes with
                every training epoch, so that it can shuffle reproducibly, and is 0 otherwise.
            kind: ``classification`` or ``regression``.
            splits: The splits that the factory has; ``train`` must be among them.
            classes: The number of classes.
            rows: The exact number of training rows.
            standardize: As in ``from_arrays``, for the inputs alone.
            target: The scale of regression targets; by default it is fitted.
            labels: As in ``from_arrays``.
            confusion_name: Says that ``factory("confusion", 0)`` gives batches of inputs; None: there are
                none.
            input_range: As in ``from_arrays``.
            shifts: As in ``from_arrays``.
            augment: As in ``from_arrays``.
            name: The task's name.
            identity: Names the data and its version in the fingerprint; nothing by default.

        Raises:
            BadInput: The factory's batches do not fit each other, or an option does not fit them.
        """
        look = Look(name, labels, standardize, input_range, shifts, augment, confusion_name)
        fields = stream_fields(
            factory,
            kind,
            splits=splits,
            classes=classes,
            rows=rows,
            target=target,
            identity=identity,
            look=look,
        )
        return Task(**fields)
