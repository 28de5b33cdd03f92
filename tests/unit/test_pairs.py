"""Paired differences, the errors over their test rows, and cells, against closed forms and simulation."""

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qbayes.lab.analysis.pairs import Pair, difference, differences, paired, score
from qbayes.lab.analysis.run_groups import (
    Cell,
    by_method,
    cells,
    collapse_depth,
    has_collapsed,
    option,
    plain_scheme,
    preferred,
    sweeps,
)
from qbayes.metrics.classification import ece
from qbayes.metrics.row_errors import (
    REPLICATES,
    STATISTICS,
    bin_of,
    resample_means,
    row_counts,
    row_error,
)
from study_rows import classified, regressed, row, study


def test_row_counts_draw_as_many_rows_as_there_are() -> None:
    counts = row_counts(50)
    assert counts.shape == (REPLICATES, 50)
    assert (counts.sum(1) == 50).all()
    assert counts.mean() == 1
    # the number of times a row is drawn has variance 1 − 1/n
    assert counts.astype(float).var() == pytest.approx(1 - 1 / 50, rel=0.02)


def test_resampled_mean_has_the_standard_error_of_the_mean() -> None:
    values = np.random.default_rng(3).normal(size=(400, 1))
    found = resample_means(values)[:, 0]
    assert found.std() == pytest.approx(values.std() / math.sqrt(400), rel=0.08)  # 1,000 replicates: 2.2 %
    assert found.mean() == pytest.approx(values.mean(), abs=4 * found.std() / math.sqrt(REPLICATES))


def probabilities(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, 10, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), torch.randint(10, (rows,), generator=generator)


def details(seed: int, rows: int = 500) -> dict[str, np.ndarray]:
    mean, labels = probabilities(rows, seed)
    confidence, answer = mean.max(-1)
    return {
        "confidence": confidence.numpy(),
        "correct": (answer == labels).to(torch.uint8).numpy(),
        "nll": -mean[torch.arange(rows), labels].log().numpy(),
        "entropy": -(mean * mean.log()).sum(-1).numpy(),
    }


@pytest.mark.parametrize("seed", range(5))
def test_ece_from_details_is_that_of_the_metrics(seed: int) -> None:
    statistic = STATISTICS["ece"]
    means = statistic.columns(details(seed)).mean(0, keepdims=True)
    assert statistic.finish(means)[0] == pytest.approx(ece(*probabilities(500, seed)), abs=1e-12)


def test_confidence_on_the_edge_of_a_bin_belongs_below() -> None:
    assert bin_of(np.array([0.5, 0.5000001, 1.0, 0.1, 0.0])).tolist() == [4, 5, 9, 0, 0]


def test_same_rows_on_both_sides_leave_only_what_differs() -> None:
    """A constant added to every row has no spread over rows, however much the rows themselves spread."""
    before = details(0)
    after = {**before, "nll": before["nll"] + 0.25}
    assert row_error([(before, after)], "nll", relative=False) == pytest.approx(0, abs=1e-12)
    assert row_error([(before, details(1))], "nll", relative=False) > 0.05


def test_row_error_of_seeds_on_one_test_set_does_not_shrink_with_seeds() -> None:
    """Seeds share their test rows: ten runs of the same difference are no more sure of it than one."""
    pair = details(0), details(1)
    one, ten = (row_error([pair] * count, "error", relative=False) for count in (1, 10))
    assert ten == pytest.approx(one, rel=1e-9)


def test_row_error_of_a_mean_has_its_closed_form() -> None:
    before, after = details(0), details(1)
    expected = np.std(after["nll"] - before["nll"]) / math.sqrt(500)
    assert row_error([(before, after)], "nll", relative=False) == pytest.approx(expected, rel=0.08)


def test_row_error_of_rmse_follows_the_delta_method() -> None:
    generator = np.random.default_rng(0)
    before = {"squared_error": generator.chisquare(1, 2000)}
    after = {"squared_error": before["squared_error"] * generator.uniform(0.5, 2, 2000)}
    found = row_error([(before, after)], "rmse", relative=False)
    a, b = np.sqrt(after["squared_error"].mean()), np.sqrt(before["squared_error"].mean())
    influence = after["squared_error"] / (2 * a) - before["squared_error"] / (2 * b)
    assert found == pytest.approx(influence.std() / math.sqrt(2000), rel=0.08)


def test_rows_without_details_or_of_another_length_are_not_resampled() -> None:
    assert row_error([(details(0), None)], "nll", relative=False) == 0
    assert row_error([(details(0), details(1, rows=400))], "nll", relative=False) == 0
    assert row_error([(details(0), details(1))], "crps", relative=False) == 0


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_rows_of_which_one_is_not_finite_are_not_resampled(number: float) -> None:
    """The row is in some resamplings and not in others: their spread would be no number."""
    after = details(1)
    after["nll"][3] = number
    for sides in ((details(0), after), (after, details(0))):
        assert row_error([sides], "nll", relative=False) == 0


