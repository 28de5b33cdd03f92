"""A study's results as tables: the CSV and Parquet of a store, and a CSV that was published, read back.

A published table begins with lines of JSON behind a ``#``: the study (as in ``study.json``), and what it says
once instead of in every row. ``{"by": ["precision"], "columns": ["weight"], "rows": [["W8A7", 8], …]}`` gives
each row with the precision W8A7 the weight 8; ``"by": []`` is the same for all.

Numbers come back with the types that the store has. An empty cell is a column that the row lacks, except
where a run always says something, if only that there is nothing: ``fold``, ``classes``, ``target_deviation``;
a run without a ``status`` is done.
"""

import csv
import importlib.util
import io
import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from qbayes.errors import BadFile
from qbayes.metrics.scores import NOT_FINITE, with_numbers

Row = dict[str, Any]

FORMAT = 1
AXIS, COMMENT, DONE = "axis:", "#", "done"
EVALUATION = f"{AXIS}evaluate."
# told by columns of their own; and what adds scores without changing the others.
_NO_CONDITION = ("draws", "backend", "shifts", "confusion", "agreement", "shift_rows", "ood_rows")
# columns of the hyper-parameters that held-out rows choose among: of a candidate, and of a run that has them.
CANDIDATE, CHOSEN = "candidate", "chosen"
# what a run is, in the order of a table's columns; its places on the axes and its scores come after.
KNOWN_BEFORE = (
    "run", "float", "task", "fold", "network", "method", "recipe", "seed", "precision", "weight",
    "activation", "scheme", "training", "candidate", "chosen", "draws", "backend", "status", "reason",
)  # fmt: skip
# what says where a row comes from, in the order of a table's columns: they are its last.
ORIGIN = ("commit", "qbayes", "torch", "numpy", "python", "processor", "instructions", "device")
TEXTS = (frozenset(KNOWN_BEFORE) - {"fold", "seed", "weight", "activation", "draws"}) | frozenset(ORIGIN)
NEEDED = ("run", "float", "task", "method", "seed", "precision", "weight", "activation")
_NONE_IF_DONE = ("classes", "target_deviation")
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|-?inf|nan")
_RESTORE = "restore the file, or write it again with 'qbayes study export'"


@dataclass(frozen=True)
class Table:
    """``header`` is what ``study.json`` would say; without one, the file's name and the number of rows."""

    header: Mapping[str, Any]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Once:
    """What a table says once: for each place in ``by`` the values of ``columns``; None where a row has none.

    Of a run that failed it tells what was known before, and no result.
    """

    by: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[tuple[Any, ...], tuple[Any, ...]]

    def tell(self, row: Row) -> None:
        place = tuple(row.get(name) for name in self.by)
        done = row.get("status", DONE) == DONE
        for name, value in zip(self.columns, self.values[place], strict=True):
            if value is not None and (done or known_before(name)):
                row[name] = value


def known_before(column: str) -> bool:
    """Whether a run has the column before it starts: what it is, and where it lies on the axes."""
    return column in KNOWN_BEFORE or column.startswith(AXIS)


