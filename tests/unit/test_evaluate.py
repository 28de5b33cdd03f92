"""``evaluate`` on real tasks with posteriors whose answers are known."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qbayes.errors import BadInput, RunFailed
from qbayes.metrics import (
    METRICS,
    Scores,
    classification,
    detection,
    evaluate,
    metric,
    regression,
)
from qbayes.metrics.choice import choose_rows
from qbayes.metrics.evaluate import Predicts
from qbayes.posterior.likelihood import Categorical
from qbayes.posterior.predictive import CategoricalPredictive, GaussianPredictive, Predictive
from qbayes.tasks.base import Task
from qbayes.tasks.shifts import LEVELS, shift

CLASSES, DRAWS = 3, 4
CLASSIFICATION = (
    "error",
    "nll",
    "brier",
    "ece",
    "ece_adaptive",
    "ece_per_batch",
    "ece_per_batch_1024",
    "entropy",
    "mutual_information",
)
REGRESSION = ("rmse", "nll", "nll_moment_matched", "crps", "coverage_90", "interval_width_90")
# the five rows of 1,000 whose word is smallest.
FIRST_OF_1000 = [189, 197, 217, 338, 634]
CONFUSION = ("entropy", "mutual_information", "auroc", "aupr", "fpr95", "auroc_mutual_information")


def images(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 1, 6, 6), dtype=np.uint8)


def image_task(rows: int = 70) -> Task:
    labels = np.arange(rows) % CLASSES
    return Task.from_arrays(
        images(20, 0), labels[:20], images(rows, 1), labels, kind="classification", x_confusion=images(25, 2)
    )


def real_task(rows: int = 60) -> Task:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    y = 5 + 3 * x[:, 0] + rng.normal(size=rows)
    return Task.from_arrays(x, y, x, y, kind="regression", x_confusion=10 * x)


def labelled_task() -> Task:
    x = np.random.default_rng(0).normal(size=(20, 2))
    return Task.from_arrays(x, np.arange(20) % 2, x, np.arange(20) % 2, kind="classification")


def row_noise(seed: int, first_row: int, rows: int, width: int, draws: int) -> Tensor:
    """Noise that depends on (seed, draw, row) alone, as a posterior's must."""
    all_rows = torch.randn(200, draws, width, generator=torch.Generator().manual_seed(seed))
    return all_rows[first_row : first_row + rows].transpose(0, 1)


