"""Every registered figure, and the numbers in it against plain sums over the rows."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import Beyond, Chart, Series
from qbayes.lab.report.charts.groups import groups_of
from qbayes.lab.report.charts.points import Point, Repeats
from qbayes.lab.report.figures import FIGURES, draw_all
from qbayes.lab.report.figures.pareto import front
from qbayes.lab.report.figures.reliability import bin_rows
from qbayes.metrics.classification import ece
from qbayes.tasks.shifts import LEVELS
from report_frames import (
    EQUAL_SWEEP,
    METHODS,
    UCI,
    draws_rows,
    fine_tuning_rows,
    frame_of,
    image_rows,
    key,
    plain,
    regressed,
    uci_rows,
    with_spread,
)

NAMES = list(FIGURES)
Rows = list[dict[str, Any]]


def noise_rows() -> Rows:
    """A study of the bits of the noise, as part of the scheme."""
    rows = image_rows("digits", methods=("bbb",), precisions=())
    for seed in range(3):
        for noise in (2, 4, 8):
            rows += [
                {
                    **row,
                    "scheme": f"default, noise={noise}",
                    "run": key(row["run"], noise),
                    "error": 0.1 / noise,
                }
                for row in image_rows("digits", methods=("bbb",), seeds=[seed], precisions=[(4, 4)])
                if row["precision"] != "float"
            ]
    return rows


def spread_rows() -> Rows:
    return with_spread(image_rows(precisions=[(4, 4)]))


STUDIES: dict[str, Callable[[], Rows]] = {
    "axes": draws_rows,
    "precisions": lambda: image_rows(precisions=[(8, 7)]),
    "regression_boxes": uci_rows,
    "fine_tuning": fine_tuning_rows,
    "backends": fine_tuning_rows,
    "weight_spread": spread_rows,
}


@pytest.fixture(scope="module")
def images() -> Frame:
    return frame_of(image_rows(), details=True)


def charts_of(name: str, frame: Frame) -> list[Chart]:
    return FIGURES[name]().draw(frame)


def chosen(charts: Sequence[Chart], **choices: str) -> Chart:
    found = [chart for chart in charts if all(chart.choices.get(k) == v for k, v in choices.items())]
    assert len(found) == 1, [dict(chart.choices) for chart in found]
    return found[0]


def line(chart: Chart, group: str) -> Series:
    return next(series for series in chart.series if series.group == group)


def values(frame: Frame, metric: str, **columns: object) -> list[float]:
    return [row[metric] for row in frame.where(**columns).rows]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_keeps_the_contract(name: str) -> None:
    """Called like its file, described, empty without data, and drawn with them."""
    kind = FIGURES[name]
    assert kind.name == name
    assert kind.__module__.rpartition(".")[2] == name
    assert kind.__doc__
    assert kind.title
    assert kind.caption.endswith(".")
    assert charts_of(name, frame_of([])) == []
    frame = frame_of(STUDIES.get(name, image_rows)(), details=True)
    charts = charts_of(name, frame)
    assert charts
    assert charts == charts_of(name, frame)
    assert all(chart.series and any(series.y for series in chart.series) for chart in charts)
    assert all(kind.beside in chart.choices for chart in charts)
    choices = [tuple(chart.choices.items()) for chart in charts]
    assert len(set(choices)) == len(choices), "two charts with the same choices could not be told apart"


def test_figures_come_in_the_order_of_the_page(images: Frame) -> None:
    plates = draw_all(images)
    places = [plate.figure.place for plate in plates]
    assert places == sorted(places)
    assert {plate.figure.name for plate in plates} >= {"activation_bits", "shifts", "pareto", "reliability"}
    assert draw_all(frame_of([])) == []


@pytest.mark.parametrize(
    ("figure", "written"),
    [("activation_bits", "W8A{}"), ("weight_bits", "W{}A7"), ("equal_bits", "W{0}A{0}")],
)
def test_a_point_is_the_mean_over_seeds_with_its_extremes(images: Frame, figure: str, written: str) -> None:
    chart = chosen(charts_of(figure, images), metric="ECE")
    assert chart.categories[0] == "float"
    for method in METHODS:
        series = line(chart, method)
        assert series.low is not None
        assert series.high is not None
        for place, bits in enumerate(series.x):
            precision = "float" if bits == "float" else written.format(bits)
            of_seeds = [100 * v for v in values(images, "ece", method=method, precision=precision)]
            assert len(of_seeds) == 3
            assert series.y[place] == pytest.approx(np.mean(of_seeds))
            assert (series.low[place], series.high[place]) == pytest.approx((min(of_seeds), max(of_seeds)))


def test_bits_fall_from_left_to_right_and_the_longest_sweep_is_taken(images: Frame) -> None:
    activation = charts_of("activation_bits", images)
    assert {chart.categories for chart in activation} == {("float", "8", "7", "6", "5", "4", "3")}
    assert {chart.x_label for chart in activation} == {"activation bits (weights of 8 bits)"}
    weight = charts_of("weight_bits", images)
    assert {chart.x_label for chart in weight} == {"weight bits (activations of 7 bits)"}


def test_the_spread_of_weights_is_that_of_the_float_runs() -> None:
    charts = charts_of("weight_spread", frame_of(spread_rows()))
    spread, deviation = chosen(charts, measure="spread"), chosen(charts, measure="deviation")
    assert spread.categories == ("conv2", "conv10", "logits")
    wide = line(spread, "sghmc")
    assert wide.y == pytest.approx((6.0, 5.0, 3.0))
    assert (wide.low, wide.high) == (pytest.approx((5.0, 5.0, 3.0)), pytest.approx((7.0, 5.0, 3.0)))
    assert line(deviation, "mcd").y == pytest.approx((0.5, 0.4, 0.3))
    assert charts_of("weight_spread", frame_of(image_rows())) == [], "rows of older studies have no spread"


def test_a_posterior_that_is_evaluated_twice_counts_once() -> None:
    rows = spread_rows()
    again = [{**row, "run": key(row["run"], "again"), "draws": 5} for row in rows]
    assert charts_of("weight_spread", frame_of([*rows, *again])) == charts_of("weight_spread", frame_of(rows))


def test_what_is_not_comparable_is_never_averaged() -> None:
    frame = frame_of(fine_tuning_rows())
    charts = charts_of("equal_bits", frame)
    for training, backend in (("trained", "reference"), ("calibrated", "reference"), ("trained", "onednn")):
        chart = chosen(charts, metric="error", training=training, backend=backend)
        series = line(chart, "mcd")
        expected = values(
            frame, "error", method="mcd", precision="W4A4", training=training, backend=backend, task="digits"
        )
        assert series.y[series.x.index("4")] == pytest.approx(100 * np.mean(expected))


def test_one_method_with_two_sets_of_options_makes_two_charts() -> None:
    rows = image_rows(methods=("sghmc",), precisions=EQUAL_SWEEP)
    more = [{**row, "run": key(row["run"], 8), "float": key(row["float"], 8)} for row in rows]
    for name, some in {"sghmc": rows, "sghmc, members=8": more}.items():
        for row in some:
            row["axis:method"] = name
    drawn = charts_of("equal_bits", frame_of([*rows, *more]))
    charts = [chart for chart in drawn if chart.choices["metric"] == "error"]
    assert [chart.choices["method"] for chart in charts] == ["sghmc", "sghmc, members=8"]
    assert all("3 seeds" in chart.series[0].labels for chart in charts)


def test_a_quantised_run_is_beside_the_float_run_of_as_many_draws() -> None:
    groups = groups_of(frame_of(draws_rows((1, 20))))
    assert len(groups) == 2
    for group in groups:
        draws = {row["draws"] for row in (*group.rows, *group.floats)}
        assert len(draws) == 1
        assert all(group.partner[row["run"]]["float"] == row["float"] for row in group.rows)


def test_points_that_lack_folds_are_left_out_and_named() -> None:
    rows = uci_rows(tasks=UCI[:1], folds=3)
    lost = next(r for r in rows if r["method"] == "bbb" and r["precision"] == "W8A5" and r["fold"] == 1)
    charts = charts_of("activation_bits", frame_of([row for row in rows if row is not lost]))
    chart = chosen(charts, metric="RMSE")
    assert "5" not in line(chart, "bbb").x
    assert "5" in line(chart, "mcd").x
    assert "Bayes-by-Backprop at 5" in chart.note
    assert charts_of("activation_bits", frame_of(rows))[0].note == ""


def test_a_mean_that_several_figures_show_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a report of many runs takes minutes: every figure would read all rows for every score."""
    made: Counter[tuple[object, ...]] = Counter()
    make = Repeats._make  # pyright: ignore[reportPrivateUsage]

    def counted(repeats: Repeats, column: str, scale: float) -> Point | None:
        made[tuple(row["run"] for row in repeats.rows), column, scale] += 1
        return make(repeats, column, scale)

    monkeypatch.setattr(Repeats, "_make", counted)
    frame = frame_of(image_rows())
    assert len(draw_all(frame)) > 5
    assert set(made.values()) == {1}
    assert groups_of(frame) is groups_of(frame)