def float_key(row: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """What a run shares with the float run that it is compared with: the network and the evaluation."""
    return row.get("float"), row.get("draws"), *evaluation_options(row)


def evaluation_options(row: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """The options of a run's evaluation under which one network scores differently."""
    return tuple((name, row[name]) for name in _options_among(tuple(row)))


@lru_cache(maxsize=1024)
def _options_among(columns: tuple[str, ...]) -> tuple[str, ...]:
    options = (name for name in sorted(columns) if name.startswith(EVALUATION))
    return tuple(name for name in options if name.removeprefix(EVALUATION) not in _NO_CONDITION)


def is_table(path: Path) -> bool:
    """Whether a path means a table and not the folder of a store."""
    return path.is_file() or (path.suffix == ".csv" and not path.is_dir())


def read_table(path: Path) -> Table:
    """The rows of a CSV, by run; what is damaged, or no table of results, is refused."""
    comments, body = _parts(path)
    header, shared = _header(path, comments)
    rows = [_row(path, number, cells, shared) for number, cells in _lines(path, body, len(comments), shared)]
    by_run = {str(row["run"]): row for row in rows}
    if len(by_run) < len(rows):
        raise _bad(path, "a table of results must have one row a run", f"{len(rows) - len(by_run)} twice")
    ordered = tuple(by_run[run] for run in sorted(by_run))
    return Table(header or {"format": FORMAT, "name": path.stem, "question": "", "runs": len(rows)}, ordered)


def value_of(column: str, text: str) -> Any:
    """The value of a cell that is not empty; raises ``ValueError`` where the column must hold numbers."""
    if column in TEXTS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if not column.startswith(AXIS):
        raise ValueError(text)
    # a text that looks like a number is in quotes.
    return json.loads(text) if text.startswith('"') else {"True": True, "False": False}.get(text, text)


def _parts(path: Path) -> tuple[list[str], str]:
    """The lines behind ``#`` at the top, and the rest."""
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else cause
        raise _bad(path, "a table of results must be a readable file of text", str(reason)) from cause
    if not text.endswith("\n"):
        got = "its last line is cut off" if text else "it is empty"
        raise _bad(path, "a table of results must be whole", got)
    comments: list[str] = []
    while text.startswith(COMMENT):
        line, _, text = text.partition("\n")
        comments.append(line.removeprefix(COMMENT).strip())
    return comments, text


def _header(path: Path, comments: Sequence[str]) -> tuple[Mapping[str, Any] | None, list[Once]]:
    """The study and what is said once; no study for a table without such lines."""
    header, shared = None, []
    for number, line in enumerate(comments, start=1):
        try:
            content = json.loads(line)
            if number == 1:
                header = _study(path, content)
            else:
                shared.append(_once(content))
        except BadFile:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            must = "lines behind # must be JSON as 'qbayes study export' writes it"
            raise _bad(path, must, f"line {number}: {line[:60]!r}") from cause
    return header, shared


def _study(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    if content.get("format") != FORMAT:
        raise _bad(path, f"the format of a table must be {FORMAT}", f"{content.get('format')!r}")
    return {**content, "name": str(content["name"]), "runs": int(content["runs"])}


def _once(content: Mapping[str, Any]) -> Once:
    by, columns = tuple(map(str, content["by"])), tuple(map(str, content["columns"]))
    values: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in content["rows"]:
        place, told = tuple(row[: len(by)]), row[len(by) :]
        if len(told) != len(columns):
            raise ValueError(row)
        values[place] = tuple(_number(name, value) for name, value in zip(columns, told, strict=True))
    return Once(by, columns, values)


def _number(column: str, value: Any) -> Any:
    """JSON has no infinity: it stands as a word."""
    if value in NOT_FINITE and value is not None and column not in TEXTS and not column.startswith(AXIS):
        return NOT_FINITE[value]
    return value


def _lines(path: Path, body: str, skipped: int, shared: Sequence[Once]) -> Iterator[tuple[int, Row]]:
    """Cells by column that are not empty, with the number of the line on which they end."""
    reader = csv.reader(io.StringIO(body, newline=""), strict=True)
    try:
        names = next(reader, [])
        _check_columns(path, names, shared)
        for cells in reader:
            number = skipped + reader.line_num
            if len(cells) != len(names):
                got = f"line {number} has {len(cells)} of {len(names)} cells"
                raise _bad(path, "every line of a table must have a cell a column", got)
            yield number, {name: cell for name, cell in zip(names, cells, strict=True) if cell}
    except csv.Error as cause:
        line = f"line {skipped + reader.line_num}: {cause}"
        raise _bad(path, "a table of results must be CSV", line) from cause


def _row(path: Path, number: int, cells: Mapping[str, str], shared: Sequence[Once]) -> Row:
    row: Row = {}
    for name, text in cells.items():
        try:
            row[name] = value_of(name, text)
        except ValueError as cause:
            got = f"{text[:40]!r} under '{name}' on line {number}"
            raise _bad(path, "scores and costs in a table of results must be numbers", got) from cause
    for once in shared:
        try:
            once.tell(row)
        except (KeyError, TypeError) as cause:
            got = f"line {number} has another {', '.join(once.by)}"
            raise _bad(path, "lines behind # must tell of every row", got) from cause
    missing = [name for name in NEEDED if name not in row]
    if missing:
        got = f"line {number} has no {', '.join(missing)}"
        raise _bad(path, f"a run must have {', '.join(NEEDED)}", got, _FOREIGN)
    row.setdefault("status", DONE)
    nothing = _NONE_IF_DONE if row["status"] == DONE else ()
    return {**dict.fromkeys(("fold", *nothing)), **row}


def _check_columns(path: Path, names: Sequence[str], shared: Sequence[Once]) -> None:
    """Also a table without rows must be one of results."""
    known = [*names, *(name for once in shared for name in once.columns)]
    missing = [name for name in NEEDED if name not in known]
    if missing:
        must = "a table of results must have the columns of one"
        raise _bad(path, must, f"no column {', '.join(missing)}", _FOREIGN)
    twice = sorted({name for name in known if known.count(name) > 1})
    if twice:
        raise _bad(path, "a column must be there once", f"{', '.join(twice[:4])} twice")


def _bad(path: Path, must: str, got: str, do: str = _RESTORE) -> BadFile:
    return BadFile(must, f"{path}: {got}", do)


_FOREIGN = "give the results.csv of a study, or what 'qbayes study export' wrote"


def columns(rows: Iterable[Row]) -> list[str]:
    """The columns in the order of the table: what a run is, where it lies, what was found, and by what."""
    names = {name for row in rows for name in row}
    axes = sorted(name for name in names if name.startswith(AXIS))
    first = [name for name in KNOWN_BEFORE if name in names]
    last = [name for name in ORIGIN if name in names]
    return [*first, *axes, *sorted(names - {*first, *axes, *last}), *last]


def csv_text(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table as the text of a CSV file; what is None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *lines])
    return text.getvalue()


def as_csv(rows: list[Row]) -> str:
    names = columns(rows)
    return csv_text(names, ([row.get(name) for name in names] for row in rows))


def as_parquet(rows: list[Row]) -> bytes | None:
    """None where pandas or pyarrow is not installed (the extra ``report`` brings them)."""
    if any(importlib.util.find_spec(name) is None for name in ("pandas", "pyarrow")):
        return None
    import pandas as pd

    frame = pd.DataFrame([with_numbers(row) for row in rows], columns=columns(rows))
    # an axis may hold words and numbers: Parquet wants one kind a column.
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = frame[name].map(lambda value: None if value is None else str(value))
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
