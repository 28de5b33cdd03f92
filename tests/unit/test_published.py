"""The tables of the published pages: numbers that are known beforehand, and pages that keep their words."""

import math
import shutil
import sys
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import cifar10_rows
import needs
from qbayes.errors import BadInput
from qbayes.lab.analysis.pairs import paired
from qbayes.lab.report.export_csv import publish
from report_frames import PAPER, frame_of, image_rows, uci_rows, write_store
from study_rows import Made, classified, row, study

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
from published_claims import OF_PAGE, claims
from published_contrast import draw_contrast
from published_figures import PICTURES, compact, draw
from published_index import index
from published_numbers import Rows, Studies, change, interval, plus_minus, ratio, signed, spread_of
from published_uci_paper import papers
from published_uci_sets import FIRST_LAYER

# what a page has in words, or has nothing to say of on made-up rows.
SENTENCES = ("calibrated", "summary", "status", "cifar10 bits", "cpu speed")
T1, T2 = 12.7062, 4.30265  # Student's t, 97.5 %, of one and of two degrees of freedom


def splits(method: str, bits: Any, scores: list[float], **columns: Any) -> list[Made]:
    """A split a score, as RMSE, of targets that deviate by 10."""
    given = {
        "task": "uci/boston",
        "network": "mlp",
        "target_deviation": 10.0,
        "nll": 1.0,
        "crps": 1.0,
        **columns,
    }
    more = {"coverage_90": 0.9, "interval_width_90": 3.0}
    return [row(method, bits, fold=fold, rmse=rmse, **more, **given) for fold, rmse in enumerate(scores)]


def rows_of(*rows: list[Made]) -> Rows:
    return Rows(study([one for some in rows for one in some]))


# ---- numbers


def test_the_ratio_is_that_of_the_means_and_pairs_the_splits() -> None:
    """Means 2 and 2.4; splits lie ∓ 0.2 from 1.2 times float, 10 % of it: their mean errs by 10 %.

    Two splits that overlap by a ninth: by √(1/2 + 1/9) / √(1/2) of that.
    """
    frame = study([*splits("mcd", None, [2.0, 2.0]), *splits("mcd", (8, 8), [2.2, 2.6])])
    found = ratio(paired(frame), "rmse")
    assert found.value == pytest.approx(20)
    error = 10 * math.sqrt(1 + 2 / 9)
    assert (found.low, found.high) == pytest.approx((20 - error * T1, 20 + error * T1), rel=1e-5)
    proportional = study([*splits("mcd", None, [1.0, 3.0]), *splits("mcd", (8, 8), [1.1, 3.3])])
    found = ratio(paired(proportional), "rmse")
    assert (found.value, found.se_runs) == pytest.approx((10, 0)), "all splits agree"


def test_a_split_without_end_has_no_interval() -> None:
    frame = study([*splits("mcd", None, [1.0, 1.0]), *splits("mcd", (8, 8), [1.0, math.inf])])
    found = ratio(paired(frame), "rmse")
    assert interval(found, 1) == "∞"


def test_differences_have_students_interval_over_the_seeds() -> None:
    before = classified("mcd", error=0.10)
    after = [{**one, "error": 0.11 + 0.01 * k} for k, one in enumerate(classified("mcd", (8, 7)))]
    found = change(paired(study([*before, *after])), "error", 100)
    half = T2 / math.sqrt(3)
    assert (found.low, found.value, found.high) == pytest.approx((2 - half, 2, 2 + half), rel=1e-5)
    assert interval(found, 2) == "+2.00 [−0.48, +4.48]"


def test_standard_errors_are_over_the_splits() -> None:
    found = spread_of(splits("mcd", None, [1.0, 2.0, 3.0, 4.0]), "rmse")
    assert plus_minus(found.value, found.se_runs, 3) == f"2.500 ± {math.sqrt(5 / 3) / 2:.3f}"