def test_pairs_share_float_stage_draws_and_evaluation() -> None:
    rows = [
        row(error=0.1, draws=20),
        row(error=0.2, draws=5, **{"axis:evaluate.draws": 5}),
        row(bits=(8, 7), error=0.15, draws=20),
        row(bits=(8, 7), error=0.3, draws=5, **{"axis:evaluate.draws": 5}),
        row(bits=(8, 7), error=0.4, draws=7),
        row(bits=(8, 7), seed=3, error=0.4),
    ]
    found = {pair.quantised["draws"]: pair.float["error"] for pair in paired(study(rows))}
    assert found == {20: 0.1, 5: 0.2}


def test_pairs_of_two_noise_seeds_are_kept_apart() -> None:
    axis = "axis:evaluate.seed"
    rows = [row(bits=bits, error=0.1 + noise, **{axis: noise}) for bits in (None, (8, 7)) for noise in (0, 1)]
    found = differences(paired(study(rows)), "error")
    assert sorted(found.values()) == [0, 0]


def test_difference_is_exact_for_each_run() -> None:
    rows = classified("mcd", error=0.01) + classified("mcd", (8, 7), error=0.012, wiggle=0.001)
    frame = study(rows)
    found = difference(frame, paired(frame), "error")
    assert found.value == pytest.approx(0.002)
    assert found.se_runs == pytest.approx(0.001 / math.sqrt(3))


def test_relative_difference_of_rmse() -> None:
    frame = study(regressed("mcd", rmse=4.0) + regressed("mcd", (4, 4), rmse=5.0))
    assert difference(frame, paired(frame), "rmse", relative=True).value == pytest.approx(0.25)


@pytest.mark.parametrize("nll", [math.inf, math.nan])
def test_a_score_that_is_not_finite_is_an_endless_loss(nll: float) -> None:
    endless = classified("mcd", (8, 7), nll=0.03)
    endless[1]["nll"] = nll
    frame = study(classified("mcd") + endless)
    found = difference(frame, paired(frame), "nll")
    assert (found.value, found.low, found.high, found.decidable) == (math.inf, None, None, False)
    assert math.isnan(score({"entropy": math.nan}, "entropy")), "neither side of it is a merit"
    assert math.isnan(score({"confusion/entropy": math.nan}, "confusion/entropy"))


def test_details_widen_the_interval() -> None:
    rows = classified("mcd", seeds=[0, 1]) + classified("mcd", (8, 7), seeds=[0, 1], wiggle=0.01)
    kept = {one["run"]: details(number) for number, one in enumerate(rows)}
    plain, with_rows = study(rows), study(rows, kept)
    narrow, wide = (difference(frame, paired(frame), "error") for frame in (plain, with_rows))
    assert narrow.se_rows is None
    assert wide.se_rows is not None
    assert wide.se_rows > 0
    assert wide.value == narrow.value


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(random: Random) -> None:
    rows = classified("mcd", wiggle=0.003) + classified("mcd", (8, 7), error=0.012, wiggle=0.001)
    kept = {one["run"]: details(number) for number, one in enumerate(rows)}
    shuffled = list(rows)
    random.shuffle(shuffled)
    first, second = study(rows, kept), study(shuffled, kept)
    for metric in ("error", "ece", "nll"):
        assert difference(first, paired(first), metric) == difference(second, paired(second), metric)


# ---- cells


def pair(error: float, reference: float = 0.1, classes: int = 10) -> Pair:
    shared = {"classes": classes}
    return Pair(row(bits=(3, 3), error=error, **shared), row(error=reference, **shared))


def test_collapse_is_above_the_midpoint_between_float_and_chance() -> None:
    assert collapse_depth(pair(0.1)) == 0
    assert collapse_depth(pair(0.9)) == pytest.approx(1)
    assert not has_collapsed(pair(0.4999))
    assert has_collapsed(pair(0.5001))
    assert has_collapsed(pair(0.31, classes=2))  # chance of two classes: 0.5


@pytest.mark.parametrize("reference", [0.9, 0.93, 1.0])
def test_a_float_run_at_chance_or_below_is_on_no_way_to_it(reference: float) -> None:
    for error in (0.1, 0.9, 0.95):
        found = pair(error, reference)
        assert collapse_depth(found) is None
        assert not has_collapsed(found)


def test_collapse_in_regression_is_above_nine_tenths_of_the_deviation() -> None:
    good, bad = (regressed("mcd", (3, 3), seeds=[0], rmse=rmse)[0] for rmse in (8.99, 9.01))
    reference = regressed("mcd", seeds=[0])[0]
    assert not has_collapsed(Pair(good, reference))
    assert has_collapsed(Pair(bad, reference))


