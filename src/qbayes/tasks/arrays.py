"""Reading what a user hands in as inputs and targets, with every check that data can fail.

Inputs become uint8 (images that came as uint8) or float32, labels int64 of shape ``(rows,)``, regression
targets float32 of shape ``(rows, *target)`` with at least one target axis.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from qbayes.errors import BadInput, nearest

Kind = Literal["classification", "regression"]
KINDS: tuple[Kind, ...] = ("classification", "regression")
Array = ArrayLike | Tensor

IMAGE_AXES = 4  # rows, channels, height, width
_CHUNK = 8192  # rows looked at together, so that a check never doubles the memory of the data


def check_kind(kind: str) -> Kind:
    for known in KINDS:
        if kind == known:
            return known
    raise BadInput(
        "the kind must be 'classification' or 'regression'", f"{kind!r}", nearest(str(kind), KINDS)
    )


def as_inputs(x: Array, what: str, *, fitted: bool = False) -> Tensor:
    """``(rows, *input_shape)``: uint8 images stay uint8, everything else becomes float32.

    ``fitted`` rows are those a scale is fitted on: only of them is it known how far a column varies.
    """
    raw = _as_tensor(x, what)
    if raw.ndim < 2:
        raise BadInput(
            f"{what} must have rows and at least one axis of features",
            f"shape {tuple(raw.shape)}",
            "give (rows, features), or x[:, None] for a single feature",
        )
    _check_not_empty(raw, what)
    if raw.dtype == torch.uint8 and raw.ndim == IMAGE_AXES:
        return raw.contiguous()
    values = _finite_float32(raw, what)
    if fitted:
        _check_rounding(raw, values, what)
    return values


def as_targets(y: Array, what: str, *, fitted: bool = False) -> Tensor:
    """Regression targets ``(rows, *target)`` in float32; ``(rows,)`` becomes ``(rows, 1)``."""
    raw = _as_tensor(y, what)
    if raw.ndim == 0:
        raise BadInput(f"{what} must have one entry for each row", "a single number", "give (rows,) targets")
    _check_not_empty(raw, what)
    column = raw[:, None] if raw.ndim == 1 else raw
    values = _finite_float32(column, what)
    if fitted:
        _check_rounding(column, values, what)
    return values


def as_labels(y: Array, what: str) -> Tensor:
    """Class labels ``(rows,)`` in int64; whole floats and a column ``(rows, 1)`` are read as labels."""
    raw = _as_tensor(y, what)
    raw = raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw
    if raw.ndim != 1:
        raise BadInput(
            f"{what} must be one label a row",
            f"shape {tuple(raw.shape)}",
            "give integers 0 … K−1; from one-hot rows take y.argmax(1)",
        )
    _check_not_empty(raw, what)
    if raw.is_floating_point():
        wrong = raw[~torch.isfinite(raw) | (raw != raw.round())]
        if len(wrong):
            raise BadInput(
                f"{what} must be whole numbers 0 … K−1",
                f"{wrong[0].item()!r}",
                "give integer labels, or kind='regression' for real targets",
            )
    labels = raw.long().contiguous()
    if int(labels.min()) < 0:
        raise BadInput(
            f"{what} must be 0 … K−1", f"the label {int(labels.min())}", "number the classes from 0"
        )
    return labels


def check_rows(x: Tensor, y: Tensor, split: str) -> None:
    if len(x) != len(y):
        raise BadInput(
            f"the {split} inputs and targets must have the same number of rows",
            f"{len(x)} inputs and {len(y)} targets",
            "check how the two were cut",
        )


def check_same_shape(got: Tensor, expected: tuple[int, ...], what: str) -> None:
    if tuple(got.shape[1:]) != expected:
        raise BadInput(
            f"{what} must have the shape of the training data for each row, {expected}",
            f"{tuple(got.shape[1:])}",
            "reshape it, or check that it belongs to this task",
        )


def class_count(train: Tensor, names: Sequence[str] | None) -> int:
    """K, from the class names or from the training labels, which must then be 0 … K−1 without a gap."""
    seen = torch.unique(train).tolist()
    classes = len(names) if names is not None else max(seen) + 1
    if max(seen) >= classes:
        raise BadInput(
            f"labels must be 0 … {classes - 1}, one for each of the {classes} class names",
            f"the label {max(seen)}",
            "number the classes from 0, or name all of them in labels=",
        )
    if len(seen) < 2:
        raise one_class(seen[0])
    if names is None and len(seen) < classes:
        absent = sorted(set(range(classes)) - set(seen))
        raise BadInput(
            "training labels must be 0 … K−1 without a gap",
            f"labels up to {max(seen)}, none of {_list_labels(absent)}",
            "renumber with np.unique(y, return_inverse=True)[1], or name all classes in labels=",
        )
    return classes


def check_labels_seen(train: Tensor, other: Tensor, split: str) -> None:
    unseen = sorted(set(torch.unique(other).tolist()) - set(torch.unique(train).tolist()))
    if unseen:
        raise BadInput(
            f"every {split} label must occur in training",
            f"{_list_labels(unseen)} only in {split}",
            "add training rows of it, or leave those rows out (a validation share: another seed, or less)",
        )


def check_targets_vary(y: Tensor) -> None:
    if bool((y == y[:1]).all()):
        raise equal_targets(len(y))


def one_class(label: int) -> BadInput:
    return BadInput(
        "training data must have at least two classes", f"only the label {label}", "add rows of the others"
    )


def equal_targets(rows: int) -> BadInput:
    return BadInput(
        "regression targets must vary over the training rows",
        f"{rows} equal rows",
        "check which column is the target",
    )


def _as_tensor(values: Array, what: str) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
        if tensor.is_complex():
            raise _not_numbers(what, str(tensor.dtype))
        return tensor
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _not_numbers(what, f"rows of different lengths ({error})") from error
    if array.dtype.kind not in "biuf":
        raise _not_numbers(what, f"dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64 if array.dtype.itemsize < 8 else np.float64)
    # torch reads native byte order only, and warns on read-only memory.
    native = np.require(array, dtype=array.dtype.newbyteorder("="), requirements=["C"])
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def _not_numbers(what: str, got: str) -> BadInput:
    return BadInput(f"{what} must be a rectangular array of real numbers", got, "convert it before use")


def _check_not_empty(values: Tensor, what: str) -> None:
    if values.numel() == 0:
        raise BadInput(
            f"{what} must not be empty", f"shape {tuple(values.shape)}", "check how the data is read"
        )


def _finite_float32(raw: Tensor, what: str) -> Tensor:
    values = raw.float().contiguous()
    for start in range(0, len(values), _CHUNK):
        bad = ~torch.isfinite(values[start : start + _CHUNK])
        if bool(bad.any()):
            place = (int(n) for n in bad.nonzero()[0])
            row, *rest = place
            raise BadInput(
                f"{what} must be finite float32 numbers",
                f"{raw[(start + row, *rest)].item()!r} at row {start + row}, position {tuple(rest)}",
                "drop or fill such rows before making the task",
            )
    return values


def _check_rounding(raw: Tensor, values: Tensor, what: str) -> None:
    """A column such as a time stamp, 1.7e9 ± 10, would lose its variation in float32 without a word."""
    if raw.dtype not in (torch.float64, torch.int64, torch.int32):
        return
    spread = raw.double().flatten(1).std(0, correction=0)
    lost = (raw.double() - values.double()).flatten(1).abs().amax(0)
    columns = (lost > 0.05 * spread).nonzero()
    # equal values rounded equally lose nothing that could be learnt.
    varying = [int(c) for c in columns if bool(spread[c] > 1e-12 * raw.double().flatten(1)[:, c].abs().max())]
    if varying:
        raise BadInput(
            f"{what} must keep its variation in float32",
            f"column {varying[0]} has a spread of {float(spread[varying[0]]):.3g} on a far larger offset",
            "subtract the offset (for a time stamp: the first time) before making the task",
        )


def _list_labels(labels: Sequence[int], most: int = 10) -> str:
    shown = ", ".join(str(label) for label in labels[:most])
    return shown + (", …" if len(labels) > most else "")
