"""The report: one HTML page that needs nothing else, figures for papers, and the numbers behind them as CSV.

The page carries its styles, its script and its data, asks no network for anything (its content policy forbids
it), and is the same for the same store, byte for byte.
"""

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from qbayes.errors import BadFile
from qbayes.posterior.save import write_atomically
from qbayes.report import page_text as text
from qbayes.report.chart import Style, csv_text
from qbayes.report.checks import Check, check_all
from qbayes.report.claims import Verdict, judge_all
from qbayes.report.figures.base import Plate, draw_all
from qbayes.report.frame import Frame
from qbayes.report.page_claims import checks_html, claims_html, failures_html
from qbayes.report.page_data import payload, styles
from qbayes.report.page_toml import toml_text
from qbayes.report.static import require_matplotlib, write_static

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
    plates, verdicts, checks = draw_all(frame), judge_all(frame), check_all(frame)
    try:
        (folder / TABLES).mkdir(parents=True, exist_ok=True)
        for plate in plates:
            _write(folder / TABLES / f"{plate.figure.name}.csv", csv_text(plate.charts))
        _write(folder / TABLES / "claims.csv", _claims_csv(verdicts))
        _write(folder / TABLES / "checks.csv", _checks_csv(checks))
        if static:
            write_static(plates, folder / FIGURES)
        _write(folder / PAGE, page_html(frame, plates, verdicts, checks))
    except OSError as cause:
        raise BadFile(
            "the folder of a report must be writable",
            f"{folder}: {cause.strerror or cause}",
            "make room or give another folder",
        ) from cause
    return folder / PAGE


def page_html(
    frame: Frame, plates: Sequence[Plate], verdicts: Sequence[Verdict], checks: Sequence[Check]
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
        "verdict": text.verdict(verdicts, checks),
        "provenance": text.provenance(frame),
        "checks": checks_html(checks),
        "claims": claims_html(verdicts, plates),
        "no_figures": "" if plates else '<p class="note">No figure has data yet.</p>',
        "failures": failures_html(frame.failed),
        "spec": escape(toml_text(spec)) if isinstance(spec, Mapping) else "not recorded",
        "footer": escape(
            f"Written by qbayes {versions.get('qbayes', '')}".strip() + ". One file, no network."
        ),
    }
    # one pass over the template: what a value contains is never taken for a place.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("qbayes.report") / "assets" / name).read_text(encoding="utf-8")


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


def _claims_csv(verdicts: Sequence[Verdict]) -> str:
    head = (
        "id",
        "verdict",
        "reason",
        "subject",
        "quantity",
        "value",
        "low",
        "high",
        "unit",
        "limit",
        "outcome",
        "runs",
        "covers",
        "method",
        "of the method",
        "caveats",
    )
    lines: list[tuple[object, ...]] = []
    for one in verdicts:
        said = (one.id, one.verdict, one.reason)
        lines += [
            (
                *(*said, x.subject, x.quantity, x.value, x.low, x.high, x.unit, x.limit, x.outcome, x.runs),
                *(x.covers, x.method, dict(one.methods)[x.method], " ".join(one.caveats)),
            )
            for x in one.table
        ] or [said]
    return _csv(head, lines)


def _checks_csv(checks: Sequence[Check]) -> str:
    return _csv(("id", "title", "passed", "found"), [(c.id, c.title, c.passed, c.found) for c in checks])


def _csv(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([head, *lines])
    return out.getvalue()


def _write(path: Path, content: str) -> None:
    """Whole or not at all: a reader never sees half a page."""
    write_atomically(path, content.encode())