def endless(rows: Rows, score: float = math.inf, **columns: object) -> Frame:
    """The frame of rows of which some of seed 1 have scores that are not finite."""
    for row in rows:
        if row["seed"] == 1 and all(row[name] == value for name, value in columns.items()):
            row |= {name: score for name in ("nll", "rmse", "rotation/2/nll") if name in row}
    return frame_of(rows)


@pytest.mark.parametrize(
    ("figure", "where"),
    [
        ("equal_bits", {"precision": "W3A3"}),
        ("pareto", {"precision": "W3A3"}),
        ("shifts", {"precision": "W4A4"}),
        ("backends", {"precision": "W4A4", "backend": "onednn"}),
        ("fine_tuning", {"precision": "W3A3"}),
        ("precisions", {"precision": "W3A3"}),
    ],
)
def test_one_endless_seed_makes_the_mean_endless(figure: str, where: dict[str, str]) -> None:
    """It is neither left out of the mean nor drawn as if it had a place: it stands at the edge."""
    rows = fine_tuning_rows() if figure in ("backends", "fine_tuning") else image_rows()
    if figure == "precisions":
        rows = [row for row in rows if row["precision"] in ("float", "W3A3", "W8A7")]
    frame = endless(rows, method="mcd", **where)
    charts = [chart for chart in charts_of(figure, frame) if chart.choices["metric"] == "NLL"]
    beyond = [one for chart in charts for series in chart.series for one in series.beyond]
    assert beyond
    assert all(one.y == math.inf for one in beyond)
    assert {series.group for chart in charts for series in chart.series if series.beyond} == {"mcd"}
    marked = next(chart for chart in charts if any(series.beyond for series in chart.series))
    assert "MC dropout at" in marked.notes or "trained at" in marked.notes
    assert "∞" in marked.notes


