"""A task: what is learnt. Splits in raw units, likelihood, standardisation, shifts and confusion data."""

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
    """Splits, likelihood, input and target scale, shifts and confusion data of one problem.

    ``train_rows`` is the exact number of training rows (the scale of the ELBO). ``input_range`` is the raw
    black and white level of images, None otherwise. ``fingerprint`` is a sha256 of the data, the splits
    and the options, and ``provenance`` says in JSON where they came from.
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
        """The rows of ``split`` in order, raw units, on the CPU."""
        self._check(split, batch_size)
        return self.source.batches(split, batch_size)

    def confusion_batches(self, batch_size: int) -> Iterator[Tensor]:
        """Raw inputs that belong to none of the classes."""
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
        """One shuffled epoch on ``device``: augmented, inputs and regression targets standardised.

        The order comes from the CPU ``generator``, augmentation from torch's global one. A last batch of
        a single row is left out where there is another batch: batch normalisation cannot use it.
        """
        self._check("train", batch_size)
        return self._prepare(self.source.shuffle(batch_size, generator, device, epoch), device)

    def example(self, rows: int = 2) -> Tensor:
        """A few training inputs, standardised, on the CPU: for dry runs."""
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

        ``validation`` is the share of training rows taken out with ``seed``. Standardisation is fitted on
        the rows that remain (False: none; a ``Standardize``: that one for the inputs). ``labels`` names
        the classes, or the targets. uint8 images ``(rows, channels, height, width)`` have the range 0 … 255
        and all shifts; for float images give ``input_range=(black, white)``.
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
        """A classification task without training rows: to test on, or to serve as confusion data."""
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

        ``factory(split, seed)`` gives an iterable of batches ``(x, y)``; the seed changes with every
        training epoch, so that it can shuffle reproducibly, and is 0 otherwise. A ``confusion_name`` says
        that ``factory("confusion", 0)`` gives batches of inputs. What is not given of ``rows``,
        ``classes``, ``standardize`` and ``target`` is found in one pass over the training data. Data of a
        single class, or of equal targets, is refused by that pass, or without one after the first epoch.
        ``identity`` names the data and its version in the fingerprint.
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
