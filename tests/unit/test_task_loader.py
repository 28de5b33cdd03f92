"""Tasks from a loader equal the same task in memory."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.signature import Standardize
from qbayes.tasks import Task
from qbayes.tasks.source import Batch, LoaderFactory

CPU = torch.device("cpu")
X = torch.from_numpy(np.random.RandomState(0).normal(3.0, 2.0, (50, 4))).float()
Y = torch.arange(50) % 5
T = X[:, :2] * 10


class Store:
    """A factory that notes how it was asked."""

    def __init__(self, y: torch.Tensor, sizes: int = 7) -> None:
        self.y, self.sizes = y, sizes
        self.calls: list[tuple[str, int]] = []
        self.given = 0

    def __call__(self, split: str, seed: int) -> Iterator[Batch]:
        self.calls.append((split, seed))
        rows = {"train": 50, "validation": 9, "test": 20, "confusion": 6}[split]
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        order = order if seed else torch.arange(rows)
        for part in order.split(self.sizes):
            self.given += 1
            yield X[part], self.y[part]


def test_one_pass_finds_rows_classes_and_scale() -> None:
    store = Store(Y)
    task = Task.from_loader(store, kind="classification", splits=("test", "train"))
    assert store.calls == [("train", 0)]
    memory = Task.from_arrays(X, Y, X[:20], Y[:20], kind="classification")
    assert (task.train_rows, task.splits) == (50, ("train", "test"))
    assert task.signature.likelihood == Categorical(5)
    torch.testing.assert_close(task.signature.transform.mean, memory.signature.transform.mean)
    torch.testing.assert_close(task.signature.transform.std, memory.signature.transform.std)
    assert task.signature.labels == memory.signature.labels


def test_what_is_given_is_not_searched_for() -> None:
    store = Store(Y)
    task = Task.from_loader(
        store, kind="classification", rows=50, classes=6, standardize=Standardize.identity(4)
    )
    assert store.given == 1  # one batch, for the shapes
    assert task.signature.likelihood == Categorical(6)


@pytest.mark.parametrize("batch_size", [1, 4, 7, 20, 33, 100])
def test_batches_are_cut_anew_without_losing_a_row(batch_size: int) -> None:
    task = Task.from_loader(Store(Y), kind="classification", splits=("train", "validation", "test"))
    batches = list(task.batches("test", batch_size))
    assert torch.equal(torch.cat([x for x, _ in batches]), X[:20])
    assert torch.equal(torch.cat([y for _, y in batches]), Y[:20])
    assert all(len(x) == batch_size for x, _ in batches[:-1])


def test_regression_targets_are_standardised_in_training_and_raw_in_batches() -> None:
    task = Task.from_loader(Store(T), kind="regression")
    memory = Task.from_arrays(X, T, kind="regression")
    scale, expected = task.signature.target, memory.signature.target
    assert scale is not None
    assert expected is not None
    torch.testing.assert_close(scale.mean, expected.mean)
    trained = torch.cat([y for _, y in task.training_batches(8, torch.Generator(), CPU, 0)])
    torch.testing.assert_close(trained.std(0, correction=0), torch.ones(2))
    assert torch.equal(torch.cat([y for _, y in task.batches("train", 8)]), T)


def test_epochs_have_their_own_seed_and_repeat_with_the_generator() -> None:
    store = Store(Y)
    task = Task.from_loader(store, kind="classification")

    def two_epochs() -> list[list[int]]:
        generator = torch.Generator().manual_seed(1)
        return [
            torch.cat([y for _, y in task.training_batches(8, generator, CPU, k)]).tolist() for k in range(2)
        ]

    first, second = two_epochs(), two_epochs()
    assert first == second
    assert first[0] != first[1]
    assert sorted(first[0]) == sorted(Y.tolist())


def test_a_single_last_row_is_left_out() -> None:
    task = Task.from_loader(Store(Y), kind="classification")
    sizes = [len(x) for x, _ in task.training_batches(7, torch.Generator(), CPU, 0)]
    assert sizes == [7] * 7


def test_confusion_batches_and_fingerprint() -> None:
    task = Task.from_loader(Store(Y), kind="classification", confusion_name="odd", identity="v1")
    assert torch.equal(torch.cat(list(task.confusion_batches(4))), X[:6])
    inputs_only = Task.from_loader(
        lambda split, seed: [X[:6]] if split == "confusion" else Store(Y)(split, seed),
        kind="classification",
        confusion_name="odd",
        identity="v1",
    )
    assert torch.equal(torch.cat(list(inputs_only.confusion_batches(4))), X[:6])
    assert inputs_only.fingerprint == task.fingerprint
    other = Task.from_loader(Store(Y), kind="classification", confusion_name="odd", identity="v2")
    assert other.fingerprint != task.fingerprint


def test_example_is_standardised() -> None:
    task = Task.from_loader(Store(Y), kind="classification")
    torch.testing.assert_close(task.example(3), task.signature.transform.apply(X[:3]))


@pytest.mark.parametrize("rows", [49, 51])
def test_an_epoch_must_have_the_rows_it_said(rows: int) -> None:
    task = Task.from_loader(Store(Y), kind="classification", rows=rows)
    with pytest.raises(BadInput, match="every epoch"):
        list(task.training_batches(8, torch.Generator(), CPU, 3))


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        (lambda split, seed: [], {}, "an empty iterable"),
        (lambda split, seed: [X], {}, "pairs"),
        (lambda split, seed: [(X, Y[:3])], {}, "50 inputs and 3 targets"),
        (lambda split, seed: [(X, Y), (X[:, :2], Y)], {}, "shape of the training data"),
        (lambda split, seed: [(X * float("nan"), Y)], {}, "finite"),
        (lambda split, seed: [(X, Y * 0)], {}, "two classes"),
        (lambda split, seed: [(X, Y)], {"classes": 3}, "the label 4"),
        (lambda split, seed: [(X, Y)], {"classes": 5, "labels": ["a"]}, "one label for each"),
        (lambda split, seed: [(X, Y)], {"splits": ("train", "tset")}, "did you mean 'test'"),
        (lambda split, seed: [(X, Y)], {"splits": ("test",)}, "split 'train'"),
        ([(X, Y)], {}, "function of .split, seed.*\n.*list"),
        (lambda split: [(X, Y)], {}, "too many positional arguments"),
        (lambda split, seed: [(X, Y)], {"classes": "5"}, "classes must be a whole number.*\n.*'5'"),
        (lambda split, seed: [(X, Y * 0)], {"classes": 1}, "classes must be a whole number of at least 2"),
        (lambda split, seed: [(X, Y)], {"labels": ["a"]}, "classes must be a whole number of at least 2"),
        (lambda split, seed: [(X, Y)], {"rows": 0}, "rows must be a whole number of at least 1"),
        (lambda split, seed: [(X, Y)], {"rows": 50.0}, "rows must be a whole number of at least 1"),
        (lambda split, seed: [(X, Y * 0)], {"classes": 5, "rows": 50}, "two classes"),
        (lambda split, seed: [(X, Y)], {"labels": ["a"] * 5}, "more than once"),
        (lambda split, seed: [(X, Y)], {"standardize": "no"}, "True, False or a Standardize"),
    ],
)
def test_bad_loaders(factory: LoaderFactory, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Task.from_loader(factory, kind="classification", **options)


def test_counts_may_be_numbers_of_numpy() -> None:
    counts: dict[str, Any] = {"rows": np.int64(50), "classes": np.int32(5)}
    task = Task.from_loader(Store(Y), kind="classification", **counts)
    assert type(task.train_rows) is int
    assert task.signature.likelihood == Categorical(5)
    json.dumps([task.provenance, task.signature.to_json()])


def test_targets_that_do_not_vary_are_found_in_the_pass_over_the_rows() -> None:
    with pytest.raises(BadInput, match=r"vary.*\n.*50 equal rows"):
        Task.from_loader(Store(T * 0 + 3), kind="regression")
    with pytest.raises(BadInput, match="vary"):
        Task.from_loader(Store(T * 0 + 3), kind="regression", rows=50, target=Standardize.identity(2))


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_targets_that_do_not_vary_are_found_by_the_first_epoch_where_no_pass_was_made(kind: str) -> None:
    labelled = kind == "classification"
    given: dict[str, Any] = {"classes": 5} if labelled else {"target": Standardize.identity(2)}
    store = Store(Y * 0 + 2 if labelled else T * 0 + 3)
    task = Task.from_loader(store, kind=kind, rows=50, standardize=False, **given)
    assert store.given == 1
    with pytest.raises(BadInput, match="only the label 2" if labelled else "50 equal rows"):
        list(task.training_batches(8, torch.Generator(), CPU, 0))


def test_near_times_in_a_batch_are_no_loss() -> None:
    """A batch may hold rows that are close together beside the spread of all."""
    x = 1.7e9 + 3e7 * X.double()
    x[:2] = 1.7e9 + torch.arange(8.0, dtype=torch.float64).view(2, 4)
    task = Task.from_loader(
        lambda split, seed: zip(x.split(2), Y.split(2), strict=True), kind="classification"
    )
    assert task.train_rows == 50


def test_a_later_label_out_of_range_is_found_while_streaming() -> None:
    store = Store(Y)
    task = Task.from_loader(store, kind="classification")
    store.y = Y + 3
    with pytest.raises(BadInput, match="labels must be 0 … 4"):
        list(task.batches("test", 8))