def test_a_point_at_the_edge_says_how_many_seeds_are_not_finite() -> None:
    chart = chosen(charts_of("equal_bits", endless(image_rows(), precision="W3A3")), metric="NLL")
    series = line(chart, "mcd")
    assert series.beyond == (Beyond("3", math.inf, "3 seeds, 1 not finite"),)
    assert "3" not in series.x
    assert {"4", "2"} <= set(series.x)
    both = [
        chart for chart in charts_of("equal_bits", endless(image_rows(), math.nan)) if "NLL" in chart.title
    ]
    assert all(math.isnan(one.y) for chart in both for one in line(chart, "mcd").beyond)
    assert line(both[0], "mcd").x == (), "also float: none of its points has a place"


def test_an_endless_set_is_at_the_edge_and_in_no_box() -> None:
    rows = uci_rows(folds=2, seeds=range(2))
    frame = endless(rows, task=UCI[0], method="bbb", precision="W4A7")
    chart = chosen(charts_of("regression_boxes", frame), over="weight bits", measure="RMSE, relative")
    series = line(chart, "bbb")
    assert series.beyond == (Beyond("4", math.inf, UCI[0]),)
    assert [task for x, task in zip(series.x, series.labels, strict=True) if x == "4"] == list(UCI[1:])
    without = chosen(
        charts_of("regression_boxes", endless(uci_rows(folds=2, seeds=range(2)), precision="float")),
        over="weight bits",
        measure="NLL, difference",
    )
    assert all(math.isnan(one.y) for one in line(without, "bbb").beyond), "nothing to compare with"


def test_runs_that_are_endless_on_the_reference_are_counted() -> None:
    frame = endless(fine_tuning_rows(), method="mcd", precision="W8A8", backend="reference")
    chart = chosen(charts_of("backends", frame), metric="NLL")
    assert chart.note == "Left out, because they are not finite on the reference: 1 runs."
    assert line(chart, "mcd").beyond == ()


