"""A study's results as a small CSV to publish: all that a report needs but the single test rows.

What is the same in every row, or follows from the precision, the split or the posterior, is said once at the
top (``lab.study.store.table`` reads it back); scores have six digits; the keys of runs are as short as they
can be and still tell them apart; axes that only repeat a column are left out.
"""

import json
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qbayes.errors import BadFile, BadInput, nearest
from qbayes.lab.analysis.frame import Frame, natural
from qbayes.lab.study.store.table import (
    AXIS,
    COMMENT,
    DONE,
    FORMAT,
    KNOWN_BEFORE,
    NEEDED,
    TEXTS,
    Once,
    csv_text,
    known_before,
    value_of,
)
from qbayes.metrics.scores import is_score
from qbayes.posterior.storage.save import write_atomically

Row = dict[str, Any]

DIGITS = 6
_SHORTEST_KEY = 6
# An axis with the values of one of these columns says nothing more. (Of draws, figures ask for the axis.)
_TOLD = ("task", "fold", "network", "method", "seed", "precision")
# Columns that follow from these are said once for each of their values, if that is shorter.
_PLACES = (
    (),
    ("precision",),
    ("task", "fold"),
    ("task", "method", "precision"),
    ("task", "fold", "method", "seed"),
)
_WORTH = 4  # rows that a place must stand for: what is said once is said with its place


def publish(frame: Frame, path: Path, *, digits: int = DIGITS, leave_out: Collection[str] = ()) -> Path:
    """Write the table of a frame; ``leave_out`` names columns that nobody will ask for."""
    content = published(frame, digits=digits, leave_out=leave_out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content.encode())
    except OSError as cause:
        raise BadFile(
            "the place of a table must be writable", f"{path}: {cause.strerror}", "give another path"
        ) from cause
    return path


def published(frame: Frame, *, digits: int = DIGITS, leave_out: Collection[str] = ()) -> str:
    """The table as text: the study, what is said once, and a row a run."""
    rows = [dict(row) for row in (*frame.rows, *frame.failed)]
    _check(rows, leave_out)
    dropped = {*leave_out, *_repeating_axes(rows)}
    short = {name: _short_keys([str(row[name]) for row in rows]) for name in ("run", "float")}
    kept = [_slim(row, dropped, digits, short) for row in sorted(rows, key=_order)]
    shared, left = _say_once(kept)
    header = {**frame.header, "format": FORMAT, "name": frame.name, "runs": frame.planned}
    lines: list[Any] = [header]
    for once in shared:
        told = [[*place, *map(_as_json, values)] for place, values in once.values.items()]
        lines.append({"by": once.by, "columns": once.columns, "rows": told})
    top = "".join(f"{COMMENT} {json.dumps(line, ensure_ascii=False, default=str)}\n" for line in lines)
    cells = ([_cell(name, row.get(name)) for name in left] for row in kept)
    return top + csv_text(left, cells)


def _check(rows: Sequence[Row], leave_out: Collection[str]) -> None:
    columns = {name for row in rows for name in row}
    for name in leave_out:
        if name not in columns:
            raise BadInput("what is left out must be a column", f"'{name}'", nearest(name, columns))
        if name in KNOWN_BEFORE:
            raise BadInput("what a run is must stay", f"'{name}'", "leave out scores or costs alone")


def _repeating_axes(rows: Sequence[Row]) -> set[str]:
    axes = {name for row in rows for name in row if name.startswith(AXIS)}
    return {axis for axis in axes if any(all(row.get(axis) == row.get(t) for row in rows) for t in _TOLD)}


def _short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Beginnings of the keys that still tell them apart."""
    distinct = sorted(set(keys))
    length = next(
        n for n in range(_SHORTEST_KEY, 10_000) if len({key[:n] for key in distinct}) == len(distinct)
    )
    return {key: key[:length] for key in distinct}


def _order(row: Row) -> tuple[object, ...]:
    """By task, method, bits (many first), split and seed."""
    text = [natural(str(row.get(name))) for name in ("task", "network", "method")]
    width = -int(row["weight"]) - int(row["activation"])
    return *text, width, *(natural(str(row.get(name))) for name in ("precision", "fold", "seed", "run"))


def _slim(row: Row, dropped: Collection[str], digits: int, short: Mapping[str, Mapping[str, str]]) -> Row:
    """Without what is left out or goes without saying, with short keys and round numbers."""
    present = ((name, value) for name, value in row.items() if name not in dropped and value is not None)
    held = {name: value for name, value in present if (name, value) != ("status", DONE)}
    keys = {name: short[name][str(row[name])] for name in short}
    return {name: _round(name, value, digits) for name, value in held.items()} | keys


def _round(name: str, value: Any, digits: int) -> Any:
    if not isinstance(value, float) or name.startswith(AXIS) or not math.isfinite(value):
        return value
    return float(f"{value:.{digits}g}")


def _say_once(rows: Sequence[Row]) -> tuple[list[Once], list[str]]:
    """What follows from something else, and the columns that are left."""
    left = _columns(rows)
    done = [row for row in rows if row.get("status", DONE) == DONE]
    shared: list[Once] = []
    for by in _PLACES:
        places = {_place(row, by) for row in rows}
        if rows and len(places) * _WORTH > len(rows) and by:
            continue
        stay = {"run", "status", *(key for place in _PLACES for key in place)} if by else {"run"}
        follows = [
            name
            for name in left
            if name not in stay and _follows(name, by, rows if known_before(name) else done)
        ]
        if follows:
            shared.append(_once(by, follows, rows, done))
            left = [name for name in left if name not in follows]
    return shared, left


def _columns(rows: Sequence[Row]) -> list[str]:
    names = {name for row in rows for name in row} | set(NEEDED)
    first = [name for name in KNOWN_BEFORE if name in names]
    return [*first, *sorted(names - set(first), key=natural)]


def _place(row: Row, by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in by)


def _follows(column: str, by: Sequence[str], rows: Sequence[Row]) -> bool:
    """Whether rows of one place have one value (and one type: 1 and 1.0 are written apart)."""
    found: dict[tuple[Any, ...], Hashable] = {}
    return all(
        found.setdefault(_place(row, by), repr(row.get(column))) == repr(row.get(column)) for row in rows
    )


def _once(by: Sequence[str], columns: Sequence[str], rows: Sequence[Row], done: Sequence[Row]) -> Once:
    """Of a place all of whose runs failed, no result is known."""
    known = {_place(row, by): row for row in (*rows, *done)}
    values = {place: tuple(row.get(name) for name in columns) for place, row in known.items()}
    return Once(tuple(by), tuple(columns), values)


def _as_json(value: Any) -> Any:
    """Words stand for numbers that are not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cell(name: str, value: Any) -> str:
    """A text on an axis that would be read as a number stands in quotes."""
    written = "" if value is None else str(value)
    if not isinstance(value, str) or name in TEXTS or is_score(name):
        return written
    return json.dumps(value) if value_of(name, value) != value or value.startswith('"') else written
