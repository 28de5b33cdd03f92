"""The page on CIFAR-10 as a whole: complete, half finished and not begun; its pictures and hours."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import cifar10_rows
import needs
from cifar10_rows import made
from qbayes.lab.report.charts.chart import FLOAT
from qbayes.lab.report.export_csv import publish
from qbayes.lab.report.figures import FIGURES
from report_frames import frame_of, image_rows, write_store
from study_rows import Made, classified

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
import published_cifar_hours
from published_cifar import TABLES
from published_cifar_gpu import ablation, standard
from published_cifar_rows import MIXED, NOT_RUN, SLIM, TINY, Held
from published_figures import draw
from published_front import draw_front
from published_numbers import PLAIN, Rows, Studies

CIFAR: dict[str, Any] = {"task": "cifar10", "network": "resnet18"}
PAGE = (published.RESULTS / "cifar10.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return Studies(cifar10_rows.publish_all(tmp_path_factory.mktemp("complete")))


def test_the_page_comes_out_whole_on_all_planned_runs(complete: Studies) -> None:
    text = published.filled("cifar10", PAGE, complete)
    for part in text.split("<!-- table: ")[1:]:
        name = part.partition(" -->")[0]
        missing = NOT_RUN in part.partition("<!-- end -->")[0]
        assert missing == (name in ("standard", "ablation")), name
    assert "290 of 290" in text
    assert "129 of 129" in text
    assert "complete" in text
    assert "nan" not in text


def test_every_table_stands_on_the_page() -> None:
    placed = {part.partition(" -->")[0] for part in PAGE.split("<!-- table: ")[1:]}
    assert set(TABLES) - placed == set()


def test_before_any_run_the_page_says_so(tmp_path: Path) -> None:
    text = published.filled("cifar10", PAGE, Studies(tmp_path))
    assert text.count(NOT_RUN) > 15
    assert "- **ResNet-8**: not run yet." in text
    assert "| `cifar10-tiny` | ResNet-8 | – | – | – | – | not run yet |" in text


@pytest.mark.parametrize(
    "done",
    [
        lambda row: False,
        lambda row: row["precision"] == "float",
        lambda row: row["method"] == "pointwise" and row["seed"] == 0,
        lambda row: row["training"] == "calibrated",
        lambda row: row["precision"] in ("float", "W4A4") and row["method"] in ("bbb", "sghmc"),
        lambda row: row["scheme"] in ("float", "paper"),
        lambda row: int(row["run"], 16) % 3 == 0,
    ],
    ids=["none", "float", "one network", "calibrated", "two methods", "paper", "a third"],
)
def test_a_study_that_is_not_finished_gives_a_whole_page(
    tmp_path: Path, done: Callable[[Mapping[str, Any]], bool]
) -> None:
    frames = {name: made(name, keep=done) for name in cifar10_rows.NAMES}
    for name, frame in frames.items():
        publish(frame, tmp_path / f"{name}.csv")
    text = published.filled("cifar10", PAGE, Studies(tmp_path))
    for frame in frames.values():
        assert f"{len(frame.rows)} of {frame.planned}" in text
        assert f"{frame.planned - len(frame.rows)} runs to come" in text
    assert "nan" not in text
    assert published.filled("cifar10", text, Studies(tmp_path)) == text


def test_pictures_are_shown_where_they_are_drawn(complete: Studies, tmp_path: Path) -> None:
    needs.package("matplotlib")
    results, images = tmp_path / "docs" / "results", tmp_path / "docs" / "images" / "results"
    results.mkdir(parents=True)
    cifar10_rows.publish_all(results)
    files = [*draw(Studies(results), [], images), *draw_front(Studies(results), images)]
    text = published.filled("cifar10", PAGE, Studies(results))
    for path in files:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    shown = [path.name for path in files if f"../images/results/{path.name})" in text]
    # all but those of the paper's scheme, which one network alone has.
    assert set(shown) == {path.name for path in files}
    assert "Not drawn yet" in text, "those of single rows need a store"


def test_a_store_gives_the_pictures_of_single_rows(tmp_path: Path) -> None:
    needs.package("matplotlib")
    options: dict[str, Any] = {"methods": ("mcd",), "seeds": [0]}
    ours = image_rows("cifar10", "resnet8", precisions=[(8, 8), (4, 4)], **options)
    papers = [
        {**row, "scheme": "paper, mask=product"}
        for row in image_rows("cifar10", "resnet8", precisions=[(8, 7), (8, 4)], **options)
        if row["precision"] != "float"
    ]
    store = write_store(tmp_path / "store", [*ours, *papers], name="cifar10-tiny")
    names = {path.name for path in draw(Studies(tmp_path), [store], tmp_path / "images")}
    assert {
        "cifar10-tiny-reliability.svg", "cifar10-tiny-entropy_histograms-float.svg",
        "cifar10-tiny-entropy_histograms-w4a4.svg", "cifar10-tiny-paper-reliability.svg",
        "cifar10-tiny-paper-entropy_histograms-w8a4.svg",
    } <= names  # fmt: skip


def test_float_stands_in_the_figures_though_it_alone_was_shifted() -> None:
    """Being shifted too is no other evaluation: quantised runs keep their float partner."""
    some = Held(TINY, Rows(made(TINY.study)))
    for frame, figure in ((some.best.frame, "equal_bits"), (some.papers.frame, "activation_bits")):
        charts = [
            chart
            for chart in FIGURES[figure]().draw(frame)
            if chart.choices["metric"] == "error" and chart.choices.get("scheme", "default") in PLAIN
        ]
        assert [len(chart.series) for chart in charts] == [4]
        assert all(series.x[0] == FLOAT for series in charts[0].series)


def test_the_front_shows_methods_with_both_kinds_of_bits(tmp_path: Path) -> None:
    publish(made(SLIM.study), tmp_path / "cifar10.csv")
    needs.package("matplotlib")
    (drawn,) = draw_front(Studies(tmp_path), tmp_path)
    words = "".join(ElementTree.parse(drawn).getroot().itertext())
    assert "mcd: error, %" in words
    assert "bits by layer" in words
    assert "sghmc" not in words


# ---- hours


def test_hours_are_those_of_the_stores_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [*classified("mcd", seeds=[0], **CIFAR), *classified("mcd", (4, 4), seeds=[0], **CIFAR)]
    rows = [{**row, "run": f"{place:016x}"} for place, row in enumerate(rows)]
    store = write_store(tmp_path / "store", rows, name="cifar10-tiny")
    for place, seconds in enumerate((3600.0, 1800.0)):
        stage = store / "float" / f"{place}"
        stage.mkdir(parents=True)
        record = f'{{"seconds": {seconds}, "threads": 1, "method": "mcd", "task": "cifar10"}}'
        (stage / "done.json").write_text(record, encoding="utf-8")
    found = published_cifar_hours.rows_of(store)
    assert found == [
        {"study": "cifar10-tiny", "stage": "float", "method": "mcd", "done": "2", "hours": "1.5000"}
    ]
    table = tmp_path / "cifar10-hours.csv"
    table.write_text("study,stage,method,done,hours\ncifar10,float,mcd,1,9.0\ncifar10-tiny,float,mcd,1,7.0\n")
    monkeypatch.setattr(sys, "argv", ["published_cifar_hours.py", str(store), "--csv", str(table)])
    assert published_cifar_hours.main() == 0
    assert [row["hours"] for row in published_cifar_hours.read(table)] == ["9.0", "1.5000"]
    (row,) = [line for line in published_cifar_hours.hours(Studies(tmp_path)) if "cifar10-tiny" in line]
    assert "| 1.5 | ≤ 20 ✓ |" in row


# ---- what waits for a GPU


def study_of(folder: Path, name: str, rows: list[Made]) -> Studies:
    publish(frame_of(rows, name=name), folder / f"{name}.csv")
    return Studies(folder)


def test_what_was_changed_is_named(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"scheme": "default, granularity=tensor"},
        {"scheme": "default, overrides={'stem.conv': {'weight': 8, 'activation': 8}}"},
        {"axis:quantize.bf16": False},
        {"axis:quantize.learning_rate": 1e-3},
    ]
    rows = classified("mcd", seeds=[0], error=0.07, **CIFAR)
    for place, changed in enumerate(changes):
        rows += classified("mcd", (3, 3), seeds=[0], error=0.08 + 0.01 * place, **CIFAR, **changed)
    lines = ablation(study_of(tmp_path, "cifar10-gpu-ablation", rows))
    assert [line.split(" | ")[2:4] for line in lines[2:7]] == [
        ["nothing", "+1.00"],
        ["8 bits in stem.conv", "+3.00"],
        ["granularity=tensor", "+2.00"],
        ["learning_rate=0.001", "+5.00"],
        ["no bf16", "+4.00"],
    ]


def test_the_standard_network_is_told_with_its_bytes(tmp_path: Path) -> None:
    rows = [
        *classified("mcd", seeds=[0], error=0.045, **CIFAR),
        *classified("mcd", (4, 4), seeds=[0], error=0.047, **CIFAR),
        *classified("mcd", (4, 4), seeds=[0], error=0.046, scheme=MIXED, **CIFAR),
    ]
    lines = standard(study_of(tmp_path, "cifar10-gpu-standard", rows))
    assert [line.split(" | ")[1:3] for line in lines[2:]] == [
        ["float", "4.50"],
        ["W4A4", "4.70"],
        ["W4A4 bits by layer", "4.60"],
    ]
    assert [line.split(" | ")[-1] for line in lines[2:]] == ["4.00 |", "0.50 |", "0.50 |"]
