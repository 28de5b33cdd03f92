"""Checks, claims and failed runs as escaped HTML: readable without a script."""

from collections.abc import Collection, Mapping, Sequence
from html import escape

from qbayes.report.checks import Check
from qbayes.report.claims import Line, Verdict
from qbayes.report.claims.base import signed
from qbayes.report.figures.base import FIGURES, Plate
from qbayes.report.frame import Row

MARKS = {
    "holds": '<span class="mark good">✓ holds</span>',
    "does not hold": '<span class="mark bad">✕ does not hold</span>',
    "no difference that matters": '<span class="mark open">≈ no difference that matters</span>',
    "not enough data": '<span class="mark open">○ not enough data</span>',
}
PASSED, FAILED = '<span class="mark good">✓ passed</span>', '<span class="mark bad">✕ beware</span>'
OUTCOMES = {
    "yes": "supports",
    "same": "no difference that matters",
    "no": "refutes",
    "unclear": "unclear",
}
COVERS = {
    "runs and rows": "runs and test rows",
    "splits": "splits",
    "runs": "runs alone",
    "rows": "test rows alone (one seed)",
    "exact": "exact, of runs",
    "counted": "counted",
    "nothing": "",
}
MOST_LINES = 300  # of one table inside the page; the CSV has all
RUN = ("task", "network", "method", "precision", "seed")


def checks_html(checks: Sequence[Check]) -> str:
    """The numbered checks; those that did not pass stand out."""
    items: list[str] = []
    for check in checks:
        start = f'<li{"" if check.passed else " class=failed"} id="check-{escape(check.id)}">'
        mark = f'<span class="id">{escape(check.id)}</span>{PASSED if check.passed else FAILED}'
        title = escape(check.title[:1].upper() + check.title[1:])
        items.append(f"{start}{mark}<p><b>{title}.</b> {escape(check.found)}</p></li>")
    return f'<ol class="checks">{"".join(items)}</ol>'


def claims_html(verdicts: Sequence[Verdict], plates: Sequence[Plate]) -> str:
    """Each claim with its verdict, the reason, the figure that shows it, and all comparisons behind it."""
    drawn = {plate.figure.name: plate.figure.title for plate in plates}
    return f'<ol class="claims">{"".join(_claim(one, drawn) for one in verdicts)}</ol>'


def failures_html(failed: Sequence[Row]) -> str:
    """The runs that failed, with their reasons."""
    if not failed:
        return ""
    rows = [[*(_said(row, column) for column in RUN), _said(row, "reason")] for row in failed[:MOST_LINES]]
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


def _said(row: Row, column: str) -> str:
    return "" if row.get(column) is None else str(row[column])


def _claim(one: Verdict, drawn: Mapping[str, str]) -> str:
    name = escape(one.id)
    words = f"<h3>{escape(one.claim)}</h3><p>{escape(one.reason)}</p>"
    if one.missing and "Missing" not in one.reason:
        words += f'<p class="note">Missing: {escape("; ".join(one.missing))}.</p>'
    if len(one.methods) > 1:
        each = "; ".join(f"{method}: {verdict}" for method, verdict in one.methods)
        words += f'<p class="note">By method: {escape(each)}.</p>'
    if one.caveats:
        words += f'<p class="note">What cannot be judged: {escape(" ".join(one.caveats))}</p>'
    links = f'<div class="links">{_figure_link(one.figure, drawn)}{_comparisons(one.table)}</div>'
    start = f'<li id="claim-{name}"><span class="id">{name}</span>{MARKS[one.verdict]}'
    return f"{start}<div>{words}{links}</div></li>"


def _figure_link(figure: str, drawn: Mapping[str, str]) -> str:
    if figure in drawn:
        return f'<a href="#figure-{escape(figure)}">Figure: {escape(drawn[figure])}</a>'
    return f"<span>Figure “{escape(FIGURES[figure].title)}”: no data yet</span>" if figure in FIGURES else ""


def _comparisons(lines: Sequence[Line]) -> str:
    if not lines:
        return ""
    head = ("whose", "what", "value", "95 % interval", "unit", "of", "condition", "outcome", "runs")
    rows = [_comparison(line) for line in lines[:MOST_LINES]]
    html = table_html(head, rows, {2, 3, 8}, "Differences and intervals")
    if len(lines) > MOST_LINES:
        html += f'<p class="note">{len(lines) - MOST_LINES} more are in tables/claims.csv.</p>'
    count = f"{len(lines)} comparison{'' if len(lines) == 1 else 's'}"
    return f"<details><summary>{count}</summary>{html}</details>"


def _comparison(line: Line) -> list[str]:
    ends = "" if line.low is None or line.high is None else f"{signed(line.low)} … {signed(line.high)}"
    said = [line.subject, line.quantity, signed(line.value), ends, line.unit, COVERS[line.covers]]
    return [*said, line.limit, OUTCOMES[line.outcome], str(line.runs)]
