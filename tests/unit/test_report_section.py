"""Sections of the report that others register: the page has those and no others."""

import csv
from pathlib import Path

import pytest

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.paper.section import register_claims
from qbayes.lab.report.charts.chart import Plate
from qbayes.lab.report.page import section
from qbayes.lab.report.page.page import write_report
from qbayes.lab.report.page.section import Section, register_section
from qbayes.lab.study.store.table import csv_text
from report_frames import frame_of, uci_rows


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """None but those of the test."""
    monkeypatch.setattr(section, "_SECTIONS", {})


def page(folder: Path) -> str:
    return write_report(frame_of(uci_rows(folds=2)), folder, static=False).read_text(encoding="utf-8")


def test_a_page_without_sections_has_its_checks_and_judges_nothing(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert 'id="checks"' in text
    assert "claim" not in text.partition("<script")[0].partition("<body>")[2]
    assert not (tmp_path / "tables" / "claims.csv").exists()


def test_the_paper_registers_its_claims(tmp_path: Path) -> None:
    register_claims()
    text = page(tmp_path)
    assert '<a href="#claims">Claims</a>' in text
    assert 'id="claim-C1"' in text
    with (tmp_path / "tables" / "claims.csv").open(encoding="utf-8") as lines:
        assert {line["id"] for line in csv.DictReader(lines)} == {f"C{number}" for number in range(1, 14)}


def test_a_section_of_ones_own_is_in_the_page_the_answer_and_the_tables(tmp_path: Path) -> None:
    def count(frame: Frame, plates: object) -> Section:
        return Section(
            title="Sizes",
            about="of <this> study",
            html="<p>many</p>",
            answer=[f"There are {len(frame.rows)} runs & more."],
            tally={"runs": str(len(frame.rows))},
            tables={"sizes.csv": csv_text(("runs",), [(len(frame.rows),)])},
        )

    register_section("sizes", count)
    text, runs = page(tmp_path), len(uci_rows(folds=2))
    assert '<h2>Sizes <span class="quiet">of &lt;this&gt; study</span></h2>\n    <p>many</p>' in text
    assert f"There are {runs} runs &amp; more." in text
    assert f"<li><b>{runs}</b><span>runs</span></li>" in text
    assert (tmp_path / "tables" / "sizes.csv").read_text(encoding="utf-8") == f"runs\n{runs}\n"


def test_a_section_sees_the_figures_that_are_drawn(tmp_path: Path) -> None:
    seen: list[Plate] = []

    def remember(frame: Frame, plates: list[Plate]) -> Section:
        seen.extend(plates)
        return Section("Seen", "", "")

    register_section("seen", remember)
    page(tmp_path)
    assert "regression_boxes" in {plate.figure.name for plate in seen}
