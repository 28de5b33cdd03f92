"""Where a task's rows come from: tensors in memory, or a loader that is asked for them again and again.

Means and deviations of rows are taken in one pass, however many there are. Sources give raw units:
``Task`` augments and standardises what they give.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.posterior.signature import Standardize
from qbayes.tasks.arrays import (
    Array,
    Kind,
    as_inputs,
    as_labels,
    as_targets,
    check_rows,
    check_same_shape,
    equal_targets,
    one_class,
)

Batch = tuple[Tensor, Tensor]
# factory(split, seed) gives batches (x, y); for the split "confusion" it may give x alone.
LoaderFactory = Callable[[str, int], Iterable[tuple[Array, Array] | list[Array] | Array]]


@dataclass(frozen=True, eq=False)
class Split:
    """One part of a task in raw units.

    ``x`` is ``(rows, *input_shape)``, uint8 for images and float32 otherwise; ``y`` is ``(rows,)`` int64
    labels, or ``(rows, *target_shape)`` float32 in the task's units.
    """

    x: Tensor
    y: Tensor


class Source(Protocol):
    """What ``Task`` asks of its data."""

    def batches(self, split: str, batch_size: int) -> Iterator[Batch]: ...

    def confusion(self, batch_size: int) -> Iterator[Tensor]: ...

    def shuffle(
        self, batch_size: int, generator: torch.Generator, device: torch.device, epoch: int
    ) -> Iterator[Batch]: ...


@dataclass(frozen=True, eq=False)
class InMemory:
    """Tensors: moved to the training device once and indexed there, without a DataLoader."""

    parts: Mapping[str, Split]
    confusion_inputs: Tensor | None = None
    _on_device: dict[torch.device, Split] = field(default_factory=dict, repr=False)

    def batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        part = self.parts[split]
        for start in range(0, len(part.x), batch_size):
            yield part.x[start : start + batch_size], part.y[start : start + batch_size]

    def confusion(self, batch_size: int) -> Iterator[Tensor]:
        assert self.confusion_inputs is not None
        yield from self.confusion_inputs.split(batch_size)

    def shuffle(
        self, batch_size: int, generator: torch.Generator, device: torch.device, epoch: int
    ) -> Iterator[Batch]:
        part = self._training_part(device)
        rows = len(part.x)
        order = torch.randperm(rows, generator=generator).to(device)
        for start in range(0, rows, batch_size):
            chosen = order[start : start + batch_size]
            if _trainable(len(chosen), batch_size, first=start == 0):
                yield part.x[chosen], part.y[chosen]

    def _training_part(self, device: torch.device) -> Split:
        if device not in self._on_device:
            self._on_device.clear()  # one copy at a time: a task that changes device frees the old memory
            train = self.parts["train"]
            self._on_device[device] = Split(train.x.to(device), train.y.to(device))
        return self._on_device[device]


@dataclass
class Variation:
    """Whether a pass over batches shows more than one label or target; most often its first batch does."""

    first: Tensor | None = None
    found: bool = False

    def add(self, y: Tensor) -> None:
        self.first = y[:1] if self.first is None else self.first
        self.found = self.found or bool((y != self.first).any())

    def check(self, kind: Kind, rows: int) -> None:
        if self.first is not None and not self.found:
            raise one_class(int(self.first)) if kind == "classification" else equal_targets(rows)


@dataclass(frozen=True, eq=False)
class Loader:
    """Batches of a factory, checked as they come and cut anew to the batch size asked for.

    ``rows`` is the number of training rows: every epoch must give exactly so many.
    """

    factory: LoaderFactory
    kind: Kind
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    classes: int | None
    rows: int

    def batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        return _recut(self._check(split, 0), batch_size)

    def confusion(self, batch_size: int) -> Iterator[Tensor]:
        for x in self._confusion_inputs():
            yield from x.split(batch_size)

    def shuffle(
        self, batch_size: int, generator: torch.Generator, device: torch.device, epoch: int
    ) -> Iterator[Batch]:
        seed = int(torch.randint(0, 2**31 - 1, (), generator=generator))
        first, seen = True, 0
        variation = Variation()
        for x, y in _recut(self._check("train", seed), batch_size):
            seen += len(x)
            variation.add(y)
            if seen > self.rows:
                raise self._wrong_rows(f"more than {self.rows} rows in epoch {epoch}")
            if _trainable(len(x), batch_size, first):
                yield x.to(device), y.to(device)
            first = False
        if seen < self.rows:
            raise self._wrong_rows(f"{seen} rows in epoch {epoch}")
        variation.check(self.kind, seen)

    def _check(self, split: str, seed: int) -> Iterator[Batch]:
        for x, y in read_batches(self.factory, self.kind, split, seed):
            check_same_shape(x, self.input_shape, f"a {split} batch of inputs")
            check_same_shape(y, self.target_shape, f"a {split} batch of targets")
            if self.classes is not None and int(y.max()) >= self.classes:
                raise BadInput(
                    f"labels must be 0 … {self.classes - 1}",
                    f"the label {int(y.max())} in the {split} data",
                    "check the loader, or the number of classes given",
                )
            yield x, y

    def _confusion_inputs(self) -> Iterator[Tensor]:
        for batch in self.factory("confusion", 0):
            x = as_inputs(batch[0] if isinstance(batch, tuple | list) else batch, "a confusion batch")
            check_same_shape(x, self.input_shape, "a confusion batch")
            yield x

    def _wrong_rows(self, got: str) -> BadInput:
        return BadInput(
            f"every epoch must give the task's {self.rows} training rows (the loss is scaled with them)",
            got,
            "give the true number in rows=, and let the loader keep its last batch (drop_last=False)",
        )


def read_batches(factory: LoaderFactory, kind: Kind, split: str, seed: int) -> Iterator[Batch]:
    """The factory's batches as checked tensors."""
    read_y = as_labels if kind == "classification" else as_targets
    for batch in factory(split, seed):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise BadInput(
                f"the loader must give pairs (x, y) for the split '{split}'",
                f"{type(batch).__name__}",
                "yield one tuple of inputs and targets for each batch",
            )
        x, y = (
            as_inputs(batch[0], f"a {split} batch of inputs"),
            read_y(batch[1], f"a {split} batch of targets"),
        )
        check_rows(x, y, split)
        yield x, y


