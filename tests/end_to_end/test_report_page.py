"""The report in a real browser: it opens from disk, draws, answers to switches, asks for nothing."""

import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qbayes.errors import BadFile, BadInput
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.paper.section import register_claims
from qbayes.lab.report.figures import FIGURES
from qbayes.lab.report.page.page import write_report
from report_frames import (
    PAPER,
    draws_rows,
    failed_row,
    fine_tuning_rows,
    frame_of,
    image_rows,
    key,
    uci_rows,
    with_spread,
    write_store,
)

register_claims()
MARKS = ".mark-point, .mark-box, .mark-bar, .mark-area"
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"&amp; Größe {{data}}"
)


@dataclass
class Sight:
    """A page in the browser, with what it complained about and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: Path, task: str = "") -> "Sight":
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        if task:
            self.page.select_option("#global select", task)
        return self

    def show(self, figure: str) -> Any:
        """The figure, scrolled to and drawn."""
        plate = self.page.locator(f"#figure-{figure}")
        plate.scroll_into_view_if_needed()
        plate.locator(".panels > *").first.wait_for()
        return plate

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return self.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture
def sight(browser: Any) -> Iterator[Sight]:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield Sight(page)
    page.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a store with images, two ways of training, two backends, regression sets and an axis."""
    folder = tmp_path_factory.mktemp("Größe der Studie")
    rows = [
        *with_spread(image_rows(precisions=PAPER)),
        *fine_tuning_rows(),
        *uci_rows(),
        *draws_rows(task="fashion_mnist"),
    ]
    store = write_store(folder / "store", rows, question="Was kostet's?")
    return write_report(Frame.read(store), folder / "report", static=False)


def report(folder: Path, rows: Sequence[dict[str, Any]], **options: Any) -> Path:
    return write_report(frame_of(rows, **options), folder, static=False)


def drawing(plate: Any) -> str:
    return plate.locator(".panels").inner_html()


def test_it_opens_without_complaint_and_asks_for_nothing_else(sight: Sight, whole: Path) -> None:
    sight.open(whole)
    sight.ask("window.scrollTo(0, document.body.scrollHeight)")
    sight.page.wait_for_timeout(300)
    assert sight.complaints == []
    assert sight.requests == [whole.as_uri()]
    assert sight.page.title() == "made up · qbayes"
    assert sight.page.locator(".question").inner_text() == "Was kostet's?"
    assert "default-src 'none'" in sight.page.locator("meta[http-equiv]").get_attribute("content")


def test_every_figure_draws_marks(sight: Sight, whole: Path) -> None:
    sight.open(whole)
    tasks = sight.page.locator("#global select option").all_inner_texts()
    assert {"mnist", "digits", "fashion_mnist", "uci/yacht"} <= set(tasks)
    drawn: dict[str, int] = {}
    for task in ("mnist", "digits", "fashion_mnist"):
        sight.page.select_option("#global select", task)
        for name in FIGURES:
            marks = sight.show(name).locator(MARKS).count()
            drawn[name] = max(drawn.get(name, 0), marks)
    assert set(drawn) == set(FIGURES)
    assert {name: marks for name, marks in drawn.items() if marks < 3} == {}
    assert sight.complaints == []


def test_switches_change_what_is_drawn(sight: Sight, whole: Path) -> None:
    plate = sight.open(whole, "mnist").show("activation_bits")
    panels = plate.locator(".panel")
    all_metrics, before = panels.count(), drawing(plate)
    assert all_metrics == 6
    plate.locator("select[data-key=metric]").select_option("NLL")
    assert panels.count() == 1
    assert plate.locator("text.head").text_content() == "NLL, nat"
    linear = drawing(plate)
    plate.locator("select[data-key='y axis']").select_option("log")
    assert drawing(plate) != linear
    plate.locator("select[data-key='y axis']").select_option("auto")
    assert drawing(plate) == linear
    plate.locator("select[data-key=metric]").select_option(label="the main ones")
    assert drawing(plate) == before
    sight.page.select_option("#global select", "uci/wine")
    assert "RMSE, units of the target" in plate.inner_text()