def test_numbers_are_typeset() -> None:
    assert [signed(value, 1) for value in (-0.04, 0.0, -1.26, 3.0)] == ["0.0", "0.0", "−1.3", "+3.0"]
    assert [signed(value, 1) for value in (math.inf, math.nan)] == ["∞", "–"]


def test_calibrated_rows_and_other_schemes_stay_out_unless_asked_for() -> None:
    float_rows = splits("mcd", None, [1.0, 1.0])
    trained, calibrated = (
        splits("mcd", (8, 8), [1.1, 1.1]),
        splits("mcd", (8, 8), [2.0, 2.0], training="calibrated"),
    )
    other = splits("mcd", (8, 8), [9.0, 9.0], scheme="default, mask=product")
    rows = rows_of(float_rows, trained, calibrated, other)
    assert ratio(rows.pairs(precision="W8A8"), "rmse").value == pytest.approx(10)
    assert ratio(rows.pairs(precision="W8A8", training="calibrated"), "rmse").value == pytest.approx(100)


# ---- tables


def folder_with(folder: Path, **studies: list[Any]) -> Studies:
    for name, rows in studies.items():
        publish(frame_of(rows, name=name.replace("_", "-")), folder / f"{name.replace('_', '-')}.csv")
    return Studies(folder)


def paper_rows(rows: list[Made]) -> list[Made]:
    return [{**one, "recipe": "paper", "scheme": "paper"} if one["weight"] < 32 else one for one in rows]


def test_no_run_is_left_out_of_the_papers_table(tmp_path: Path) -> None:
    """Folds of 1, 3 and one that exploded: the median is 3; of 1, 3 and one that failed it is 3 too."""
    rows = [*splits("mcd", None, [1.0, 2.0, 3.0]), *splits("mcd", (8, 7), [1.0, 3.0, 1e6])]
    failed = {**splits("mcd", (8, 6), [0, 0, 0])[2], "status": "failed", "reason": "exploded"}
    rows += [*splits("mcd", (8, 6), [1.0, 3.0]), failed]
    rows = [{**one, "status": one.get("status", "done")} for one in rows]
    lines = papers(folder_with(tmp_path, uci_paper=rows))
    assert lines[2:5] == [
        "| float | 2.000 / 1.00 / 0 % |",
        "| W8A7 | 3.000 / 1.00 / 33 % |",
        "| W8A6 | 3.000 / 1.00 / 33 % |",
    ]
    assert "(1 of 9)" in lines[-1]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    equal = [(8, 8), (4, 4), (3, 3), (2, 2)]
    folder = tmp_path_factory.mktemp("results")
    for name in (
        "noise-bits.csv", "noise-grids.csv", "draws.csv", "rates.csv", "images_float.csv", "judge.csv",
    ):  # fmt: skip
        shutil.copy(published.RESULTS / name, folder)
    cifar10_rows.publish_all(folder)
    return folder_with(
        folder,
        uci=[*uci_rows(folds=3, precisions=equal), *first_layers(uci_rows(folds=3, precisions=[(4, 4)]))],
        uci_paper=paper_rows(uci_rows(folds=2, seeds=range(2))),
        mnist=image_rows(),
        digits_choices=image_rows("digits", precisions=()),
        mnist_paper=paper_rows(image_rows(precisions=PAPER)),
        cifar10_gpu_ablation=objects(methods=["pointwise"], seeds=[0], precisions=[(3, 3)]),
        cifar10_gpu_standard=objects(methods=["mcd"], seeds=[0], precisions=equal),
    )


def objects(**options: Any) -> list[Any]:
    return image_rows("cifar10", "resnet18", **options)


def first_layers(rows: list[Any]) -> list[Any]:
    """The quantised rows as if the weights of the first layer had eight bits."""
    changed = {"scheme": f"default, {FIRST_LAYER}"}
    return [{**row, **changed, "run": f"{row['run']} first"} for row in rows if row["precision"] != "float"]


