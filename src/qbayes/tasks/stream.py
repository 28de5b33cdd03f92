"""Tasks whose rows are streamed: what the user did not say is found in one pass over the training data."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import torch

from qbayes.errors import BadInput, unknown_name
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Signature, Standardize
from qbayes.tasks.arrays import Kind, check_kind, check_same_shape, class_count
from qbayes.tasks.assemble import SPLITS, Look, fields, input_scale, names_of
from qbayes.tasks.source import Batch, Loader, LoaderFactory, Moments, Variation, read_batches


@dataclass
class Survey:
    """What one pass over the training batches shows."""

    first: Batch
    rows: int = 0
    inputs: Moments = field(default_factory=Moments)
    targets: Moments = field(default_factory=Moments)
    labels: set[int] = field(default_factory=set)
    variation: Variation = field(default_factory=Variation)

    def add(self, batch: Batch, kind: Kind) -> None:
        x, y = batch
        check_same_shape(x, tuple(self.first[0].shape[1:]), "a train batch of inputs")
        check_same_shape(y, tuple(self.first[1].shape[1:]), "a train batch of targets")
        self.rows += len(x)
        self.inputs.add(x)
        self.variation.add(y)
        if kind == "classification":
            self.labels.update(torch.unique(y).tolist())
        else:
            self.targets.add(y)


def stream_fields(
    factory: LoaderFactory,
    kind: str,
    *,
    splits: Sequence[str],
    classes: int | None,
    rows: int | None,
    target: Standardize | None,
    identity: str,
    look: Look,
) -> dict[str, Any]:
    """The fields of a ``Task`` for a loader."""
    checked_kind = check_kind(kind)
    _check_factory(factory)
    _check_splits(splits)
    if look.labels is not None and checked_kind == "classification":
        classes = classes if classes is not None else len(look.labels)
    classes = None if classes is None else _count(classes, "classes", least=2)
    rows = None if rows is None else _count(rows, "rows", least=1)
    scale_given = isinstance(look.standardize, Standardize) or look.standardize is False
    answer_given = classes is not None if checked_kind == "classification" else target is not None
    survey = _survey(factory, checked_kind, whole=rows is None or not scale_given or not answer_given)
    signature = _signature(survey, checked_kind, classes, target, look)
    x, y = survey.first
    count = rows if rows is not None else survey.rows
    likelihood = signature.likelihood
    source = Loader(
        factory,
        checked_kind,
        signature.input_shape,
        tuple(y.shape[1:]),
        likelihood.classes if isinstance(likelihood, Categorical) else None,
        count,
    )
    return fields(
        look,
        signature,
        checked_kind,
        is_uint8=x.dtype == torch.uint8,
        train_rows=count,
        splits=tuple(name for name in SPLITS if name in splits),
        confusion_name=look.confusion_name,
        digest=_digest(identity, count, signature),
        options={"identity": identity},
    ) | {"source": source}


def _digest(identity: str, rows: int, signature: Signature) -> str:
    """The scales are all that is known of the rows themselves, beside their number and the given name."""
    known = signature.to_json()
    return json.dumps(["loader", identity, rows, known["transform"], known["target"]])


def _survey(factory: LoaderFactory, kind: Kind, whole: bool) -> Survey:
    survey: Survey | None = None
    for batch in read_batches(factory, kind, "train", 0):
        survey = survey or Survey(batch)
        if not whole:
            return survey
        survey.add(batch, kind)
    if survey is None:
        raise BadInput(
            "the loader must give training batches",
            "an empty iterable for the split 'train'",
            "give a factory that makes a new iterable at each call, not one that is used up",
        )
    survey.variation.check(kind, survey.rows)
    return survey


def _signature(
    survey: Survey, kind: Kind, classes: int | None, target: Standardize | None, look: Look
) -> Signature:
    x, y = survey.first
    scale = survey.inputs.standardize() if look.standardize is True else input_scale(x, look.standardize)
    if kind == "classification":
        likelihood = Categorical(_classes(survey, classes, look.labels))
    else:
        likelihood = Gaussian(tuple(y.shape[1:]))
        target = target if target is not None else survey.targets.standardize()
    return Signature(
        look.name, tuple(x.shape[1:]), scale, likelihood, target, names_of(likelihood, look.labels)
    )


def _classes(survey: Survey, classes: int | None, names: Sequence[str] | None) -> int:
    if classes is not None and names is not None and classes != len(names):
        raise BadInput(
            f"there must be one label for each of {classes} classes", f"{len(names)}", "fix labels="
        )
    if not survey.labels:  # not surveyed: the number of classes was given
        assert classes is not None
        return classes
    numbered = [str(k) for k in range(classes)] if classes is not None else None
    return class_count(torch.tensor(sorted(survey.labels)), names if names is not None else numbered)


def _check_factory(factory: LoaderFactory) -> None:
    do = "give a function such as def batches(split, seed): …"
    if not callable(factory):
        raise BadInput("the loader must be a function of (split, seed)", type(factory).__name__, do)
    try:
        inspect.signature(factory).bind("train", 0)
    except TypeError as error:
        raise BadInput("the loader must be a function of (split, seed)", str(error), do) from None
    except ValueError:
        return  # a callable of C code may have no signature to look at


def _count(value: int, name: str, least: int) -> int:
    if not isinstance(value, Integral) or value < least:
        raise BadInput(
            f"{name} must be a whole number of at least {least}",
            f"{value!r}",
            f"leave {name} out to have it counted in one pass over the training data",
        )
    return int(value)


def _check_splits(splits: Sequence[str]) -> None:
    for name in splits:
        if name not in SPLITS:
            raise unknown_name("split", name, SPLITS)
    if "train" not in splits:
        raise BadInput("a loader task must have the split 'train'", f"{tuple(splits)}", "add 'train'")