def test_methods_are_switched_off_in_all_figures(sight: Sight, whole: Path) -> None:
    plate = sight.open(whole, "mnist").show("activation_bits")
    lines = plate.locator(".panel").first.locator(".mark-line")
    assert lines.count() == 4
    button = sight.page.locator("#global button[data-group=mcd]")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == 3
    assert sight.show("shifts").locator(".panel").first.locator(".mark-line").count() == 3
    for name in ("pointwise", "bbb", "sghmc"):
        sight.page.locator(f"#global button[data-group={name}]").click()
    assert "All methods are switched off." in plate.inner_text()
    button.click()
    assert lines.count() == 1
    assert sight.complaints == []


def test_pointer_and_keys_read_the_values(sight: Sight, whole: Path) -> None:
    plate = sight.open(whole, "mnist").show("activation_bits")
    tip = sight.page.locator("#tip")
    assert tip.is_hidden()
    svg = plate.locator("svg.chart").first
    svg.hover(position={"x": 150, "y": 120})
    assert tip.is_visible()
    assert "MC dropout" in tip.inner_text()
    assert "3 seeds" in tip.inner_text()
    sight.page.mouse.move(5, 5)
    assert tip.is_hidden()
    svg.focus()
    sight.page.keyboard.press("ArrowRight")
    assert "float" in tip.inner_text()
    sight.page.keyboard.press("ArrowRight")
    assert "activation bits (weights of 8 bits): 7" in tip.inner_text()
    sight.page.keyboard.press("Escape")
    assert tip.is_hidden()
    assert "Arrow keys" in svg.get_attribute("aria-label")


