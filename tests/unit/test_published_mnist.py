"""The page of MNIST from rows whose truth is known, for the whole planned grid, and from those of today."""

import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import mnist_rows
import needs
from mnist_rows import BIT_NLL, LABELS_INFORMATION, LABELS_NLL, LABELS_SHIFT
from qbayes.lab.report.export_csv import publish
from report_frames import frame_of
from study_rows import classified, row

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
import published_mask
from published_bounds import bounded
from published_controls import Controlled, controls, cost
from published_images import NLL
from published_made import made
from published_mask import masks, read, rule
from published_mnist import TABLES
from published_numbers import Missing, Studies
from published_recipe import recipe
from published_shift import shift

METHODS = ("pointwise", "mcd", "bbb", "sghmc")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    """The studies as they will be, each run done; the paper's recipe and the scales are those of today."""
    folder = mnist_rows.publish_all(tmp_path_factory.mktemp("planned"))
    for name in ("mnist-paper", "noise-bits", "mask-scale"):
        shutil.copy(published.RESULTS / f"{name}.csv", folder)
    return Studies(folder)


@pytest.fixture(scope="module")
def today() -> Studies:
    return Studies(published.RESULTS)


def lines_of(lines: list[str], start: str) -> list[list[str]]:
    """The cells of the rows whose third cell begins so."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in cells if len(row) > 2 and row[2].startswith(start)]


# ---- the planned studies


def test_the_planned_study_has_five_seeds_where_the_page_opens_and_equal_epochs() -> None:
    _, runs = mnist_rows.planned("mnist")
    seeds: dict[tuple[str, str, str, str], set[int]] = {}
    for run in runs:
        key = (run["method"], run["precision"], run["scheme"], run["training"])
        seeds.setdefault(key, set()).add(run["seed"])
    for method in METHODS:
        assert len(seeds[method, "float", "float", "float"]) == 5
        for bits in ("W8A7", "W4A4", "W2A2"):
            for training in ("calibrated", "trained", "imitation"):
                assert len(seeds[method, bits, "default", training]) == 5, (method, bits, training)
            assert len(seeds[method, "float-finetuned", f"as {bits}", "trained"]) == 5
        assert len(seeds[method, "W3A3", "default", "trained"]) == 3
    epochs: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        if run["training"] in ("trained", "imitation"):
            key = (run["precision"], run["scheme"])
            epochs.setdefault(key, set()).add(run["axis:quantize.epochs"])
    assert all(len(found) == 1 for found in epochs.values()), "each member has the epochs of a point network"


def test_the_masks_study_starts_from_the_float_posteriors_of_the_first() -> None:
    """So that ``--from`` lends them, and no network is trained twice."""
    floats = {(run["method"], run["seed"]): run["float"] for run in mnist_rows.planned("mnist")[1]}
    for run in mnist_rows.planned("mnist-mask")[1]:
        assert floats[run["method"], run["seed"]] == run["float"]


def test_the_recipe_reads_no_test_row() -> None:
    study, _ = mnist_rows.planned("mnist-recipe")
    assert all(point.run["evaluate"]["split"] == "validation" for point in study.points())
    assert all(not point.run["evaluate"]["confusion"] for point in study.points())


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_table_comes_from_the_planned_rows(planned: Studies, name: str) -> None:
    lines = TABLES[name](planned)
    assert any(line.startswith("| --- ") for line in lines)
    assert len({line.count(" | ") for line in lines if line.startswith("|")}) == 1
    assert not any("nan" in line for line in lines)


def test_the_control_tells_bits_from_training(planned: Studies) -> None:
    """NLL: labels gain the same with bits and without; what is left is what the bits lose."""
    found = Controlled(planned["mnist"])
    for method in METHODS:
        for bits, lost in (("W8A8", 0), ("W4A4", 4), ("W2A2", 6)):
            assert found.change(found.bits(method, bits, "trained"), NLL).value == pytest.approx(
                LABELS_NLL + BIT_NLL * lost, abs=1e-8
            )
            assert found.change(found.control(method, bits, "trained"), NLL).value == pytest.approx(
                LABELS_NLL, abs=1e-8
            )
            alone = found.change(found.bits_alone(method, bits, "trained"), NLL)
            assert alone.value == pytest.approx(BIT_NLL * lost, abs=1e-8)
    lines = controls(planned)
    assert [row[5] for row in lines_of(lines, "the bits alone (labels)")[:2]] == [
        "0.0000 [−0.0006, +0.0006]",
        "+0.0005 [−0.0001, +0.0011]",
    ]
    assert not any("no control" in line for line in lines)


def test_intervals_of_the_planned_rows_have_a_width(planned: Studies) -> None:
    """Seeds that agree to the last digit are no certainty: the test rows are few."""
    lines = [line for line in cost(planned) if "[" in line]
    assert lines
    assert not any("[seeds agree]" in line for line in lines)
    assert "over seeds (Student's t) and test rows" in "\n".join(cost(planned))


def test_the_bounds_are_those_of_the_formula(planned: Studies) -> None:
    """Labels leave 0.8 of the mutual information, and each bit adds a tenth."""
    factor = LABELS_INFORMATION * (1 + 0.1 * 6)
    assert f"- W2A2, labels: the mutual information of test digits is between ×{factor:.2f}" in "\n".join(
        bounded(planned)
    )


def test_what_rises_under_shift_is_named_with_its_control(planned: Studies) -> None:
    lines = [line for line in shift(planned) if line.startswith("- ")]
    said = {line.partition(":")[0].removeprefix("- W8A7, "): line for line in lines}
    assert {*said} == {
        "calibrated",
        "labels",
        "labels, without bits (the control)",
        "distilled",
        "distilled, without bits (the control)",
    }
    for words, bit in (("labels", BIT_NLL), ("labels, without bits (the control)", 0.0)):
        for method, more in LABELS_SHIFT.items():
            rise = more + 3 * (bit + LABELS_NLL)
            named = f"`{method}` (+{rise:.3f} nat)" in said[words]
            assert named == (rise > 0), (words, method)
        assert "5 seeds" in said[words]
    assert "no method is worse" in said["distilled, without bits (the control)"]


def test_the_mask_alone_collapses(planned: Studies) -> None:
    cells = [line.split(" | ") for line in masks(planned) if "our float networks" in line]
    assert len(cells) == 6, (
        "three schemes and masks fine-tuned, two of them calibrated too, and the paper's exact"
    )
    for line in cells:
        assert ("3 of 3" in line[-1]) == ("product" in line[1]), line
        assert not any("3 of 3" in cell for cell in line[:-1])


def test_candidates_of_the_recipe_are_told_apart(planned: Studies) -> None:
    lines = recipe(planned)
    assert [line.split(" | ")[1] for line in lines if line.startswith("| `mcd`")] == ["20"]
    assert "|  | from the point network, 10 | 0.50 | 0.0200 | 0.40 |" in lines
    assert lines[-1].endswith("20 draws.")


def test_pictures_are_drawn_from_the_planned_rows(planned: Studies, tmp_path: Path) -> None:
    needs.package("matplotlib")
    from published_contrast import draw_contrast
    from published_figures import draw

    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(planned.path("mnist"), alone)
    files = {path.name: path for path in draw(Studies(alone), [], tmp_path / "images")}
    wanted = {
        f"mnist-shifts-{shift}-{of}.svg" for shift in ("rotation", "brightness") for of in ("nll", "error")
    }
    assert wanted <= {*files}
    (first,) = draw_contrast(planned, tmp_path)
    for path in (*files.values(), first):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


# ---- studies that lack something


def test_rows_without_a_control_say_so(today: Studies, tmp_path: Path) -> None:
    """What stands today, and a study of one seed: neither can tell bits from training."""
    rows = [*classified("mcd", seeds=[0]), *classified("mcd", (8, 8), seeds=[0])]
    rows += classified("mcd", (8, 8), seeds=[0], training="calibrated")
    rows = [{**one, "mutual_information": 0.01} for one in rows]
    publish(frame_of(rows, name="mnist"), tmp_path / "mnist.csv")
    lines = controls(Studies(tmp_path))
    assert any("no control" in line for line in lines)
    assert lines_of(lines, "W8A8, labels")[0][4] == "0.00", "one seed has no interval"
    assert "are not there yet" in made(Studies(tmp_path), ("mnist", "mnist-mask"))[-1]


def test_a_recipe_that_was_not_run_is_no_reason(tmp_path: Path) -> None:
    assert recipe(Studies(tmp_path)) == [
        "The rows of `mnist-recipe` are not there yet: the epochs of these rows were not chosen by them."
    ]


def test_a_study_without_shifts_is_refused(tmp_path: Path) -> None:
    rows = [*classified("mcd"), *classified("mcd", (8, 7))]
    publish(frame_of(rows, name="mnist"), tmp_path / "mnist.csv")
    with pytest.raises(Missing, match="shift"):
        shift(Studies(tmp_path))
    with pytest.raises(Missing, match="two ways"):
        controls(Studies(tmp_path))
    with pytest.raises(Missing, match="mask-scale"):
        published_mask.scale(Studies(tmp_path))


def test_runs_that_failed_or_wait_are_counted(tmp_path: Path) -> None:
    rows = [row(), {**row(bits=(8, 8)), "status": "failed", "reason": "exploded"}]
    publish(frame_of(rows, name="mnist", planned=5), tmp_path / "mnist.csv")
    (line,) = [line for line in made(Studies(tmp_path), ("mnist",)) if line.startswith("| [")]
    assert "| 1, 1 failed, 3 left | 0 |" in line


def test_rows_of_two_commits_or_machines_or_one_seed_say_so(tmp_path: Path) -> None:
    rows = [row(commit="a" * 40, device="cpu"), row(bits=(8, 8), commit="b" * 40, device="cuda")]
    publish(frame_of(rows, name="mnist"), tmp_path / "mnist.csv")
    said = made(Studies(tmp_path), ("mnist",))[-1]
    assert "`mnist` has one seed" in said
    assert "come from 2 values of commit" in said
    assert "come from 2 values of device" in said
    both = [row(seed=seed, commit="a" * 40, device="cpu") for seed in range(2)]
    publish(frame_of(both, name="mnist"), tmp_path / "mnist.csv")
    assert made(Studies(tmp_path), ("mnist",))[-1] == "No planned study is missing."


# ---- the scale of the mask


def test_the_answer_is_lost_where_a_scale_is_two_and_nowhere_else(today: Studies) -> None:
    """The rule of the page, by the measured scales of every network."""
    networks = read(today)
    assert networks
    assert {one.lost for one in networks} == {True, False}, "the rule has both sides"
    for one in networks:
        assert one.lost == (one.largest >= published_mask.LIMIT), one
        for scale, gain in zip(one.scales, one.gains, strict=True):
            assert gain == pytest.approx(scale * min(round(1 / scale), 2**one.activation - 1), rel=1e-3)
    assert "NaN" not in rule(networks)[0]


def test_ranges_set_behind_every_batch_pass_two_where_all_rows_at_once_stay_below(today: Studies) -> None:
    """The contradiction of two earlier pages, on one network: the same scale, two answers."""
    by_way: dict[tuple[int, int], dict[str, published_mask.Masked]] = {}
    for one in read(today):
        if one.scheme == "ours":
            by_way.setdefault((one.seed, one.activation), {})[one.ranges] = one
    both = [of for of in by_way.values() if len(of) == 2]
    assert any(not of["once"].lost and of["batches"].lost for of in both)
    assert all(of["batches"].lost for of in both if of["once"].lost)
    for of in both:
        assert not (of["batches"].lost and of["once"].largest < 1), "below a step of 1 nothing grows"


def test_factors_are_geometric_means(tmp_path: Path) -> None:
    """×2 in one seed and ×8 in the other are ×4."""
    rows = [*classified("mcd", seeds=[0, 1], ece=0.01), *classified("mcd", (8, 8), seeds=[0, 1])]
    rows = [
        {
            **one,
            "mutual_information": 0.01,
            "ece": 0.01 * (1 if one["precision"] == "float" else 2 * 4 ** one["seed"]),
        }
        for one in rows
    ]
    publish(frame_of(rows, name="mnist"), tmp_path / "mnist.csv")
    assert any("the ECE at most ×4.0 (`mcd`)" in line for line in bounded(Studies(tmp_path)))