def test_boxes_hold_one_paired_comparison_a_set() -> None:
    frame = frame_of(uci_rows(folds=3, seeds=range(2)))
    chart = chosen(charts_of("regression_boxes", frame), over="weight bits", measure="RMSE, relative")
    series = line(chart, "sghmc")
    at = next(k for k in range(len(series.x)) if series.x[k] == "4" and series.labels[k] == UCI[2])
    floats = {row["float"]: row["rmse"] for row in frame.where(precision="float", task=UCI[2]).rows}
    pairs = frame.where(task=UCI[2], method="sghmc", precision="W4A7").rows
    assert len(pairs) == 6
    assert series.y[at] == pytest.approx(np.mean([row["rmse"] / floats[row["float"]] for row in pairs]))
    assert series.x.count("4") == len(UCI)
    assert chart.level == 1.0


def test_one_regression_set_makes_no_box() -> None:
    assert charts_of("regression_boxes", frame_of(uci_rows(tasks=UCI[:1]))) == []


def test_shifts_start_at_the_clean_score_and_follow_the_levels(images: Frame) -> None:
    charts = charts_of("shifts", images)
    chart = chosen(charts, shift="rotation", metric="error", precision="W8A7")
    series = line(chart, "bbb")
    assert series.x == ("clean", "15°", "30°", "45°", "60°", "75°")
    columns = ["error", *(f"rotation/{level}/error" for level in range(1, 6))]
    means = [100 * np.mean(values(images, column, method="bbb", precision="W8A7")) for column in columns]
    assert series.y == pytest.approx(means)
    assert {chart.choices["shift"] for chart in charts} == {name.replace("_", " ") for name in LEVELS}


def test_shifts_of_a_choice_of_rows_start_at_the_clean_score_of_that_choice() -> None:
    rows = [{**row, "unshifted/error": 0.5, "shift_rows": 100} for row in image_rows(precisions=[(8, 7)])]
    chart = chosen(charts_of("shifts", frame_of(rows)), shift="rotation", metric="error", precision="W8A7")
    assert line(chart, "bbb").y[0] == pytest.approx(50)


def test_shifts_are_drawn_where_only_some_runs_have_them() -> None:
    """A study may shift its images for float and eight bits alone; the first row need not be such a one."""
    rows = [
        row if row["precision"] in ("float", "W8A7") else {k: v for k, v in row.items() if "/" not in k}
        for row in image_rows(precisions=[(8, 8), (8, 7), (4, 4)])
    ]
    charts = charts_of("shifts", frame_of(sorted(rows, key=lambda row: row["precision"] != "W4A4")))
    assert {chart.choices["precision"] for chart in charts} == {"float", "W8A7"}


def test_a_study_of_float_alone_is_drawn_too() -> None:
    frame = frame_of(image_rows(precisions=()))
    names = {plate.figure.name for plate in draw_all(frame)}
    assert {"precisions", "shifts"} <= names
    chart = chosen(charts_of("precisions", frame), metric="error")
    assert line(chart, "mcd").y == pytest.approx([100 * np.mean(values(frame, "error", method="mcd"))])


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_the_gaps_of_a_reliability_diagram_add_up_to_the_ece(rows: list[tuple[float, bool]]) -> None:
    import torch

    sure = np.array([0.5 + confidence / 2 for confidence, _ in rows])
    right = np.array([correct for _, correct in rows], dtype=float)
    sizes, confidence, accuracy = bin_rows(sure, right)
    probabilities = torch.tensor(np.stack([sure, 1 - sure], 1))
    labels = torch.tensor(np.where(right == 1, 0, 1))
    share = sizes / len(sure)
    ties = np.isclose(sure, 0.5)  # then either class is the answer
    if not ties.any():
        assert np.sum(share * np.abs(accuracy - confidence)) == pytest.approx(
            float(ece(probabilities, labels)), abs=1e-6
        )
    assert sizes.sum() == len(sure)


def test_histograms_of_entropy_hold_every_row(images: Frame) -> None:
    chart = chosen(charts_of("entropy_histograms", images), precision="W4A4", method="MC dropout")
    assert [series.name for series in chart.series] == ["test data", "confusion data"]
    for series in chart.series:
        assert math.fsum(series.y) == pytest.approx(100)
        assert series.x[-1] == pytest.approx(math.log(10))
    run = images.where(precision="W4A4", method="mcd", seed=0).rows[0]["run"]
    details = images.details(run)
    assert details is not None
    low = np.mean(details["confusion_entropy"] <= math.log(10) / 2)
    assert math.fsum(chart.series[1].y[:15]) == pytest.approx(100 * low, abs=0.1)


