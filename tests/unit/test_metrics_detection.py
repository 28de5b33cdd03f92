"""Detection scores against scikit-learn, and exact with ties."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from qbayes.errors import BadInput
from qbayes.metrics import detection

# few distinct values: ties within and across the two sets.
scores = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=40).map(lambda s: torch.tensor(s))


def labelled(test: Tensor, confusion: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return np.r_[np.zeros(len(test)), np.ones(len(confusion))], torch.cat((test, confusion)).numpy()


@given(scores, scores)
@settings(max_examples=100, deadline=None)
def test_scikit_learn_agrees_with_ties(test: Tensor, confusion: Tensor) -> None:
    truth, score = labelled(test, confusion)
    assert detection.auroc(test, confusion) == pytest.approx(roc_auc_score(truth, score), abs=1e-12)
    assert detection.aupr(test, confusion) == pytest.approx(average_precision_score(truth, score), abs=1e-12)
    false_rate, true_rate, _ = roc_curve(truth, score, drop_intermediate=False)
    oracle = false_rate[np.argmax(true_rate >= 0.95 - 1e-12)]
    assert detection.fpr95(test, confusion) == pytest.approx(oracle, abs=1e-12)


@given(scores, scores)
@settings(max_examples=50, deadline=None)
def test_exchanging_the_sets_mirrors_the_auroc(test: Tensor, confusion: Tensor) -> None:
    assert detection.auroc(test, confusion) + detection.auroc(confusion, test) == pytest.approx(1, abs=1e-12)


@given(scores, scores)
@settings(max_examples=50, deadline=None)
def test_only_the_order_of_scores_counts(test: Tensor, confusion: Tensor) -> None:
    for score in (detection.auroc, detection.aupr, detection.fpr95):
        stretched = score(torch.exp(test.flip(0)), torch.exp(confusion.flip(0)))
        assert stretched == pytest.approx(score(test, confusion), abs=1e-12)


def test_extremes() -> None:
    low, high = torch.arange(10.0), torch.arange(10.0) + 100
    assert (detection.auroc(low, high), detection.aupr(low, high), detection.fpr95(low, high)) == (1, 1, 0)
    assert (detection.auroc(high, low), detection.fpr95(high, low)) == (0, 1)
    constant = torch.zeros(5)
    assert (detection.auroc(constant, constant), detection.fpr95(constant, constant)) == (0.5, 1)
    assert detection.aupr(constant, torch.zeros(15)) == 0.75


def test_fpr95_misses_one_confusion_row_in_twenty() -> None:
    """19 of 20 confusion rows lie above the test rows: catching 95 % flags none, catching all flags all."""
    test, confusion = torch.arange(10.0), torch.cat((torch.tensor([-1.0]), torch.arange(19.0) + 50))
    assert detection.fpr95(test, confusion) == 0
    assert detection.fpr95(test, confusion, recall=1.0) == 1


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_recall_of_whole_rows_asks_for_just_these(percent: int) -> None:
    """On equal sets each threshold flags as many of both. 0.07 · 100 is above 7 in floats."""
    rows = torch.arange(100.0)
    assert detection.fpr95(rows, rows, recall=percent / 100) == percent / 100


@pytest.mark.parametrize("score", [detection.auroc, detection.aupr, detection.fpr95])
def test_bad_input_says_what_came(score: Callable[[Tensor, Tensor], float]) -> None:
    good = torch.zeros(3)
    for bad, part in (
        (torch.zeros(0), "(0,)"),
        (torch.zeros(2, 2), "(2, 2)"),
        (good * math.nan, "3 NaN of 3"),
    ):
        for pair in ((bad, good), (good, bad)):
            with pytest.raises(BadInput) as caught:
                score(*pair)
            assert part in caught.value.got


def test_recall_must_be_a_share() -> None:
    with pytest.raises(BadInput, match="95"):
        detection.fpr95(torch.zeros(3), torch.zeros(3), recall=95)
