"""What stands on the page: sections that others add, checks, tables and failed runs. It needs no script.

The page itself shows checks, figures and results. Whoever judges a study registers a section of its own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from qbayes.lab.analysis.checks import Check
from qbayes.lab.analysis.frame import Frame, Row
from qbayes.lab.report.charts.chart import Plate

PASSED, FAILED = '<span class="mark good">✓ passed</span>', '<span class="mark bad">✕ beware</span>'
MOST_LINES = 300  # of one table inside the page; the CSV has all
RUN = ("task", "network", "method", "precision", "seed")


@dataclass(frozen=True)
class Section:
    """What one section says of a study.

    Args:
        title: the heading, also the word in the navigation; in small letters it is the anchor.
        about: what stands beside the heading.
        html: the body, escaped.
        answer: the finding in sentences, for the top of the page.
        tally: numbers for the top of the page, each with its words.
        tables: the texts of CSV files by name.
    """

    title: str
    about: str
    html: str
    answer: Sequence[str] = ()
    tally: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: Mapping[str, str] = field(default_factory=dict[str, str])


Write = Callable[[Frame, Sequence[Plate]], Section]
_SECTIONS: dict[str, Write] = {}


def register_section(name: str, write: Write) -> None:
    """Add a section to every page written from now on; one of the same name takes its place."""
    _SECTIONS[name] = write


def write_sections(frame: Frame, plates: Sequence[Plate]) -> list[Section]:
    """The registered sections of a study, in the order of their names."""
    return [_SECTIONS[name](frame, plates) for name in sorted(_SECTIONS)]


def checks_html(checks: Sequence[Check]) -> str:
    """The numbered checks; those that did not pass stand out."""
    items: list[str] = []
    for check in checks:
        start = f'<li{"" if check.passed else " class=failed"} id="check-{escape(check.id)}">'
        mark = f'<span class="id">{escape(check.id)}</span>{PASSED if check.passed else FAILED}'
        title = escape(check.title[:1].upper() + check.title[1:])
        items.append(f"{start}{mark}<p><b>{title}.</b> {escape(check.found)}</p></li>")
    return f'<ol class="checks">{"".join(items)}</ol>'


def failures_html(failed: Sequence[Row]) -> str:
    """The runs that failed, with their reasons."""
    if not failed:
        return ""
    rows = [
        [*(_text_of(row, column) for column in RUN), _text_of(row, "reason")] for row in failed[:MOST_LINES]
    ]
    more = f", the first {MOST_LINES} of them" if len(failed) > MOST_LINES else ""
    runs = "run" if len(failed) == 1 else "runs"
    summary = f"<summary>{len(failed)} failed {runs}, with reasons{more}</summary>"
    return f"<details>{summary}{table_html((*RUN, 'reason'), rows, (), 'Failed runs')}</details>"


def table_html(
    head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Collection[int], label: str
) -> str:
    """A table that scrolls inside its own frame; ``numeric`` columns stand at the right."""

    def cells(tag: str, words: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{_kind(k in numeric, one)}>{escape(one)}</{tag}>" for k, one in enumerate(words)
        )

    top = cells("th", head)
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    frame = f'class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"'
    return f"<div {frame}><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _kind(numeric: bool, words: str) -> str:
    if numeric:
        return ' class="n"'
    return ' class="long"' if len(words) > 40 else ""


def _text_of(row: Row, column: str) -> str:
    return "" if row.get(column) is None else str(row[column])
