"""The words of the page: how far the study is, what it found, where it comes from, how it was written."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from qbayes.lab.analysis.checks import Check
from qbayes.lab.analysis.frame import STAGES, Frame
from qbayes.lab.report.page.section import Section

# Columns whose values are listed, and the name of the list.
LISTS = {name: f"{name}s" for name in ("task", "network", "method", "precision", "seed")} | {"draws": "draws"}
MOST_VALUES = 24  # of one list
_WIDE = 100  # characters after which a list is broken into lines
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def banner(frame: Frame) -> str:
    """What a reader must know of a study that is not finished; nothing of one that is."""
    done, failed, missing = _counts(frame)
    if not missing and not failed:
        return ""
    start = "Half-finished" if missing else "Not all went well"
    words = f"{start}: {done} of {frame.planned} planned runs are done"
    if not done:
        words = f"Nothing is done yet: none of {frame.planned} planned runs has ended well"
    rest = (f"{missing} still to come" if missing else "", f"{failed} failed" if failed else "")
    after = " All below speaks of the runs that are done." if done else ""
    sentence = escape(f"{words}; {', '.join(filter(None, rest))}.{after}")
    return f'<p class="banner" role="note">{sentence}</p>'


def source(frame: Frame) -> str:
    """What a page that was made from a table alone lacks, and what its intervals then hold."""
    if frame.table is None:
        return ""
    sentences = (
        f"Read from {frame.table.name} alone, which has no single test rows: intervals hold the spread over "
        "splits and seeds, and that over the rows of a shared test set where the table says it. Figures that "
        "look at single rows are left out, as are devices and times."
    )
    return f'<p class="note" role="note">{escape(sentences)}</p>'


def verdict(sections: Sequence[Section], checks: Sequence[Check]) -> str:
    """The study's answer in a paragraph and some numbers."""
    failed = [check.id for check in checks if not check.passed]
    tally = {words: number for section in sections for words, number in section.tally.items()}
    tally["checks passed"] = f"{len(checks) - len(failed)}/{len(checks)}"
    items = "".join(f"<li><b>{number}</b><span>{words}</span></li>" for words, number in tally.items())
    answer = [sentence for section in sections for sentence in section.answer]
    if failed:
        checked = f"check{'' if len(failed) == 1 else 's'} {list_ids(failed)}"
        answer.append(f"Read {checked} before you believe any of it.")
    return f'<p class="answer">{escape(" ".join(answer))}</p>\n<ul class="tally">{items}</ul>'


def list_ids(ids: Sequence[str]) -> str:
    """``C1, C2 and C3``."""
    return ids[0] if len(ids) == 1 else f"{', '.join(ids[:-1])} and {ids[-1]}"


def provenance(frame: Frame) -> str:
    """Counts, what was varied, versions, devices and computing time."""
    done, failed, missing = _counts(frame)
    facts = {"runs": f"{done} of {frame.planned} done, {failed} failed, {missing} to come"}
    for column, words in LISTS.items():
        values = [str(value) for value in frame.values(column)]
        more = f", … ({len(values)} in all)" if len(values) > MOST_VALUES else ""
        if values:
            facts[words] = ", ".join(values[:MOST_VALUES]) + more
    versions = frame.header.get("versions")
    if isinstance(versions, Mapping):
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    written = frame.header.get("header")
    expected = written.get("expect") if isinstance(written, Mapping) else None
    facts |= _stages(frame) | _origin(frame)
    if expected:
        facts["expected before it ran"] = str(expected)
    pairs = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def duration(seconds: float) -> str:
    """Two units at most: 4.2 s, 42 s, 3 min 20 s, 5 h 7 min, 2 d 3 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    large = next(place for place, (_, size) in enumerate(units) if whole >= size)
    (unit, size), (below, small) = units[large], units[large + 1]
    rest = whole % size // small
    return f"{whole // size} {unit} {rest} {below}" if rest else f"{whole // size} {unit}"


def _counts(frame: Frame) -> tuple[int, int, int]:
    done, failed = len(frame.rows), len(frame.failed)
    return done, failed, max(0, frame.planned - done - failed)


def _origin(frame: Frame) -> dict[str, str]:
    """The commits, and the machines, that the rows say they were scored by; older rows say nothing."""
    told = {"commits": ("commit",), "processors": ("processor", "instructions")}
    facts: dict[str, str] = {}
    for name, columns in told.items():
        known = (row for row in frame.rows if row.get(columns[0]) is not None)
        rows = Counter(", ".join(str(row[column]) for column in columns if column in row) for row in known)
        if rows:
            facts[name] = "; ".join(f"{value}: {count} runs" for value, count in rows.most_common())
    return facts


def _stages(frame: Frame) -> dict[str, str]:
    """Devices and times of the stages that are done."""
    devices: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for stage in STAGES:
        done = frame.stages(stage).values()
        devices.update(str(one["device"]) for one in done if "device" in one)
        seconds[stage] = sum(float(one.get("seconds", 0)) for one in done)
    facts: dict[str, str] = {}
    if devices:
        facts["devices"] = ", ".join(f"{name}: {count} stages" for name, count in devices.most_common())
    if sum(seconds.values()) > 0:
        parts = ", ".join(f"{stage} {duration(some)}" for stage, some in seconds.items() if some)
        facts["computing time"] = f"{duration(sum(seconds.values()))} ({parts})"
    return facts


def toml_text(spec: Mapping[str, Any]) -> str:
    """TOML of tables of values: what ``tomllib`` reads from it is ``spec``. TOML has no null: left out."""
    plain = {
        name: value for name, value in spec.items() if not isinstance(value, Mapping) and value is not None
    }
    tables = {name: value for name, value in spec.items() if isinstance(value, Mapping)}
    parts = ["\n".join(_lines(plain))] if plain else []
    parts += ["\n".join([f"[{_key(name)}]", *_lines(content)]) for name, content in tables.items()]
    return "\n\n".join(parts) + "\n"


def _lines(content: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_broken(value)}" for name, value in content.items() if value is not None]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(words: str) -> str:
    # JSON's strings are TOML's basic strings, except for the delete character.
    return json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")


def _broken(value: Any) -> str:
    """A value at the right of a key: long lists stand one item a line."""
    text = _value(value)
    if not isinstance(value, list) or len(text) <= _WIDE:
        return text
    return "\n".join(["[", *(f"  {_value(item)}," for item in value), "]"])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {_value(item)}" for name, item in value.items() if item is not None)
        return f"{{{', '.join(pairs)}}}"
    return _string(str(value))
