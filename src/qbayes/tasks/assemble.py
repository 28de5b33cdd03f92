"""The parts of a task from what a user gives: splits, standardisation, likelihood, ranges, fingerprint."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qbayes.errors import BadInput, unknown_name
from qbayes.posterior.likelihood import Categorical, Gaussian, Likelihood
from qbayes.posterior.signature import Signature, Standardize
from qbayes.tasks.arrays import (
    IMAGE_AXES,
    Array,
    Kind,
    as_inputs,
    as_labels,
    as_targets,
    check_kind,
    check_labels_seen,
    check_rows,
    check_same_shape,
    check_targets_vary,
    class_count,
)
from qbayes.tasks.augment import Augment
from qbayes.tasks.shifts import LEVELS
from qbayes.tasks.source import InMemory, Split, fit_standardize

SPLITS = ("train", "validation", "test")
_FOLLOWS = ("task", "transform", "target")
Pair = tuple[Array | None, Array | None]


@dataclass(frozen=True)
class Look:
    """How a task presents its data, whatever it comes from."""

    name: str
    labels: Sequence[str] | None
    standardize: bool | Standardize
    input_range: tuple[float, float] | None
    shifts: Sequence[str] | None
    augment: Augment | None
    confusion_name: str | None

    def __post_init__(self) -> None:
        if not isinstance(self.standardize, bool | Standardize):
            raise BadInput(
                "standardize must be True, False or a Standardize",
                f"{self.standardize!r}",
                "leave it out to fit the scale on the training rows",
            )
        if self.labels is not None:
            _check_names(self.labels)


def in_memory(
    given: Mapping[str, Pair], confusion: Array | None, kind: str, look: Look, *, validation: float, seed: int
) -> dict[str, Any]:
    """The fields of a ``Task`` for arrays."""
    checked_kind, seed = check_kind(kind), check_split_seed(seed)
    parts = _read_splits(given, checked_kind)
    parts = _with_validation(parts, validation, seed)
    train = parts["train"]
    likelihood = _likelihood(parts, checked_kind, look.labels)
    extra = _read_confusion(confusion, train, look)
    signature = Signature(
        task=look.name,
        input_shape=tuple(train.x.shape[1:]),
        transform=input_scale(train.x, look.standardize),
        likelihood=likelihood,
        target=None if checked_kind == "classification" else target_scale(train.y, look.standardize),
        labels=names_of(likelihood, look.labels),
    )
    tensors = {name: (part.x, part.y) for name, part in parts.items()}
    return fields(
        look,
        signature,
        checked_kind,
        is_uint8=train.x.dtype == torch.uint8,
        train_rows=len(train.x),
        splits=tuple(name for name in SPLITS if name in parts),
        confusion_name=None if extra is None else (look.confusion_name or "confusion"),
        digest=digest_tensors(tensors if extra is None else {**tensors, "confusion": (extra,)}),
        options={"validation": float(validation), "seed": seed},
    ) | {"source": InMemory(parts, extra)}


def for_testing(x: Array, y: Array, look: Look) -> dict[str, Any]:
    """The fields of a ``Task`` that has classes and test rows but nothing to train on."""
    part = Split(as_inputs(x, "x_test"), as_labels(y, "y_test"))
    check_rows(part.x, part.y, "test")
    likelihood = Categorical(class_count(part.y, look.labels))
    shape = tuple(part.x.shape[1:])
    # there are no training rows to fit a scale on.
    scale = Standardize.identity(shape[0])
    signature = Signature(look.name, shape, scale, likelihood, None, names_of(likelihood, look.labels))
    return fields(
        look,
        signature,
        "classification",
        is_uint8=part.x.dtype == torch.uint8,
        train_rows=0,
        splits=("test",),
        confusion_name=None,
        digest=digest_tensors({"test": (part.x, part.y)}),
        options={},
    ) | {"source": InMemory({"test": part})}


def fields(
    look: Look,
    signature: Signature,
    kind: Kind,
    *,
    is_uint8: bool,
    train_rows: int,
    splits: tuple[str, ...],
    confusion_name: str | None,
    digest: str,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a ``Task`` that do not depend on where its rows are, fingerprint included."""
    images = len(signature.input_shape) + 1 == IMAGE_AXES
    levels = _input_range(look.input_range, images, is_uint8)
    # not the name: the same data under another name is the same. Not what was fitted either: it follows
    # from the data, and its last bit from the machine's order of summation.
    own = {key: value for key, value in signature.to_json().items() if key not in _FOLLOWS}
    presented = {
        "kind": kind,
        "signature": own,
        "standardize": scale_given(look.standardize),
        "input_range": levels,
        "augment": None if look.augment is None else _augment_name(look.augment),
        "splits": splits,
        "data": digest,
    }
    fingerprint = hashlib.sha256(json.dumps(presented, sort_keys=True).encode()).hexdigest()
    return {
        "name": look.name,
        "kind": kind,
        "signature": signature,
        "train_rows": train_rows,
        "splits": splits,
        "input_range": levels,
        "shifts": _shifts(look.shifts, images, levels),
        "confusion_name": confusion_name,
        "fingerprint": fingerprint,
        "provenance": {
            "task": look.name,
            "options": dict(options),
            "fingerprint": fingerprint,
            "confusion": confusion_name,
        },
        "augment": look.augment,
    }