def test_cells_hold_seeds_and_folds_and_nothing_else() -> None:
    rows = [
        one
        for fold in range(3)
        for bits in (None, (8, 7), (4, 4))
        for one in regressed("mcd", bits, fold=fold, **{"axis:task": f"boston {fold}", "axis:seed": 1})
    ]
    assert [(cell.bits, len(cell.pairs)) for cell in cells(study(rows))] == [("W4A4", 9), ("W8A7", 9)]


def test_what_a_study_varies_besides_splits_cells() -> None:
    rows = [
        {**one, "float": f"{one['float']} {rate}"}
        for rate in (0.1, 0.2)
        for bits in (None, (8, 7))
        for one in classified("mcd", bits, **{"axis:method.rate": rate})
    ]
    found = cells(study(rows))
    assert [cell.extra for cell in found] == [(("axis:method.rate", "0.1"),), (("axis:method.rate", "0.2"),)]
    assert found[0].label == "mnist lenet mcd W8A7 (method.rate 0.1)"


def labels(found: list[Cell]) -> list[str]:
    return [cell.label for cell in found]


def test_preferred_are_trained_at_twenty_draws_by_the_reference() -> None:
    rows = []
    for draws in (1, 20, 100):
        rows += classified("mcd", draws=draws)
        for training in ("trained", "calibrated"):
            for backend in ("reference", "onednn"):
                rows += classified("mcd", (8, 7), draws=draws, training=training, backend=backend)
    rows += classified("mcd", (8, 7), scheme="default, mask=product")
    frame = study(rows)
    assert labels(preferred(frame)) == ["mnist lenet mcd W8A7"]
    assert len(cells(frame)) == 13


def test_preferred_take_what_there_is() -> None:
    rows = [
        one for draws in (3, 7) for bits in (None, (8, 7)) for one in classified("mcd", bits, draws=draws)
    ]
    for one in rows:
        one["training"] = "calibrated" if one["precision"] != "float" else "float"
    assert labels(preferred(study(rows))) == ["mnist lenet mcd W8A7 (calibrated, 7 draws)"]


def test_sweeps_take_the_papers_grid_and_the_diagonal() -> None:
    grid = [(8, a) for a in (3, 5, 7, 8)] + [(w, 7) for w in (3, 4)] + [(4, 4), (2, 2)]
    rows = classified("mcd") + [one for bits in grid for one in classified("mcd", bits)]
    found = sweeps(cells(study(rows)))
    assert {name: sorted(some) for name, some in found.items()} == {
        "activation": [3, 5, 7, 8],
        "weight": [3, 4, 8],
        "both": [2, 4, 8],
    }


def test_methods_meet_in_a_setting_whatever_their_draws() -> None:
    rows = [
        one
        for bits in (None, (8, 7))
        for one in classified("mcd", bits) + classified("pointwise", bits, draws=1)
    ]
    (methods,) = by_method(preferred(study(rows))).values()
    assert sorted(methods) == ["mcd", "pointwise"]


def test_options_come_from_the_axis_or_the_scheme() -> None:
    assert plain_scheme("default, mask=exact, noise=8") == "default"
    assert plain_scheme("paper, mask=exact, weight_range=ema") == "paper, mask=exact"
    by_axis = cells(study(classified("bbb") + classified("bbb", (4, 4), **{"axis:precision.noise": 3})))[0]
    by_scheme = cells(
        study(classified("bbb") + classified("bbb", (4, 4), scheme="paper, mask=exact, noise=2"))
    )[0]
    assert option(by_axis, "noise") == "3"
    assert (option(by_scheme, "noise"), option(by_scheme, "mask"), option(by_scheme, "sigma")) == (
        "2",
        "exact",
        None,
    )


@pytest.mark.parametrize(
    ("metric", "column"), [("rotation/3/ece", "shift_rows"), ("confusion/auroc", "ood_rows")]
)
def test_scores_of_other_rows_have_no_difference(metric: str, column: str) -> None:
    def pair(*counts: dict[str, int]) -> Pair:
        (made,) = paired(
            study(
                [
                    row("mcd", bits, **{metric: 0.5, "error": 0.1}, **count)
                    for bits, count in zip((None, (8, 7)), counts, strict=True)
                ]
            )
        )
        return made

    assert differences([pair({}, {})], metric) == {(None, 0): 0.0}
    assert differences([pair({column: 100}, {column: 100})], metric) == {(None, 0): 0.0}
    for counts in (({column: 100}, {}), ({column: 100}, {column: 200})):
        assert differences([pair(*counts)], metric) == {}
        assert differences([pair(*counts)], "error") == {(None, 0): 0.0}, "clean scores are of all rows"
