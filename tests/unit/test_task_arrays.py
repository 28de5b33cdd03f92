"""Tasks from arrays: what goes in comes out, standardised where it trains, and bad data is refused."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Standardize
from qbayes.tasks import Task
from qbayes.tasks.arrays import Array
from qbayes.tasks.augment import CropAndFlip, Cutout, InTurn
from qbayes.tasks.source import Moments, fit_standardize

CPU = torch.device("cpu")
X = np.random.RandomState(0).normal(5.0, 3.0, (40, 3))
Y = np.arange(40) % 4
T = X.sum(1)
IMAGES = np.random.RandomState(1).randint(0, 256, (40, 2, 12, 12)).astype(np.uint8)


def epoch(task: Task, batch_size: int = 8, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(task.training_batches(batch_size, torch.Generator().manual_seed(seed), CPU, 0))


def rows_of(x: torch.Tensor) -> list[tuple[float, ...]]:
    return sorted(tuple(row) for row in x.flatten(1).tolist())


def test_batches_give_the_raw_rows_in_order() -> None:
    task = Task.from_arrays(X, Y, X[:7], Y[:7], kind="classification")
    assert task.splits == ("train", "test")
    x, y = (torch.cat(part) for part in zip(*task.batches("train", 16), strict=True))
    assert torch.equal(x, torch.tensor(X, dtype=torch.float32))
    assert y.tolist() == Y.tolist()
    assert [len(b) for b, _ in task.batches("test", 3)] == [3, 3, 1]


def test_training_batches_are_standardised_shuffled_and_complete() -> None:
    task = Task.from_arrays(X, T, kind="regression")
    x, y = (torch.cat(part) for part in zip(*epoch(task), strict=True))
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3))
    torch.testing.assert_close(y.std(correction=0), torch.tensor(1.0))
    scale = task.signature.target
    assert scale is not None
    # each row kept its own target.
    back = task.signature.transform.invert(x).sum(1, keepdim=True)
    torch.testing.assert_close(scale.invert(y), back, atol=1e-3, rtol=0)
    assert rows_of(task.signature.transform.invert(x).round(decimals=3)) == rows_of(
        torch.tensor(X, dtype=torch.float32).round(decimals=3)
    )
    assert task.train_rows == 40


def test_the_order_is_one_randperm_of_the_generator() -> None:
    task = Task.from_arrays(X, Y, kind="classification", standardize=False)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    labels = torch.cat([y for _, y in epoch(task, 7, seed=3)])
    assert labels.tolist() == torch.tensor(Y)[order].tolist()


@pytest.mark.parametrize(
    ("batch_size", "sizes"), [(13, [13, 13, 13]), (40, [40]), (19, [19, 19, 2]), (1, [1] * 40)]
)
def test_a_last_single_row_is_left_out_only_after_another_batch(batch_size: int, sizes: list[int]) -> None:
    task = Task.from_arrays(X, Y, kind="classification")
    assert [len(x) for x, _ in epoch(task, batch_size)] == sizes


def test_regression_targets_become_columns_in_their_own_units() -> None:
    task = Task.from_arrays(X, T, X[:5], T[:5], kind="regression")
    assert task.signature.likelihood == Gaussian((1,))
    _, y = next(task.batches("test", 5))
    assert torch.equal(y, torch.tensor(T[:5, None], dtype=torch.float32))


def test_validation_rows_are_disjoint_seeded_and_not_used_for_the_scale() -> None:
    task = Task.from_arrays(X, Y, kind="classification", validation=0.25, seed=5)
    (train, _), (held, _) = next(task.batches("train", 99)), next(task.batches("validation", 99))
    assert (len(train), len(held), task.train_rows) == (30, 10, 30)
    assert rows_of(torch.cat([train, held])) == rows_of(torch.tensor(X, dtype=torch.float32))
    torch.testing.assert_close(task.signature.transform.mean, train.mean(0))
    other = Task.from_arrays(X, Y, kind="classification", validation=0.25, seed=6)
    again = Task.from_arrays(X, Y, kind="classification", validation=0.25, seed=5)
    assert task.fingerprint == again.fingerprint != other.fingerprint


def test_uint8_images_have_a_range_and_all_shifts() -> None:
    task = Task.from_arrays(IMAGES, Y, kind="classification", x_confusion=IMAGES[:3], confusion_name="noise")
    assert task.input_range == (0.0, 255.0)
    assert task.shifts == ("rotation", "brightness", "horizontal_shift")
    assert next(task.batches("train", 4))[0].dtype == torch.uint8
    assert task.confusion_name == "noise"
    assert torch.equal(torch.cat(list(task.confusion_batches(2))), torch.from_numpy(IMAGES[:3]))
    example = task.example(2)
    torch.testing.assert_close(example, task.signature.transform.apply(torch.from_numpy(IMAGES[:2])))


def test_float_images_have_shifts_only_with_a_range() -> None:
    plain = Task.from_arrays(IMAGES / 255.0, Y, kind="classification")
    ranged = Task.from_arrays(
        IMAGES / 255.0, Y, kind="classification", input_range=(0, 1), shifts=["rotation"]
    )
    assert (plain.input_range, plain.shifts) == (None, ())
    assert (ranged.input_range, ranged.shifts) == ((0.0, 1.0), ("rotation",))


@pytest.mark.parametrize("shape", [(40, 1), (40, 3, 5), (40, 1, 6, 4), (40, 2, 3, 4, 5)])
def test_any_input_shape(shape: tuple[int, ...]) -> None:
    x = np.random.RandomState(0).normal(size=shape)
    task = Task.from_arrays(x, Y, kind="classification")
    assert task.signature.input_shape == shape[1:]
    trained = torch.cat([b for b, _ in epoch(task)])
    axes = [axis for axis in range(len(shape)) if axis != 1]
    torch.testing.assert_close(trained.mean(axes), torch.zeros(shape[1]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor, lambda a: np.asarray(a).tolist()])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int16, np.uint16, np.bool_, ">f8"])
def test_lists_arrays_and_tensors_of_any_type_give_the_same_task(
    make: Callable[[np.ndarray], Array], dtype: DTypeLike
) -> None:
    x = np.asarray(np.arange(80).reshape(40, 2) % 7, dtype)
    native = x.astype(x.dtype.newbyteorder("="))
    reference = Task.from_arrays(x.astype(np.float32), Y, kind="classification")
    assert Task.from_arrays(make(native), make(Y), kind="classification").fingerprint == reference.fingerprint
    assert (
        Task.from_arrays(x, Y.astype(np.float64), kind="classification").fingerprint == reference.fingerprint
    )


def test_names_and_provenance() -> None:
    task = Task.from_arrays(X, Y, kind="classification", labels=["a", "b", "c", "d", "e"], name="mine")
    assert task.signature.likelihood == Categorical(5)  # a named class without rows is a class
    assert task.signature.labels == ("a", "b", "c", "d", "e")
    assert json.loads(json.dumps(task.provenance))["fingerprint"] == task.fingerprint
    renamed = Task.from_arrays(X, Y, kind="classification", labels=["a", "b", "c", "d", "e"], name="yours")
    assert renamed.fingerprint == task.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"x_test": X[:4] + 1, "y_test": Y[:4]},
        {"standardize": False},
        {"labels": ["a", "b", "c", "d"]},
        {"augment": CropAndFlip()},
        {"x_confusion": X[:4]},
    ],
)
def test_every_part_changes_the_fingerprint(change: dict[str, Any]) -> None:
    plain = Task.from_arrays(X, Y, kind="classification")
    assert Task.from_arrays(X, Y, kind="classification", **change).fingerprint != plain.fingerprint


def test_a_given_standardisation_is_used() -> None:
    scale = Standardize(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 2.0]))
    task = Task.from_arrays(X, Y, kind="classification", standardize=scale)
    torch.testing.assert_close(task.example(1)[0], (torch.tensor(X[0]).float() - scale.mean) / scale.std)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.floats(-1e3, 1e3), st.integers(0, 99))
def test_moments_of_batches_are_those_of_the_whole(sizes: list[int], offset: float, seed: int) -> None:
    x = torch.from_numpy(np.random.RandomState(seed).normal(offset, 2.0, (sum(sizes), 3, 2)))
    moments = Moments()
    for part in x.split(sizes):
        moments.add(part)
    whole, merged = Standardize.fit(x), moments.standardize()
    torch.testing.assert_close(merged.mean, whole.mean)
    torch.testing.assert_close(merged.std, whole.std)


def test_a_constant_column_is_left_alone() -> None:
    x = torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]])
    assert fit_standardize(x, chunk=2).std[0] == 1.0


def test_crop_and_flip_gives_exactly_the_windows_of_the_padded_image() -> None:
    """Every augmented image is one of the 2 · 9² windows, and all offsets and both sides occur."""
    image = torch.arange(1, 26, dtype=torch.uint8).view(1, 1, 5, 5)
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    windows = {}
    for down in range(9):
        for right in range(9):
            window = padded[0, 0, down : down + 5, right : right + 5]
            windows[tuple(window.flatten().tolist())] = (down, right, False)
            windows[tuple(window.flip(-1).flatten().tolist())] = (down, right, True)
    torch.manual_seed(0)
    out = CropAndFlip(4)(image.expand(4000, -1, -1, -1))
    assert out.dtype == torch.uint8
    seen = {windows[tuple(row)] for row in out.flatten(1).tolist()}
    assert {s[0] for s in seen} == {s[1] for s in seen} == set(range(9))
    assert {s[2] for s in seen} == {True, False}


@pytest.mark.parametrize("side", [1, 3, 4, 7])
def test_cutout_paints_a_square_around_any_pixel_and_nothing_else(side: int) -> None:
    """Each image lost exactly the square of one of its 6 · 5 centres, in all channels; all centres occur."""
    image = torch.arange(1, 61, dtype=torch.uint8).view(1, 2, 6, 5)
    squares = {}
    for down in range(6):
        for right in range(5):
            painted, top, left = image.clone(), down - side // 2, right - side // 2
            painted[..., max(top, 0) : top + side, max(left, 0) : left + side] = 200
            squares[tuple(painted.flatten().tolist())] = (down, right)
    torch.manual_seed(0)
    out = Cutout(side, fill=200)(image.expand(2000, -1, -1, -1))
    assert out.dtype == torch.uint8
    seen = {squares[tuple(row)] for row in out.flatten(1).tolist()}
    assert seen == set(squares.values())


def test_augmentations_run_in_turn() -> None:
    x = torch.zeros(3, 1, 4, 4)
    both = InTurn((lambda x: x + 1, lambda x: x * 5))
    assert torch.equal(both(x), torch.full_like(x, 5))


def test_augmentation_runs_in_training_only_before_the_scale() -> None:
    task = Task.from_arrays(IMAGES, Y, kind="classification", augment=lambda x: torch.zeros_like(x))
    black = task.signature.transform.apply(torch.zeros(1, 2, 12, 12))
    assert all(torch.equal(x, black.expand_as(x)) for x, _ in epoch(task))
    assert torch.equal(next(task.batches("train", 40))[0], torch.from_numpy(IMAGES))


def changed(array: np.ndarray, value: float) -> np.ndarray:
    out = np.array(array, np.float64)
    out.flat[4] = value
    return out


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nan input": ({"x_train": changed(X, np.nan)}, "x_train must be finite.*\n.*nan at row 1, position"),
    "infinite input": ({"x_train": changed(X, np.inf)}, "finite"),
    "beyond float32": ({"x_train": changed(X, 1e300)}, "finite float32"),
    "nan test input": ({"x_test": changed(X, np.nan), "y_test": Y}, "x_test must be finite"),
    "empty": ({"x_train": X[:0], "y_train": Y[:0]}, "x_train must not be empty"),
    "no columns": ({"x_train": X[:, :0]}, "must not be empty"),
    "one class": ({"y_train": Y * 0}, "at least two classes"),
    "rows differ": ({"y_train": Y[:-1]}, "40 inputs and 39 targets"),
    "test shape": ({"x_test": X[:, :2], "y_test": Y}, r"x_test must have the shape.*\(3,\)"),
    "confusion shape": ({"x_confusion": X[:, :2]}, "x_confusion must have the shape"),
    "negative label": ({"y_train": Y - 1}, "the label -1"),
    "labels from 1": ({"y_train": Y + 1}, "without a gap"),
    "label beyond names": ({"labels": ["a", "b"]}, "the label 3"),
    "unseen test label": ({"x_test": X, "y_test": Y + 1}, "4 only in test"),
    "broken label": ({"y_train": changed(Y, 1.5)}, "whole numbers"),
    "nan label": ({"y_train": changed(Y, np.nan)}, "whole numbers"),
    "one-hot": ({"y_train": np.eye(4)[Y]}, "argmax"),
    "text": ({"x_train": np.full((40, 3), "a")}, "real numbers"),
    "complex": ({"x_train": X * 1j}, "real numbers"),
    "ragged": ({"x_train": [[1, 2], [3]], "y_train": [0, 1]}, "rectangular"),
    "flat": ({"x_train": X[:, 0]}, r"x\[:, None\]"),
    "inputs alone": ({"x_test": X}, "y_test: one of them is None"),
    "two validations": ({"validation": 0.1, "x_validation": X, "y_validation": Y}, "one place"),
    "validation share": ({"validation": 1.0}, "below 1"),
    "negative share": ({"validation": -0.1}, "at least 0"),
    "unknown kind": ({"kind": "clasification"}, "did you mean 'classification'"),
    "unknown shift": ({"shifts": ["rotatoin"], "x_train": IMAGES}, "did you mean 'rotation'"),
    "shifts on a table": ({"shifts": ["rotation"]}, "input_range"),
    "range turned round": ({"input_range": (1, 0)}, "black below white"),
    "scale of another width": ({"standardize": Standardize.identity(2)}, "one value for each of 3"),
    "confusion name alone": ({"confusion_name": "noise"}, "x_confusion"),
    "equal names": ({"labels": ["a", "b", "a", "c"]}, "'a' more than once"),
    "names in one text": ({"labels": "abcd"}, "list of names"),
    "range of three": ({"input_range": (0, 1, 2)}, "two finite numbers"),
    "range of texts": ({"input_range": ("a", "b")}, "two finite numbers"),
    "one number as range": ({"input_range": 255}, "two finite numbers"),
    "endless range": ({"input_range": (0, np.inf)}, "two finite numbers"),
    "nan in range": ({"input_range": (np.nan, 1)}, "two finite numbers"),
    "scale in words": ({"standardize": "yes"}, "True, False or a Standardize"),
    "scale as a number": ({"standardize": 1}, "True, False or a Standardize"),
    "seed in words": ({"seed": "one"}, "whole number"),
    "time stamps": ({"x_train": X + 1.7e9}, "variation in float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused(case: str) -> None:
    arguments, said = BAD[case]
    with pytest.raises(BadInput, match=said) as caught:
        Task.from_arrays(**{"x_train": X, "y_train": Y, "kind": "classification", **arguments})
    assert caught.value.must
    assert caught.value.got
    assert caught.value.do


@pytest.mark.parametrize(
    ("y", "said"), [(changed(T, np.nan), "y_train must be finite"), (T * 0 + 3, "vary"), (T[:3], "3 targets")]
)
def test_bad_regression_targets(y: np.ndarray, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Task.from_arrays(X, y, kind="regression")


def test_only_rows_that_a_scale_is_fitted_on_must_vary_in_float32() -> None:
    """Two test rows a second apart are close together beside training rows of a year."""
    x, y = 1.7e9 + 3e7 * X, 1.7e9 + 3e7 * T
    near = np.array([[1.7e9, 1.7e9, 1.7e9], [1.7e9 + 1, 1.7e9 + 2, 1.7e9 + 3]])
    task = Task.from_arrays(x, y, near, near[:, 0], kind="regression", x_confusion=near)
    assert torch.equal(next(task.batches("test", 2))[0], torch.tensor(near, dtype=torch.float32))


def test_numbers_of_numpy_are_recorded_as_json() -> None:
    options: dict[str, Any] = {"validation": np.float32(0.25), "seed": np.int64(5)}
    task = Task.from_arrays(X, Y, kind="classification", **options)
    plain = Task.from_arrays(X, Y, kind="classification", validation=0.25, seed=5)
    assert json.loads(json.dumps(task.provenance)) == plain.provenance
    assert task.provenance["options"] == {"validation": 0.25, "seed": 5}


def test_asking_for_what_a_task_lacks() -> None:
    task = Task.from_arrays(X, Y, kind="classification")
    with pytest.raises(BadInput, match=r"validation=0\.1"):
        task.batches("validation", 4)
    with pytest.raises(BadInput, match="did you mean 'train'"):
        task.batches("trian", 4)
    with pytest.raises(BadInput, match="at least one row"):
        task.batches("train", 0)
    with pytest.raises(BadInput, match="has none"):
        task.confusion_batches(4)
    testing = Task.for_testing(IMAGES, Y, labels=["a", "b", "c", "d"], name="only")
    with pytest.raises(BadInput, match="test data only"):
        testing.training_batches(4, torch.Generator(), CPU, 0)
