"""What a file says of inputs and answers must fit together before anything is broadcast."""

from typing import Any

import pytest
import torch

from qbayes.errors import BadInput
from qbayes.posterior.likelihood import Categorical, Gaussian
from qbayes.posterior.signature import Signature, Standardize


def scale(count: int) -> Standardize:
    return Standardize(torch.arange(1.0, count + 1) / 3, torch.arange(1.0, count + 1) / 7)


IMAGES = Signature("pictures", (3, 4, 5), scale(3), Categorical(2), labels=("cat", "dog"))
LINES = Signature("lines", (4,), scale(4), Gaussian((2,)), scale(2), ("load", "cost"))


@pytest.mark.parametrize("signature", [IMAGES, LINES], ids=["classes", "targets"])
def test_a_signature_reads_back_to_the_same_bits(signature: Signature) -> None:
    again = Signature.from_json(signature.to_json())
    assert again.to_json() == signature.to_json()
    assert torch.equal(again.transform.mean, signature.transform.mean)
    assert torch.equal(again.transform.std, signature.transform.std)


def numbers(count: int) -> dict[str, list[float]]:
    return {"mean": [0.0] * count, "std": [1.0] * count}


@pytest.mark.parametrize(
    ("signature", "change"),
    [
        (IMAGES, {"transform": numbers(1)}),
        (IMAGES, {"transform": numbers(4)}),
        (IMAGES, {"input_shape": []}),
        (IMAGES, {"input_shape": [3, 0, 5]}),
        (IMAGES, {"target": numbers(2)}),
        (LINES, {"transform": numbers(1)}),
        (LINES, {"target": None}),
        (LINES, {"target": numbers(1)}),
        (LINES, {"target": numbers(3)}),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(signature: Signature, change: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must fit each other"):
        Signature.from_json({**signature.to_json(), **change})


@pytest.mark.parametrize("signature", [IMAGES, LINES], ids=["classes", "targets"])
@pytest.mark.parametrize("labels", [["one"], ["one", "two", "three"]])
def test_each_class_or_target_has_one_label(signature: Signature, labels: list[str]) -> None:
    assert Signature.from_json({**signature.to_json(), "labels": []}).labels == ()
    with pytest.raises(BadInput, match="one label for each of 2") as told:
        Signature.from_json({**signature.to_json(), "labels": labels})
    assert told.value.got == f"{len(labels)}"