def take_validation(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """``(training rows, validation rows)``, each ascending; ``share`` of the rows is validation."""
    count = max(1, round(share * rows)) if isinstance(share, Real) and 0 < share < 1 else rows
    if count >= rows:
        raise BadInput(
            "the validation share must be at least 0 and below 1, and leave rows to train on",
            f"{share!r} of {rows} rows",
            "use 0.1, or 0 for no validation data",
        )
    # the legacy generator: numpy promises that its stream never changes.
    order = np.random.RandomState(check_split_seed(seed)).permutation(rows)
    return np.sort(order[count:]), np.sort(order[:count])


def check_split_seed(seed: int) -> int:
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise BadInput("the seed must be a whole number, 0 … 2³² − 1", f"{seed!r}", "use seed=0")
    return int(seed)


def input_scale(x: Tensor, standardize: bool | Standardize) -> Standardize:
    if isinstance(standardize, Standardize):
        if len(standardize.mean) != x.shape[1]:
            raise BadInput(
                f"the standardisation must have one value for each of {x.shape[1]} features or channels",
                f"{len(standardize.mean)}",
                "fit it with Standardize.fit(x_train)",
            )
        return standardize
    return fit_standardize(x) if standardize else Standardize.identity(x.shape[1])


def scale_given(standardize: bool | Standardize) -> bool | list[list[float]]:
    """What the user said of the scale, for JSON."""
    if isinstance(standardize, Standardize):
        return [standardize.mean.tolist(), standardize.std.tolist()]
    return standardize


def target_scale(y: Tensor, standardize: bool | Standardize) -> Standardize:
    return Standardize.identity(y.shape[1]) if standardize is False else fit_standardize(y)


def names_of(likelihood: Likelihood, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is not None:
        return tuple(str(name) for name in names)
    return tuple(str(k) for k in range(likelihood.classes)) if isinstance(likelihood, Categorical) else ()


def digest_tensors(parts: Mapping[str, Sequence[Tensor]]) -> str:
    """sha256 over names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        for tensor in parts[name]:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _read_splits(given: Mapping[str, Pair], kind: Kind) -> dict[str, Split]:
    parts: dict[str, Split] = {}
    for name, (x, y) in given.items():
        if x is None and y is None:
            continue
        if x is None or y is None:
            raise BadInput(
                f"{name} data must come as inputs and targets together",
                f"x_{name} and y_{name}: one of them is None",
                "give both or neither",
            )
        fitted = name == "train"
        part = Split(
            as_inputs(x, f"x_{name}", fitted=fitted),
            as_labels(y, f"y_{name}")
            if kind == "classification"
            else as_targets(y, f"y_{name}", fitted=fitted),
        )
        check_rows(part.x, part.y, name)
        parts[name] = part
    shapes = {axis: tuple(getattr(parts["train"], axis).shape[1:]) for axis in ("x", "y")}
    for name, part in parts.items():
        check_same_shape(part.x, shapes["x"], f"x_{name}")
        check_same_shape(part.y, shapes["y"], f"y_{name}")
    return _one_type(parts)


def _one_type(parts: dict[str, Split]) -> dict[str, Split]:
    """uint8 only where all splits are: a mixture is read as float32 throughout."""
    if len({part.x.dtype for part in parts.values()}) == 1:
        return parts
    return {name: Split(part.x.float(), part.y) for name, part in parts.items()}


def _with_validation(parts: dict[str, Split], share: float, seed: int) -> dict[str, Split]:
    if share == 0:
        return parts
    if "validation" in parts:
        raise BadInput(
            "validation rows must come from one place",
            f"both x_validation and validation={share}",
            "give one of the two",
        )
    train = parts["train"]
    kept, taken = (torch.from_numpy(rows) for rows in take_validation(len(train.x), share, seed))
    return parts | {
        "train": Split(train.x[kept], train.y[kept]),
        "validation": Split(train.x[taken], train.y[taken]),
    }


def _likelihood(parts: Mapping[str, Split], kind: Kind, names: Sequence[str] | None) -> Likelihood:
    train = parts["train"]
    if kind == "regression":
        check_targets_vary(train.y)
        shape = tuple(train.y.shape[1:])
        if names is not None and len(names) != shape[0]:
            raise BadInput(
                f"there must be one label for each of {shape[0]} targets", f"{len(names)}", "fix labels="
            )
        return Gaussian(shape)
    for name, part in parts.items():
        check_labels_seen(train.y, part.y, name)
    return Categorical(class_count(train.y, names))


def _read_confusion(confusion: Array | None, train: Split, look: Look) -> Tensor | None:
    if confusion is None:
        if look.confusion_name is not None:
            raise BadInput("a confusion_name needs x_confusion", "x_confusion=None", "give both or neither")
        return None
    x = as_inputs(confusion, "x_confusion")
    check_same_shape(x, tuple(train.x.shape[1:]), "x_confusion")
    return x


def _augment_name(augment: Augment) -> str:
    """The same in every process: the repr of a plain object carries its address."""
    if is_dataclass(augment):
        return repr(augment)
    return getattr(augment, "__qualname__", type(augment).__qualname__)


def _input_range(
    given: tuple[float, float] | None, images: bool, is_uint8: bool
) -> tuple[float, float] | None:
    if given is None:
        return (0.0, 255.0) if images and is_uint8 else None
    try:
        black, white = (float(level) for level in given)
    except (TypeError, ValueError):  # not a pair, or not of numbers
        black = white = math.nan
    if not -math.inf < black < white < math.inf:
        raise BadInput(
            "input_range must be (black, white): two finite numbers, black below white",
            f"{given!r}",
            "give the inputs' lowest and highest level, such as (0, 1)",
        )
    return black, white


def _check_names(names: Sequence[str]) -> None:
    if isinstance(names, str):
        raise BadInput("labels must be a list of names", f"{names!r}", "give ['a', 'b'], one for each class")
    texts = [str(name) for name in names]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise BadInput("labels must be distinct", f"'{twice[0]}' more than once", "name each one differently")


def _shifts(given: Sequence[str] | None, images: bool, levels: tuple[float, float] | None) -> tuple[str, ...]:
    possible = images and levels is not None
    if given is None:
        return tuple(LEVELS) if possible else ()
    for name in given:
        if name not in LEVELS:
            raise unknown_name("shift", name, LEVELS)
    if given and not possible:
        raise BadInput(
            "shifts need images (rows, channels, height, width) with a known black and white level",
            f"shifts {', '.join(given)} without them",
            "give input_range=(black, white), or leave shifts out",
        )
    return tuple(given)