def test_a_figure_is_saved_as_svg_that_stands_alone(sight: Sight, whole: Path, tmp_path: Path) -> None:
    plate = sight.open(whole, "mnist").show("activation_bits")
    plate.locator(".panel").first.hover()
    with sight.page.expect_download() as waiting:
        plate.locator("button", has_text="SVG").first.click()
    waiting.value.save_as(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert waiting.value.suggested_filename.startswith("activation_bits-")
    assert "var(" not in text
    assert "rgb(0, 114, 178)" in text  # the blue of MC dropout
    sight.page.goto((tmp_path / "figure.svg").as_uri())
    assert sight.ask("document.documentElement.tagName") == "svg"
    assert sight.ask("document.querySelectorAll('path').length") > 10


def column(sight: Sight, name: str) -> list[str]:
    heads = sight.page.locator("#table thead th").all_inner_texts()
    place = heads.index(name) + 1
    return sight.page.locator(f"#table tbody td:nth-child({place})").all_inner_texts()


def test_the_table_sorts_filters_and_turns_pages(sight: Sight, whole: Path) -> None:
    sight.open(whole)
    count = sight.page.locator(".count")
    total = int(count.inner_text().split(" of ")[1].split()[0])
    # by the keyboard: figures above are drawn as they come into sight, and the table moves under a pointer.
    head = sight.page.locator("#table th button", has_text="ECE").first
    head.press("Enter")
    sight.page.locator("#table th[aria-sort=ascending]").wait_for()
    rising = [float(value.split()[0]) for value in column(sight, "ECE")]
    assert rising == sorted(rising)
    sight.page.locator("#table th[aria-sort=ascending] button").press("Enter")
    sight.page.locator("#table th[aria-sort=descending]").wait_for()
    falling = [float(value.split()[0]) for value in column(sight, "ECE")]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > rising[0]
    sight.page.get_by_role("button", name="Next").click()
    sight.page.locator(".count", has_text="26–50 of ").wait_for()
    sight.page.locator("#table input").fill("mcd precision=W8A7 ece<0.006 mnist")
    sight.page.locator(".count", has_text=f"of 3 runs (of {total})").wait_for()
    assert set(column(sight, "method")) == {"mcd"}
    assert set(column(sight, "precision")) == {"W8A7"}
    assert set(column(sight, "task")) == {"mnist"}
    assert len(column(sight, "seed")) == 3
    assert "brier" not in [text.lower() for text in sight.page.locator("#table th").all_inner_texts()]
    sight.page.get_by_role("button", name="All columns").click()
    assert "Brier" in sight.page.locator("#table th").all_inner_texts()
    sight.page.locator("#table input").fill("no such run")
    sight.page.locator(".count", has_text=f"0 runs (of {total})").wait_for()
    assert sight.complaints == []


def test_scores_that_are_not_finite_are_shown_sorted_and_marked(sight: Sight, tmp_path: Path) -> None:
    rows = image_rows(precisions=((8, 8), (4, 4), (3, 3)), methods=("mcd", "bbb"), seeds=range(3))
    quantised = [row for row in rows if row["precision"] == "W3A3" and row["method"] == "mcd"]
    quantised[0]["nll"], quantised[1]["nll"], quantised[2]["nll"] = math.inf, -math.inf, math.nan
    lost = next(row for row in rows if row["precision"] == "W4A4" and row["method"] == "bbb")
    lost["nll"] = math.inf
    sight.open(report(tmp_path, rows))
    sight.page.locator("#table th button", has_text="NLL").first.press("Enter")
    sight.page.locator("#table th[aria-sort=ascending]").wait_for()
    rising = column(sight, "NLL")
    assert (rising[0], rising[-3:]) == ("−∞", ["∞", "∞", "NaN"])
    sight.page.locator("#table th[aria-sort=ascending] button").press("Enter")
    sight.page.locator("#table th[aria-sort=descending]").wait_for()
    falling = column(sight, "NLL")
    assert (falling[:2], falling[-2:]) == (["∞", "∞"], ["−∞", "NaN"])
    for term, count in (("nll=inf", 2), ("nll>1000", 2), ("nll=-inf", 1), ("nll=nan", 1)):
        sight.page.locator("#table input").fill(term)
        sight.page.locator(".count", has_text=f"of {count} run").wait_for()
    plate = sight.show("equal_bits")
    plate.locator("select[data-key=metric]").select_option("NLL")
    assert sorted(plate.locator(".mark-beyond").all_text_contents()) == ["NaN", "∞"]
    assert "Bayes-by-Backprop at 4 (∞, 3 seeds, 1 not finite)" in plate.locator("figcaption").inner_text()
    plate.locator(".mark-beyond", has_text="∞").hover()
    assert "∞" in sight.page.locator("#tip").inner_text()
    assert sight.complaints == []


def test_a_figure_of_endless_scores_alone_is_drawn(sight: Sight, tmp_path: Path) -> None:
    rows = [{**row, "nll": math.inf} for row in image_rows(precisions=((8, 8), (4, 4)), methods=("mcd",))]
    sight.open(report(tmp_path, rows))
    plate = sight.show("equal_bits")
    plate.locator("select[data-key=metric]").select_option("NLL")
    assert plate.locator(".mark-beyond").all_text_contents() == ["∞"] * 3
    plate.locator("select[data-key='y axis']").select_option("log")
    assert plate.locator(".mark-beyond").count() == 3
    assert sight.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_switch(browser: Any, whole: Path, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    sight = Sight(page).open(whole, "mnist")
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    assert (sight.ask(brightness) < 80) == (scheme == "dark")
    page.locator("#theme").click()
    assert (sight.ask(brightness) < 80) == (scheme == "light")
    assert page.locator("#theme").inner_text() == ("Light" if scheme == "light" else "Dark")
    line = sight.show("activation_bits").locator(".mark-line").nth(1)
    blue = line.evaluate("node => getComputedStyle(node).stroke")
    assert blue == ("rgb(86, 180, 233)" if scheme == "light" else "rgb(0, 114, 178)")
    page.close()


def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, whole: Path) -> None:
    page = browser.new_page(viewport={"width": 375, "height": 812})
    sight = Sight(page).open(whole)
    for name in FIGURES:
        sight.show(name)
    page.locator("#claims summary").first.click()
    assert sight.overflow == 0
    panel = page.locator(".panel").first.bounding_box()
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= 375
    page.close()


def test_names_and_reasons_stay_text(sight: Sight, tmp_path: Path) -> None:
    rows = image_rows(HOSTILE, methods=("mcd", HOSTILE), precisions=((8, 8), (4, 4)))
    for row in rows:
        row |= {
            "scheme": "float" if row["precision"] == "float" else HOSTILE,
            "axis:evaluate.odd": HOSTILE + row["method"],
        }
    rows[1] = failed_row(rows[1], HOSTILE)
    page = report(tmp_path, rows, name=HOSTILE, question=HOSTILE, details=True)
    sight.open(page)
    for plate in sight.page.locator(".plate").all():
        sight.show(plate.get_attribute("id").removeprefix("figure-"))
    sight.page.locator("svg.chart").first.hover()
    assert sight.complaints == []
    assert sight.ask("window.hacked") is None
    assert sight.ask("document.querySelectorAll('script').length") == 2
    assert sight.ask("document.querySelectorAll('img').length") == 0
    assert sight.page.locator("h1").inner_text() == HOSTILE
    assert sight.page.locator("#results summary + div td").last.text_content() == HOSTILE
    assert HOSTILE in column(sight, "task")
    assert sight.requests == [page.as_uri()]


def test_twenty_thousand_rows_open_quickly(sight: Sight, tmp_path: Path) -> None:
    few = image_rows(seeds=[0])
    plain = [{name: value for name, value in row.items() if name.count("/") < 2} for row in few]
    copies = [{**row, "seed": seed, "run": key(row["run"], seed)} for row in plain for seed in range(300)]
    rows = copies[:20_000]
    page = report(tmp_path, rows)
    assert page.stat().st_size < 12e6
    sight.page.set_default_timeout(60_000)
    sight.open(page)
    ready = sight.ask("performance.timing.loadEventEnd - performance.timing.navigationStart")
    assert 0 < ready < 8000
    assert sight.ask("document.querySelectorAll('*').length") < 6000
    sight.page.locator("#table input").fill("sghmc W4A4 error>0.01")
    sight.page.locator(".count", has_text="(of 20000)").wait_for()
    assert set(column(sight, "method")) == {"sghmc"}


def test_a_half_finished_study_says_what_is_missing(sight: Sight, tmp_path: Path) -> None:
    rows = image_rows(methods=("mcd",), seeds=[0], precisions=((8, 8),))
    sight.open(report(tmp_path, rows, planned=44))
    assert "2 of 44 planned runs are done; 42 still to come" in sight.page.locator(".banner").inner_text()
    assert sight.show("precisions").locator(MARKS).count() >= 2
    assert sight.complaints == []


def test_an_empty_study_opens(sight: Sight, tmp_path: Path) -> None:
    sight.open(report(tmp_path, [], planned=12))
    assert "none of 12 planned runs" in sight.page.locator(".banner").inner_text()
    assert "No figure has data yet." in sight.page.locator("#plates").inner_text()
    assert "No run is done yet." in sight.page.locator("#table").inner_text()
    assert sight.complaints == []


def test_claims_link_to_figures_that_are_there(sight: Sight, whole: Path) -> None:
    sight.open(whole)
    links = sight.page.locator("#claims a").evaluate_all(
        "nodes => nodes.map((node) => node.getAttribute('href'))"
    )
    assert links
    for link in set(links):
        assert sight.page.locator(link).count() == 1
    assert sight.page.locator("#claims li[id^=claim-]").count() == 13
    assert sight.page.locator("#checks li").count() >= 5


def test_the_spec_can_be_copied_as_toml(sight: Sight, whole: Path) -> None:
    sight.open(whole)
    header = Frame.read(whole.parent.parent / "store").header
    assert tomllib.loads(sight.page.locator("#spec pre").text_content()) == header["spec"]


def test_the_same_store_gives_the_same_page(whole: Path, tmp_path: Path) -> None:
    again = write_report(Frame.read(whole.parent.parent / "store"), tmp_path, static=False)
    assert again.read_bytes() == whole.read_bytes()
    names = {path.stem for path in (tmp_path / "tables").glob("*.csv")}
    assert {"claims", "checks", "activation_bits", "regression_boxes"} <= names
    assert not (tmp_path / "figures").exists()


def test_static_figures_stand_beside_the_page(tmp_path: Path) -> None:
    rows = draws_rows((1, 10))
    page = write_report(frame_of(rows), tmp_path, static=True)
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert page.exists()
    assert {"axes-evaluate_draws-digits-w8a8.svg", "axes-evaluate_draws-digits-w8a8.pdf"} <= drawn


def test_without_the_extra_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="matplotlib"):
        write_report(frame_of(draws_rows((1, 10))), tmp_path / "report", static=True)
    assert not (tmp_path / "report").exists()
    assert write_report(frame_of(draws_rows((1, 10))), tmp_path / "report", static=False).exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    with pytest.raises(BadFile):
        write_report(frame_of([]), tmp_path / "taken" / "report", static=False)