class ImagePosterior:
    """Logits from three pixels, plus the row's noise; a broken one answers NaN after the first batch."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.provenance = {"method": "made up"}

    def predict(self, x: Tensor, draws: int = 20, seed: int = 0, *, first_row: int = 0) -> Predictive:
        noise = row_noise(seed, first_row, len(x), CLASSES, draws)
        out = x[:, 0, 0, :CLASSES].float() / 60 + noise
        if self.broken and first_row:
            out[0, 2] = math.nan
        return CategoricalPredictive.from_logits(out)


class LinePosterior:
    def predict(self, x: Tensor, draws: int = 20, seed: int = 0, *, first_row: int = 0) -> Predictive:
        means = 5 + 3 * x[:, :1] + 0.2 * x[:, :1] * row_noise(seed, first_row, len(x), 1, draws)
        return GaussianPredictive(means, torch.ones_like(means))


def whole(task: Task, split: str = "test") -> tuple[Tensor, Tensor]:
    return next(iter(task.batches(split, 10_000)))


def test_every_score_is_that_of_the_whole_set() -> None:
    task, posterior = image_task(), ImagePosterior()
    scores = evaluate(posterior, task, draws=DRAWS, seed=5, batch_size=16)
    x, y = whole(task)
    prediction = posterior.predict(x, DRAWS, 5)
    assert isinstance(prediction, CategoricalPredictive)
    confusing = posterior.predict(next(iter(task.confusion_batches(100))), DRAWS, 5)
    assert set(scores.clean) == set(CLASSIFICATION)
    assert scores.clean["error"] == classification.error(prediction.mean, y)
    assert scores.clean["nll"] == pytest.approx(classification.nll(prediction.log_mean, y))
    assert scores.clean["ece"] == pytest.approx(classification.ece(prediction.mean, y))
    assert scores.clean["mutual_information"] == pytest.approx(prediction.mutual_information.mean().item())
    assert set(scores.confusion) == set(CONFUSION)
    assert scores.confusion["auroc"] == detection.auroc(prediction.entropy, confusing.entropy)
    assert scores.confusion["entropy"] == pytest.approx(confusing.entropy.mean().item())
    information = detection.auroc(prediction.mutual_information, confusing.mutual_information)
    assert scores.confusion["auroc_mutual_information"] == information


def test_shifted_scores_are_those_of_shifted_inputs_with_the_same_noise() -> None:
    task, posterior = image_task(), ImagePosterior()
    scores = evaluate(posterior, task, draws=DRAWS, batch_size=32, confusion=False)
    assert {name: tuple(levels) for name, levels in scores.shifted.items()} == dict.fromkeys(
        LEVELS, (1, 2, 3, 4, 5)
    )
    x, y = whole(task)
    prediction = posterior.predict(shift(x, "brightness", 4, 0, 255), DRAWS, 0)
    assert scores.shifted["brightness"][4]["brier"] == pytest.approx(classification.brier(prediction.mean, y))
    assert scores.confusion == {}


@pytest.mark.parametrize(
    ("posterior", "task"), [(ImagePosterior(), image_task()), (LinePosterior(), real_task())]
)
def test_scores_do_not_depend_on_the_batch_size(posterior: Predicts, task: Task) -> None:
    by_7, by_64 = (evaluate(posterior, task, draws=DRAWS, batch_size=size).flat() for size in (7, 64))
    assert by_7 == pytest.approx(by_64, rel=1e-6)
    other_seed = evaluate(posterior, task, draws=DRAWS, seed=1, shifts=False, confusion=False).clean
    assert other_seed["nll"] != by_7["nll"]


def test_regression_scores_are_in_the_units_of_the_targets() -> None:
    task, posterior = real_task(), LinePosterior()
    scores = evaluate(posterior, task, draws=DRAWS, batch_size=16)
    x, y = whole(task)
    prediction = posterior.predict(x, DRAWS)
    assert isinstance(prediction, GaussianPredictive)
    assert set(scores.clean) == set(REGRESSION)
    assert scores.shifted == {}
    assert scores.clean["rmse"] == pytest.approx(regression.rmse(prediction.mean, y))
    assert scores.clean["nll"] == pytest.approx(-prediction.log_prob(y).mean().item(), rel=1e-5)
    # a line with unit noise, known to the posterior: RMSE and coverage are those of the noise.
    assert scores.clean["rmse"] == pytest.approx(1, abs=0.25)
    assert scores.clean["coverage_90"] == pytest.approx(0.9, abs=0.1)
    # doubt grows with |x|: inputs ten times as large are told from the test rows.
    assert scores.confusion["auroc"] > 0.8


def test_a_nan_prediction_fails_the_run_and_says_where() -> None:
    with pytest.raises(RunFailed) as caught:
        evaluate(ImagePosterior(broken=True), image_task(), draws=DRAWS, batch_size=16)
    assert "1 of 16 clean rows, the first at row 18" in caught.value.got


class EndlessDoubt(LinePosterior):
    """Every mean is a number; the variance of the third row behind the first batch is not."""

    def predict(self, x: Tensor, draws: int = 20, seed: int = 0, *, first_row: int = 0) -> Predictive:
        found = super().predict(x, draws, seed, first_row=first_row)
        assert isinstance(found, GaussianPredictive)
        if first_row:
            found.draw_variances[:, 2] = math.inf
        return found


def test_an_infinite_variance_fails_the_run_and_says_where() -> None:
    with pytest.raises(RunFailed) as caught:
        evaluate(EndlessDoubt(), real_task(), draws=DRAWS, batch_size=50)
    assert "1 of 10 clean rows, the first at row 52" in caught.value.got


class Signed(ImagePosterior):
    """Says what it answers: one of so many classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.signature = replace(image_task().signature, likelihood=Categorical(classes))


@pytest.mark.parametrize("classes", [CLASSES - 1, CLASSES + 1, 10])
def test_a_posterior_of_other_classes_is_refused_before_it_predicts(classes: int) -> None:
    evaluate(Signed(CLASSES), image_task(), draws=1, shifts=False, confusion=False)
    with pytest.raises(BadInput, match="kind and number of outputs") as caught:
        evaluate(Signed(classes), image_task(), draws=1)
    assert f"'classes': {classes}" in caught.value.got


class ShortPosterior(LinePosterior):
    def predict(self, x: Tensor, draws: int = 20, seed: int = 0, *, first_row: int = 0) -> Predictive:
        return super().predict(x[1:], draws, seed, first_row=first_row)


def test_a_posterior_that_loses_rows_fails_the_run() -> None:
    with pytest.raises(RunFailed, match="59 predictions for 60 rows"):
        evaluate(ShortPosterior(), real_task(), draws=2)


class Classifier:
    def predict(self, x: Tensor, draws: int = 20, seed: int = 0, *, first_row: int = 0) -> Predictive:
        return CategoricalPredictive.from_logits(torch.zeros(draws, len(x), 2))