# on UCI every table is rehearsed in test_published_uci.
@pytest.mark.parametrize(
    ("page", "name"),
    # those of MNIST and UCI come from the rows that their studies plan, in tests of their own.
    [(page, name) for page, of in published.PAGES.items() for name in of if page not in ("mnist", "uci")],
)
def test_every_table_is_one(studies: Studies, page: str, name: str) -> None:
    lines = published.PAGES[page][name](studies)
    heads = [line for line in lines if line.startswith("| --- ")]
    assert heads or name in SENTENCES or name.startswith("picture ")
    tables = [list(some) for is_row, some in groupby(lines, lambda line: line.startswith("|")) if is_row]
    assert len(tables) == len(heads)
    for rows in tables:
        assert len({line.count(" | ") for line in rows}) == 1, "every row has as many cells as the head"
    assert not any("nan" in line for line in lines)


def test_claims_that_compare_schemes_see_the_rows_of_both_recipes(studies: Studies) -> None:
    lines = [line for line in claims(studies, "mnist") if line.startswith("| C3 ")]
    assert len(lines) == 1
    assert "| all | **does not hold** | does not hold: `mcd` |" in lines[0]
    assert "With the paper's rounded masks: not enough runs to tell; with exact ones: no collapse" in lines[0]


def test_every_claim_of_the_paper_has_a_cell_for_each_task(studies: Studies) -> None:
    """And each verdict leads to the page's own section on the claims."""
    rows = [line.strip("| ").split(" | ") for line in index(studies)[2:]]
    assert [row[0] for row in rows] == [f"C{number}" for number in range(1, 13)]
    cells = {row[0]: dict(zip(("uci", "mnist", "cifar10"), row[2:], strict=True)) for row in rows}
    assert cells["C2"]["mnist"] == "–"
    assert cells["C3"]["mnist"] == "[does not hold](mnist.md#the-papers-claims)"
    for words in ("](mnist.md#the-papers-claims) (ours); [", "](mnist.md#the-papers-claims) (the paper's)"):
        assert words in cells["C1"]["mnist"]
    for id, by_page in cells.items():
        for page, cell in by_page.items():
            asked = id in OF_PAGE[page]
            assert (cell == "–") == (not asked), (id, page)


def test_a_page_without_rows_is_not_run_yet(tmp_path: Path) -> None:
    studies = folder_with(
        tmp_path, uci=[*splits("mcd", None, [1.0, 1.0]), *splits("mcd", (8, 8), [1.0, 1.1])]
    )
    (c1,) = [line for line in index(studies) if line.startswith("| C1 ")]
    assert c1.endswith("| no rows | not run yet | not run yet |")
    (c10,) = [line for line in index(studies) if line.startswith("| C10 ")]
    assert "| no rows |" in c10, "rows without their bytes"


def test_a_page_says_what_its_rows_cannot_judge(tmp_path: Path) -> None:
    """One seed, no control, and pairs of two commits."""
    objects = {"test_rows": 10_000, "entropy": 0.05, "commit": "a"}
    rows = [
        *classified("mcd", seeds=[0], **objects),
        *classified("mcd", (8, 7), seeds=[0], **objects | {"commit": "b"}),
    ]
    lines = claims(folder_with(tmp_path, mnist=rows), "mnist")
    said = lines[lines.index("What these rows cannot judge:") :]
    assert any("One seed in C1 (1 of 4)" in line and "say nothing of training" in line for line in said)
    assert any("No control: for 1 of 1 fine-tuned runs" in line for line in said)
    assert any("Two commits: 1 of 1 quantised runs" in line for line in said)


# ---- pages


PAGE = "# UCI\nwords | before\n<!-- table: float -->\nstale\n<!-- end -->\n\nwords *after*\n"