def _trainable(rows: int, batch_size: int, first: bool) -> bool:
    """A single row left over after other batches is not: batch normalisation cannot use it."""
    return rows > 1 or first or batch_size == 1


def _recut(batches: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    """The same rows in the same order, in batches of ``batch_size``."""
    waiting: list[Batch] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += len(batch[0])
        if held < batch_size:
            continue
        x, y = torch.cat([b[0] for b in waiting]), torch.cat([b[1] for b in waiting])
        whole = held - held % batch_size
        yield from zip(x[:whole].split(batch_size), y[:whole].split(batch_size), strict=True)
        waiting, held = ([(x[whole:], y[whole:])], held - whole) if held > whole else ([], 0)
    if waiting:
        yield torch.cat([b[0] for b in waiting]), torch.cat([b[1] for b in waiting])


class Moments:
    """Running mean and sum of squared deviations of each feature or channel, merged batch by batch.

    With n rows seen and m new ones, ``δ = mean_new − mean``:
    ``mean ← mean + δ m / (n + m)``, ``M2 ← M2 + M2_new + δ² n m / (n + m)``
    (Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983).
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(0, dtype=torch.float64)
        self.squares = torch.zeros(0, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """``x`` is ``(rows, features, …)``; all axes but the second are averaged over."""
        wide = x.double().transpose(0, 1).flatten(1)
        count, mean = wide.shape[1], wide.mean(1)
        squares = (wide - mean[:, None]).square().sum(1)
        if self.count == 0:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, delta = self.count + count, mean - self.mean
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def standardize(self) -> Standardize:
        """The transform to mean 0 and (biased) standard deviation 1; a constant column has ``std`` 1."""
        std = (self.squares / self.count).sqrt()
        # below the rounding of the column's own magnitude there is no variance to divide by.
        constant = std <= 1e-12 * self.mean.abs() + 1e-30
        return Standardize(self.mean.float(), torch.where(constant, torch.ones_like(std), std).float())


def fit_standardize(x: Tensor, chunk: int = 4096) -> Standardize:
    """``Standardize`` of all rows of ``x``, without a float64 copy of the whole."""
    moments = Moments()
    for start in range(0, len(x), chunk):
        moments.add(x[start : start + chunk])
    return moments.standardize()
