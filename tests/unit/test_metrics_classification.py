"""Classification and calibration scores against torchmetrics, scikit-learn and closed forms."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from qbayes.errors import BadInput
from qbayes.metrics import classification

seeds = st.integers(0, 2**31 - 1)
CLASSES = 5


def sample(seed: int, rows: int = 300, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.softmax(sharpness * torch.randn(rows, CLASSES, generator=generator).double(), -1)
    return probabilities, torch.randint(0, CLASSES, (rows,), generator=generator)


def calibrated(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels drawn from the predicted probabilities: calibrated by construction."""
    probabilities, _ = sample(seed, rows)
    labels = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    return probabilities, labels


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_error_nll_and_ece_agree_with_the_oracles(seed: int) -> None:
    probabilities, labels = sample(seed)
    accuracy = multiclass_accuracy(probabilities, labels, num_classes=CLASSES, average="micro")
    assert classification.error(probabilities, labels) == pytest.approx(1 - accuracy.item(), abs=1e-6)
    oracle = log_loss(labels, probabilities.double().numpy(), labels=range(CLASSES))
    assert classification.nll(probabilities.log(), labels) == pytest.approx(oracle, rel=1e-5)
    for bins in (1, 10, 15):
        oracle = multiclass_calibration_error(
            probabilities, labels, num_classes=CLASSES, n_bins=bins, norm="l1"
        )
        assert classification.ece(probabilities, labels, bins) == pytest.approx(oracle.item(), abs=1e-5)


def test_brier_is_the_squared_distance_to_the_one_hot_label() -> None:
    probabilities, labels = sample(0)
    one_hot = torch.nn.functional.one_hot(labels, CLASSES)
    wanted = ((probabilities.double() - one_hot) ** 2).sum(-1).mean().item()
    assert classification.brier(probabilities, labels) == pytest.approx(wanted, rel=1e-9)
    assert classification.brier(torch.tensor([[1.0, 0.0]]), torch.tensor([0])) == 0
    assert classification.brier(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == 2


def test_nll_stays_finite_where_probabilities_underflow() -> None:
    log_probabilities = torch.tensor([[0.0, -400.0], [0.0, -400.0]])
    assert classification.nll(log_probabilities, torch.tensor([1, 0])) == 200


def test_entropy_of_the_uniform_is_log_k_and_of_certainty_0() -> None:
    assert classification.average_entropy(torch.full((3, 4), 0.25)) == pytest.approx(math.log(4))
    assert classification.average_entropy(torch.tensor([[1.0, 0.0]])) == 0


def test_mutual_information_of_draws_that_disagree() -> None:
    certain = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert classification.average_mutual_information(certain) == pytest.approx(math.log(2))
    assert classification.average_mutual_information(certain[:1]) == 0


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_scores_do_not_depend_on_the_order_of_rows(seed: int) -> None:
    probabilities, labels = sample(seed)
    # ties in the confidence are where an order could slip in.
    probabilities = (probabilities * 8).round() + torch.arange(CLASSES) / 10
    probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    for score in (
        classification.error,
        classification.brier,
        classification.ece,
        classification.adaptive_ece,
    ):
        assert score(probabilities[order], labels[order]) == pytest.approx(
            score(probabilities, labels), abs=1e-12
        )


def test_ece_is_0_when_every_bin_is_right_as_often_as_it_says() -> None:
    """Ten rows of confidence c, of which 10 c are right, for c = 0.6 … 0.9."""
    probabilities, labels = [], []
    for tenths in (6, 7, 8, 9):
        probabilities += [[tenths / 10, 1 - tenths / 10]] * 10
        labels += [0] * tenths + [1] * (10 - tenths)
    p, y = torch.tensor(probabilities), torch.tensor(labels)
    assert classification.ece(p, y) == pytest.approx(0, abs=1e-6)
    assert classification.adaptive_ece(p, y, bins=4) == pytest.approx(0, abs=1e-6)


def test_ece_of_constant_overconfidence_is_the_gap() -> None:
    p, y = torch.tensor([[1.0, 0.0]]).expand(10, 2), torch.tensor([0] * 7 + [1] * 3)
    assert classification.ece(p, y) == pytest.approx(0.3)
    assert classification.adaptive_ece(p, y) == pytest.approx(0.3)
    assert classification.ece_per_batch(p, y) == pytest.approx(0.3)


def test_bins_are_open_below_and_closed_above() -> None:
    table = classification.reliability(
        torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]), torch.zeros(3).long(), 4
    )
    assert table.count.tolist() == [0, 1, 1, 1]
    np.testing.assert_allclose(table.confidence, [np.nan, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(table.accuracy, [np.nan, 1, 1, 1])
    assert table.ece == pytest.approx(0.75 / 3)


def test_adaptive_bins_hold_equal_mass() -> None:
    probabilities, labels = sample(1, rows=1003)
    table = classification.adaptive_reliability(probabilities, labels)
    assert set(table.count.tolist()) == {100, 101}
    # the same by hand, cut where the table's counts say.
    confidence, predicted = probabilities.max(-1)
    gap = confidence - (predicted == labels).double()
    bins = gap[confidence.argsort()].split(table.count.tolist())
    wanted = torch.stack([part.sum().abs() for part in bins]).sum().item() / 1003
    assert classification.adaptive_ece(probabilities, labels) == pytest.approx(wanted, rel=1e-9)


def test_per_batch_ece_is_inflated_on_a_calibrated_model() -> None:
    """Labels drawn from the predictions: the whole set shows it, batches show noise, small ones more."""
    probabilities, labels = calibrated(60_000)
    whole = classification.ece(probabilities, labels)
    by_256 = classification.ece_per_batch(probabilities, labels, 256)
    assert whole < 0.006
    assert by_256 > 5 * whole
    assert classification.ece_per_batch(probabilities, labels, 64) > by_256
    assert classification.ece_per_batch(probabilities, labels, 1024) < by_256
    assert classification.ece_per_batch(probabilities, labels, 60_000) == whole


GOOD = (torch.full((3, 4), 0.25), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(
    "score",
    [
        classification.error,
        classification.nll,
        classification.brier,
        classification.ece,
        classification.adaptive_ece,
        classification.ece_per_batch,
        classification.reliability,
    ],
)
@pytest.mark.parametrize(
    ("probabilities", "labels", "part"),
    [
        (torch.zeros(0, 4), torch.zeros(0).long(), "shape (0, 4)"),
        (torch.zeros(3), GOOD[1], "shape (3,)"),
        (GOOD[0], torch.tensor([0, 1]), "labels (2,)"),
        (GOOD[0], torch.eye(3, 4), "labels (3, 4)"),
        (GOOD[0], torch.tensor([0.0, 1.0, 2.0]), "float32"),
        (GOOD[0], torch.tensor([0, 1, 4]), "labels from 0 to 4"),
        (GOOD[0], torch.tensor([0, -1, 1]), "labels from -1 to 1"),
        (torch.full((3, 4), math.nan), GOOD[1], "12 NaN"),
    ],
)
def test_bad_input_says_what_came(
    score: Callable[[Tensor, Tensor], object], probabilities: Tensor, labels: Tensor, part: str
) -> None:
    with pytest.raises(BadInput) as caught:
        score(probabilities, labels)
    assert part in caught.value.got


def test_bad_options_say_what_came() -> None:
    with pytest.raises(BadInput, match="bin"):
        classification.ece(*GOOD, bins=0)
    with pytest.raises(BadInput, match="batch size"):
        classification.ece_per_batch(*GOOD, batch_size=0)