def test_a_page_keeps_its_words_and_gets_its_tables(studies: Studies, tmp_path: Path) -> None:
    text = published.filled("uci", PAGE, studies)
    assert text.startswith("# UCI\nwords | before\n<!-- table: float -->\n\n|  | Boston |")
    assert text.endswith("\n\n<!-- end -->\n\nwords *after*\n")
    assert "stale" not in text
    assert published.filled("uci", text, studies) == text
    (tmp_path / "uci.csv").write_bytes(studies.path("uci").read_bytes())
    (tmp_path / "uci.md").write_text(PAGE, encoding="utf-8")
    assert published.check(tmp_path) == ["uci"]
    published.write(tmp_path)
    assert published.check(tmp_path) == []
    (tmp_path / "uci.md").write_text(text.replace("± ", "±"), encoding="utf-8")
    assert published.check(tmp_path) == ["uci"], "a number, or how it is set, was changed by hand"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PAGE.replace("float", "flaot"), "'float'"),
        (PAGE.replace("<!-- end -->", ""), "take turns"),
        (PAGE.replace("<!-- end -->", "<!-- table: paper -->"), "take turns"),
        ("<!-- end -->\n" + PAGE, "take turns"),
        (PAGE.replace("table: float -->\n", "table: float --> "), "take turns"),
    ],
)
def test_marks_that_are_wrong_are_refused(studies: Studies, text: str, said: str) -> None:
    with pytest.raises(BadInput) as refusal:
        published.filled("uci", text, studies)
    assert said in str(refusal.value)


def test_pages_say_what_their_rows_say() -> None:
    """Of this repository; a page that is not written yet says nothing wrong."""
    assert published.check() == []


# ---- figures


def test_pictures_are_drawn_from_the_tables_alone(studies: Studies, tmp_path: Path) -> None:
    needs.package("matplotlib")
    files = {path.name: path for path in draw(studies, [], tmp_path / "one")}
    assert {"uci-regression_boxes.svg", "uci-paper-activation_bits.svg", "mnist-shifts-rotation.svg"} <= {
        *files
    }
    single = ("reliability", "entropy_histograms")
    assert not any(part in name for name in files for part in single), "those need single rows"
    for path in files.values():
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert "Boston: RMSE" in files["uci-equal_bits.svg"].read_text(encoding="utf-8")


def test_a_store_gives_pictures_of_single_rows_and_the_same_bytes(tmp_path: Path) -> None:
    needs.package("matplotlib")
    rows = image_rows(methods=("mcd",), seeds=[0], precisions=[(8, 7), (8, 4)])
    store = write_store(tmp_path / "store", rows, name="mnist-paper")
    first, second = (draw(Studies(tmp_path), [store], tmp_path / name) for name in ("one", "two"))
    names = {path.name for path in first}
    assert {"mnist-paper-reliability.svg", "mnist-paper-entropy_histograms-w8a4.svg"} <= names
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_first_figure_has_the_rows_of_both_recipes(studies: Studies, tmp_path: Path) -> None:
    needs.package("matplotlib")
    (path,) = draw_contrast(studies, tmp_path)
    drawn = path.read_text(encoding="utf-8")
    assert all(words in drawn for words in ("our recipe", "the paper's recipe", "mask of one bit"))
    assert draw_contrast(Studies(tmp_path), tmp_path) == [], "without rows there is none"


def test_files_of_pictures_are_distinct() -> None:
    names = [picture.file(study) for study, pictures in PICTURES.items() for picture in pictures]
    assert len(set(names)) == len(names)


def test_compact_drawings_keep_their_words() -> None:
    drawn = '<svg>\n  <path d="M 1.23456 7.5\nL 2.000001 3"/>\n  <text x="1.98765">0.01234</text>\n</svg>'
    small = '<svg>\n<path d="M 1.23 7.5\nL 2.00 3"/>\n<text x="1.98">0.01234</text>\n</svg>'
    assert compact(drawn) == small
