"""The paper's claims as a section of the report's page: verdicts, comparisons and their CSV."""

from collections.abc import Mapping, Sequence
from html import escape

from qbayes.lab.analysis.frame import Frame
from qbayes.lab.paper.claims import JUDGED, Line, Verdict, judge_all
from qbayes.lab.paper.judge.judgement import with_sign
from qbayes.lab.report.charts.chart import FIGURES, Plate
from qbayes.lab.report.page.section import MOST_LINES, Section, register_section, table_html
from qbayes.lab.report.page.text import list_ids
from qbayes.lab.study.store.table import csv_text

MARKS = {
    "holds": '<span class="mark good">✓ holds</span>',
    "does not hold": '<span class="mark bad">✕ does not hold</span>',
    "no difference that matters": '<span class="mark open">≈ no difference that matters</span>',
    "not enough data": '<span class="mark open">○ not enough data</span>',
}
TALLIED = dict(zip(JUDGED, ("claims hold", "do not hold", "show no difference", "lack data"), strict=True))
OUTCOMES = {"yes": "supports", "same": "no difference that matters", "no": "refutes", "unclear": "unclear"}
COVERS = {
    "runs and rows": "runs and test rows",
    "splits": "splits",
    "runs": "runs alone",
    "rows": "test rows alone (one seed)",
    "exact": "exact, of runs",
    "counted": "counted",
    "nothing": "",
}
# columns of claims.csv that are those of a comparison.
_OF_A_LINE = (
    "subject", "quantity", "value", "low", "high", "unit", "limit", "outcome", "runs", "covers", "method",
)  # fmt: skip


def register_claims() -> None:
    """Let every page written from now on judge the paper's claims."""
    register_section("claims", claims_section)


def claims_section(frame: Frame, plates: Sequence[Plate]) -> Section:
    """The verdicts on a study."""
    verdicts = judge_all(frame)
    of_word = {word: [one.id for one in verdicts if one.verdict == word] for word in JUDGED}
    return Section(
        title="Claims",
        about="of the paper, judged from this study's numbers",
        html=claims_html(verdicts, plates),
        answer=_answer(of_word),
        tally={words: str(len(of_word[word])) for word, words in TALLIED.items()},
        tables={"claims.csv": _claims_csv(verdicts)},
    )


def claims_html(verdicts: Sequence[Verdict], plates: Sequence[Plate]) -> str:
    """Each claim with its verdict, the reason, the figure that shows it, and all comparisons behind it."""
    drawn = {plate.figure.name: plate.figure.title for plate in plates}
    return f'<ol class="claims">{"".join(_claim(one, drawn) for one in verdicts)}</ol>'


def _answer(of_word: Mapping[str, Sequence[str]]) -> list[str]:
    """The verdicts as sentences: which claims hold, which do not."""
    holds, not_so, equal, unclear = (of_word[word] for word in JUDGED)
    sentences: list[str] = []
    if holds:
        sentences.append(f"By this study's numbers {list_ids(holds)} hold{'s' if len(holds) == 1 else ''}.")
    if not_so:
        sentences.append(f"{list_ids(not_so)} do{'es' if len(not_so) == 1 else ''} not hold.")
    if equal:
        sentences.append(f"For {list_ids(equal)} there is no difference that matters.")
    if not sentences:
        sentences.append("There is not enough data to judge any of the claims.")
    elif unclear:
        sentences.append(f"For {list_ids(unclear)} there is not enough data.")
    return sentences


def _claims_csv(verdicts: Sequence[Verdict]) -> str:
    lines: list[tuple[object, ...]] = []
    for one in verdicts:
        start, caveats = (one.id, one.verdict, one.reason), " ".join(one.caveats)
        lines += [
            (*start, *(getattr(line, name) for name in _OF_A_LINE), dict(one.methods)[line.method], caveats)
            for line in one.table
        ] or [start]
    return csv_text(("id", "verdict", "reason", *_OF_A_LINE, "of the method", "caveats"), lines)


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
    ends = "" if line.low is None or line.high is None else f"{with_sign(line.low)} … {with_sign(line.high)}"
    cells = [line.subject, line.quantity, with_sign(line.value), ends, line.unit, COVERS[line.covers]]
    return [*cells, line.limit, OUTCOMES[line.outcome], str(line.runs)]
