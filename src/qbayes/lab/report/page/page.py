"""The report: one HTML page that needs nothing else, figures for papers, and the numbers behind them as CSV.

The page carries its styles, its script and its data, asks no network for anything (its content policy forbids
it), and is the same for the same store, byte for byte.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from qbayes.errors import BadFile
from qbayes.lab.analysis.checks import Check, check_all
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.report.charts.chart import Plate, Style, csv_of, draw_all
from qbayes.lab.report.charts.static import require_matplotlib, write_static
from qbayes.lab.report.page import text
from qbayes.lab.report.page.data import payload, styles
from qbayes.lab.report.page.section import Section, checks_html, failures_html, write_sections
from qbayes.lab.report.page.text import toml_text
from qbayes.lab.study.store.table import csv_text
from qbayes.posterior.storage.save import write_atomically

# In this order they are one script.
SCRIPTS = ("scales.js", "marks.js", "panel.js", "figures.js", "table.js", "page.js")
PAGE, TABLES, FIGURES = "index.html", "tables", "figures"


def write_report(frame: Frame, folder: Path, *, static: bool = True) -> Path:
    """Write ``index.html`` and ``tables/*.csv`` into ``folder``; returns the page.

    With ``static`` also ``figures/*.svg`` and ``*.pdf``, by matplotlib: the extra ``qbayes[report]``.
    """
    if static:
        require_matplotlib()
    folder = Path(folder)
    plates, checks = draw_all(frame), check_all(frame)
    sections = write_sections(frame, plates)
    try:
        (folder / TABLES).mkdir(parents=True, exist_ok=True)
        for plate in plates:
            _write(folder / TABLES / f"{plate.figure.name}.csv", csv_of(plate.charts))
        for name, table in (item for section in sections for item in section.tables.items()):
            _write(folder / TABLES / name, table)
        _write(folder / TABLES / "checks.csv", _checks_csv(checks))
        if static:
            write_static(plates, folder / FIGURES)
        _write(folder / PAGE, page_html(frame, plates, sections, checks))
    except OSError as cause:
        raise BadFile(
            "the folder of a report must be writable",
            f"{folder}: {cause.strerror or cause}",
            "make room or give another folder",
        ) from cause
    return folder / PAGE


def page_html(
    frame: Frame, plates: Sequence[Plate], sections: Sequence[Section], checks: Sequence[Check]
) -> str:
    """The page as one text."""
    style = _asset("page.css") + _group_css(styles(plates))
    script = "\n".join(_asset(name) for name in SCRIPTS)
    spec = frame.header.get("spec")
    versions = frame.header.get("versions") or {}
    parts = {
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        "data": payload(frame, plates),
        "name": escape(frame.name),
        "question": escape(frame.question),
        "banner": text.banner(frame) + text.source(frame),
        "verdict": text.verdict(sections, checks),
        "provenance": text.provenance(frame),
        "checks": checks_html(checks),
        "navigation": "".join(f'<a href="#{_anchor(one)}">{escape(one.title)}</a>' for one in sections),
        "sections": "".join(_section_html(one) for one in sections),
        "no_figures": "" if plates else '<p class="note">No figure has data yet.</p>',
        "failures": failures_html(frame.failed),
        "spec": escape(toml_text(spec)) if isinstance(spec, Mapping) else "not recorded",
        "footer": escape(
            f"Written by qbayes {versions.get('qbayes', '')}".strip() + ". One file, no network."
        ),
    }
    # one pass over the template: what a value contains is never taken for a place.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _anchor(section: Section) -> str:
    return escape(section.title.lower())


def _section_html(section: Section) -> str:
    heading = (
        f'<h2>{escape(section.title)} <span class="quiet">{escape(section.about, quote=False)}</span></h2>'
    )
    return f'  <section id="{_anchor(section)}">\n    {heading}\n    {section.html}\n  </section>\n'


def _asset(name: str) -> str:
    return (resources.files("qbayes.lab.report.page") / "assets" / name).read_text(encoding="utf-8")


def _group_css(groups: Mapping[str, Style]) -> str:
    """One variable a group; the script knows groups by number, so that no name gets into the styles."""
    colours = (f"--g{k}: light-dark({style.light}, {style.dark});" for k, style in enumerate(groups.values()))
    return f":root {{ {' '.join(colours)} }}\n"


def _policy(style: str, script: str) -> str:
    """Only this style and this script, known by their hashes; nothing may be fetched from anywhere."""
    rules = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _checks_csv(checks: Sequence[Check]) -> str:
    return csv_text(("id", "title", "passed", "found"), [(c.id, c.title, c.passed, c.found) for c in checks])


def _write(path: Path, content: str) -> None:
    """Whole or not at all: a reader never sees half a page."""
    write_atomically(path, content.encode())