class EmptyTask:
    name, kind, shifts, input_range, confusion_name = "hollow", "regression", (), None, None

    def batches(self, split: str, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(())

    def confusion_batches(self, batch_size: int) -> Iterator[Tensor]:
        return iter(())


ODD: tuple[dict[str, Any], ...] = ({"draws": "x"}, {"draws": 2.5})


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: evaluate(LinePosterior(), real_task(), draws=0), "draws=0"),
        (lambda: evaluate(LinePosterior(), real_task(), **ODD[0]), "draws='x'"),
        (lambda: evaluate(LinePosterior(), real_task(), **ODD[1]), "draws=2.5"),
        (lambda: evaluate(LinePosterior(), real_task(), batch_size=0), "batch_size=0"),
        (lambda: evaluate(LinePosterior(), real_task(), split="tset"), "tset"),
        (lambda: evaluate(LinePosterior(), EmptyTask()), "split 'test' of task 'hollow': none"),
        (lambda: evaluate(LinePosterior(), replace(real_task(), kind="regresion")), "regresion"),
        (lambda: evaluate(Classifier(), real_task(), draws=1), "CategoricalPredictive"),
        (lambda: evaluate(LinePosterior(), labelled_task(), draws=1), "GaussianPredictive"),
        (lambda: evaluate(ImagePosterior(), replace(image_task(), input_range=None)), "no input_range"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], part: str) -> None:
    with pytest.raises(BadInput) as caught:
        call()
    assert part in caught.value.got


def test_scores_travel_through_json_unchanged() -> None:
    scores = evaluate(ImagePosterior(), image_task(), draws=DRAWS, meta={"precision": "float"})
    back = Scores.from_json(json.loads(json.dumps(scores.to_json(), allow_nan=False)))
    assert back == scores
    assert scores.meta["task"] == "arrays"
    assert (scores.meta["rows"], scores.meta["draws"], scores.meta["seed"]) == (70, DRAWS, 0)
    assert (scores.meta["method"], scores.meta["precision"]) == ("made up", "float")
    assert scores.meta["versions"]["torch"] == torch.__version__


def test_numbers_of_numpy_are_recorded_as_json() -> None:
    counts: dict[str, Any] = {"draws": np.int64(DRAWS), "seed": np.int64(1), "batch_size": np.int64(32)}
    scores = evaluate(ImagePosterior(), image_task(), **counts)
    assert json.loads(json.dumps(scores.to_json()))["meta"]["seed"] == 1
    assert scores == evaluate(ImagePosterior(), image_task(), draws=DRAWS, seed=1)


def test_an_infinite_nll_is_written_as_text() -> None:
    written = json.dumps(Scores({"nll": math.inf}).to_json(), allow_nan=False)
    assert Scores.from_json(json.loads(written)).clean == {"nll": math.inf}


def test_flat_names_every_score_and_each_has_a_display() -> None:
    for posterior, task in ((ImagePosterior(), image_task()), (LinePosterior(), real_task())):
        scores = evaluate(posterior, task, draws=DRAWS)
        flat = scores.flat()
        expected = len(scores.clean) + 5 * len(scores.clean) * len(task.shifts) + len(CONFUSION)
        assert len(flat) == expected
        for name, value in flat.items():
            assert metric(name).show(value)
    assert flat["confusion/auroc"] == scores.confusion["auroc"]


def test_displays() -> None:
    assert metric("rotation/3/error") is METRICS["error"]
    assert METRICS["error"].show(0.0813) == "8.13%"
    assert metric("confusion/entropy").better == "higher"
    assert metric("entropy").better == "neither"
    with pytest.raises(BadInput, match="did you mean 'error'"):
        metric("eror")


@pytest.mark.parametrize("damage", [{}, {"clean": 3}, {"clean": {"error": "low"}}])
def test_damaged_scores_are_refused(damage: dict[str, object]) -> None:
    data = {} if not damage else Scores({"error": 0.1}).to_json() | damage
    with pytest.raises(BadInput, match="scores must hold"):
        Scores.from_json(data)


def only(task: Task, kept: Tensor) -> Task:
    """A task whose test rows are the chosen ones alone."""
    x, y = whole(task)
    labels = np.arange(20) % CLASSES
    return Task.from_arrays(
        images(20, 0), labels, x[kept], y[kept], kind="classification", input_range=task.input_range
    )