clouds = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=30)


@given(clouds)
def test_nothing_is_cheaper_and_better_than_the_front(points: list[tuple[int, int]]) -> None:
    cloud = Series("c", "mcd", tuple(float(x) for x, _ in points), tuple(float(y) for _, y in points))
    line = front([cloud])
    kept = list(zip(line.x, line.y, strict=True))
    assert set(kept) <= {(float(x), float(y)) for x, y in points}
    for x, y in points:
        assert any(fx <= x and fy <= y for fx, fy in kept)
    for x, y in kept:
        assert not any((a <= x and b <= y) and (a, b) != (x, y) for a, b in points)


def test_an_axis_of_the_study_is_drawn_over_its_values() -> None:
    rows = draws_rows((1, 5, 100))
    chart = chosen(charts_of("axes", frame_of(rows)), axis="evaluate.draws", precision="W8A8", metric="NLL")
    series = line(chart, "mcd")
    assert series.x == (1.0, 5.0, 100.0)
    by_draws = {r["draws"]: r["nll"] for r in rows if r["method"] == "mcd" and r["precision"] == "W8A8"}
    assert series.y == pytest.approx([by_draws[1], by_draws[5], by_draws[100]])
    assert chart.log_x


def test_an_option_of_the_scheme_is_an_axis_too() -> None:
    chart = chosen(charts_of("axes", frame_of(noise_rows())), axis="precision.noise", metric="error")
    series = line(chart, "bbb")
    assert series.x == (2.0, 4.0, 8.0)
    assert series.y == pytest.approx([5.0, 2.5, 1.25])


def test_seeds_bits_and_methods_are_no_axes_of_that_figure() -> None:
    rows = image_rows()
    for row in rows:
        row |= {"axis:seed": row["seed"], "axis:precision": row["precision"], "axis:method + training": "x"}
    rows[0]["axis:method + training"] = "y"
    assert charts_of("axes", frame_of(rows)) == []


def test_agreement_is_shown_as_what_differs() -> None:
    frame = frame_of(fine_tuning_rows())
    chart = chosen(charts_of("backends", frame), metric="differing codes", training="trained")
    series = line(chart, "sghmc")
    equal = values(frame, "agreement/onednn", method="sghmc", precision="W4A4", backend="onednn")
    assert series.y[series.x.index("W4A4")] == pytest.approx(100 * (1 - np.mean(equal)), abs=1e-9)
    scores = chosen(charts_of("backends", frame), metric="error", training="trained")
    cloud = line(scores, "mcd")
    assert len(cloud.x) == 6  # two precisions, three seeds
    assert all(0 <= float(y) - float(x) <= 0.0021 * float(x) for x, y in zip(cloud.x, cloud.y, strict=True))


def test_calibrated_stands_beside_trained() -> None:
    frame = frame_of(fine_tuning_rows())
    chart = chosen(charts_of("fine_tuning", frame), metric="error", method="SGHMC", backend="reference")
    ways = {series.name: series for series in chart.series}
    assert set(ways) == {"trained", "calibrated"}
    assert ways["calibrated"].dashed
    assert ways["trained"].x == ways["calibrated"].x == ("float", *(f"W{n}A{n}" for n, _ in EQUAL_SWEEP))
    assert all(a <= b for a, b in zip(ways["trained"].y, ways["calibrated"].y, strict=True))
    assert charts_of("fine_tuning", frame_of(image_rows())) == []


def test_a_new_method_is_drawn_after_the_known_ones() -> None:
    frame = frame_of(image_rows(methods=("laplace", "sghmc", "pointwise")))
    chart = chosen(charts_of("equal_bits", frame), metric="error")
    assert [series.group for series in chart.series] == ["pointwise", "sghmc", "laplace"]
    assert chart.series[-1].name == "laplace"


def test_regression_and_classification_share_a_study() -> None:
    rows = [
        *image_rows(seeds=[0]),
        *(regressed(plain("diabetes", "mlp", m, 0, b)) for m in METHODS for b in (None, *EQUAL_SWEEP)),
    ]
    charts = charts_of("equal_bits", frame_of(rows))
    metrics = {
        task: {c.choices["metric"] for c in charts if c.choices["task"] == task}
        for task in ("mnist", "diabetes")
    }
    assert "RMSE" in metrics["diabetes"]
    assert "RMSE" not in metrics["mnist"]
    assert "error" in metrics["mnist"]