@pytest.mark.parametrize("batch_size", [7, 64])
def test_chosen_rows_are_scored_as_a_test_set_of_their_own(batch_size: int) -> None:
    """Under every shift, and without: the same rows, the same noise."""
    task, posterior = image_task(), ImagePosterior()
    some = evaluate(posterior, task, DRAWS, batch_size=batch_size, confusion=False, shift_rows=30)
    alone = evaluate(posterior, only(task, choose_rows(70, 30)), DRAWS, confusion=False)
    assert some.shifted.keys() == alone.shifted.keys()
    for name, levels in alone.shifted.items():
        for level, numbers in levels.items():
            assert some.shifted[name][level] == pytest.approx(numbers)
    assert some.unshifted == pytest.approx(alone.clean)
    everything = evaluate(posterior, task, DRAWS, batch_size=batch_size, confusion=False)
    assert some.clean == everything.clean, "clean scores are of all rows"
    assert some.shifted["rotation"] != everything.shifted["rotation"]
    assert (some.meta["rows"], some.meta["shift_rows"]) == (70, 30)


def test_chosen_confusion_rows_are_scored_alone() -> None:
    task, posterior = image_task(), ImagePosterior()
    each: dict[str, Tensor] = {}
    some = evaluate(posterior, task, DRAWS, shifts=False, ood_rows=10, each_row=each)
    x, confusing = whole(task)[0], next(iter(task.confusion_batches(100)))[choose_rows(25, 10)]
    inside, outside = posterior.predict(x, DRAWS), posterior.predict(confusing, DRAWS)
    assert some.confusion["auroc"] == detection.auroc(inside.entropy, outside.entropy)
    assert some.confusion["entropy"] == pytest.approx(outside.entropy.mean().item())
    assert len(each["confusion_entropy"]) == some.meta["ood_rows"] == 10
    assert len(each["nll"]) == 70


def test_all_rows_are_a_choice_too_and_no_choice_leaves_no_trace() -> None:
    task, posterior = image_task(), ImagePosterior()
    plain = evaluate(posterior, task, DRAWS)
    full = evaluate(posterior, task, DRAWS, shift_rows=70, ood_rows=25)
    assert full.unshifted == full.clean == plain.clean
    assert (full.shifted, full.confusion) == (plain.shifted, plain.confusion)
    assert plain.unshifted == {}
    assert "unshifted" not in plain.to_json()
    assert not {"shift_rows", "ood_rows"} & plain.meta.keys()
    assert not any(name.startswith("unshifted") for name in plain.flat())
    assert full.flat()["unshifted/ece"] == full.clean["ece"]
    assert Scores.from_json(json.loads(json.dumps(full.to_json()))) == full


def test_a_choice_does_not_follow_the_order_of_the_rows() -> None:
    there, rows = 10_000, 1_000
    kept = choose_rows(there, rows)
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert (len(kept), int(kept.min()) >= 0, int(kept.max()) < there) == (rows, True, True)
    assert set(choose_rows(there, 100).tolist()) <= set(kept.tolist())
    # of ten classes, one after the other, each tenth has about a tenth of the choice: eight deviations.
    counts = torch.bincount(kept // 1_000, minlength=10)
    assert (counts - 100).abs().max() < 8 * math.sqrt(1_000 * 0.1 * 0.9 * 0.9)
    # what was published of a choice stays of these rows.
    assert choose_rows(1_000, 5).tolist() == FIRST_OF_1000


WRONG_ROWS = [
    ({"shift_rows": 0}, "at least 1"),
    ({"shift_rows": -3}, "at least 1"),
    ({"shift_rows": True}, "at least 1"),
    ({"ood_rows": 2.5}, "at least 1"),
    ({"shift_rows": 71}, "71 of 70 rows of the split 'test'"),
    ({"ood_rows": 26}, "26 of 25 rows of the confusion data"),
]


@pytest.mark.parametrize(("rows", "said"), WRONG_ROWS)
def test_a_number_of_rows_that_is_none_is_refused_before_anything_is_predicted(
    rows: dict[str, Any], said: str
) -> None:
    class Silent(ImagePosterior):
        def predict(self, x: Tensor, draws: int = 20, seed: int = 0, *, first_row: int = 0) -> Predictive:
            raise AssertionError("predicted")

    with pytest.raises(BadInput) as refused:
        evaluate(Silent(), image_task(), DRAWS, **rows)
    assert said in str(refused.value)
    assert f"leave {next(iter(rows))} out" in refused.value.do


def test_numbers_of_rows_that_nothing_is_scored_on_are_no_matter() -> None:
    scores = evaluate(ImagePosterior(), image_task(), DRAWS, shifts=False, confusion=False, shift_rows=9999)
    assert (scores.shifted, scores.unshifted) == ({}, {})
