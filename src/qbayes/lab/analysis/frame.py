"""``Frame``: what a study found, as rows that reports, claims and checks read.

A frame is read from a store (``study.json``, ``results.jsonl`` and, on demand, what was found for each test
row), or from a table of results alone, and never changes it. Nothing here knows methods, figures or claims.
"""

import functools
import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.store.table import CANDIDATE, is_table, read_table
from qbayes.metrics.scores import METRICS, with_numbers

T = TypeVar("T")
Row = Mapping[str, Any]
Details = Mapping[str, np.ndarray]

FORMAT = 1
AXIS = "axis:"
HEADER, PLANNED, RESULTS, DONE, DETAILS = (
    "study.json", "planned.json", "results.jsonl", "done.json", "rows.safetensors",
)  # fmt: skip
STAGES = ("float", "quantised", "program", "scores")
# Details of 10,000 test rows take about 0.2 MB a run: 256 MB keep a thousand of them at hand.
DETAILS_BYTES = 256 * 2**20


class Loaded:
    """Details that were read already, the oldest dropped once they exceed ``DETAILS_BYTES``."""

    def __init__(self, given: Mapping[str, Details] | None = None) -> None:
        self._given = dict(given or {})
        self._read: OrderedDict[Path, Details | None] = OrderedDict()
        self._bytes = 0

    def get(self, run: str, path: Path | None) -> Details | None:
        if run in self._given:
            return self._given[run]
        if path is None:
            return None
        if path not in self._read:
            self._put(path, _read_details(path) if path.is_file() else None)
        self._read.move_to_end(path)
        return self._read[path]

    def _put(self, path: Path, details: Details | None) -> None:
        self._read[path] = details
        self._bytes += _size(details)
        while self._bytes > DETAILS_BYTES and len(self._read) > 1:
            self._bytes -= _size(self._read.popitem(last=False)[1])


@dataclass(frozen=True)
class Frame:
    """The rows of a study: ``rows`` ended well, ``failed`` did not, ``planned`` were asked for.

    ``header`` is ``study.json``. ``folder`` is None for a frame that was made in memory; such a frame may
    carry its details in ``loaded``. ``table`` is the CSV of a frame that was read from one: it has neither
    the single test rows nor times. ``candidates`` are the rows of hyper-parameters that held-out rows chose
    among: they speak of no test row, and are no runs of the study.
    """

    name: str
    question: str
    header: Mapping[str, Any]
    rows: tuple[Row, ...]
    failed: tuple[Row, ...] = ()
    planned: int = 0
    candidates: tuple[Row, ...] = ()
    folder: Path | None = None
    table: Path | None = None
    loaded: Loaded = field(default_factory=Loaded, repr=False, compare=False)
    _kept: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    @classmethod
    def read(cls, store: Path) -> "Frame":
        """The frame of a store, also of a half-finished one, or of a CSV; what is neither is refused."""
        store = Path(store)
        if is_table(store):
            read = read_table(store)
            return cls._of(read.header, read.rows, table=store)
        header = _read_header(store)
        latest = {str(row["run"]): row for row in _read_results(store / RESULTS)}
        planned = _read_planned(store / PLANNED)
        rows = [latest[run] for run in sorted(latest) if planned is None or run in planned]
        return cls._of(header, rows, folder=store)

    @classmethod
    def _of(cls, header: Mapping[str, Any], rows: Sequence[Row], **source: Any) -> "Frame":
        candidates = tuple(row for row in rows if row.get(CANDIDATE) is not None)
        done, failed = _by_status([row for row in rows if row.get(CANDIDATE) is None])
        name, question = str(header["name"]), str(header.get("question", ""))
        return cls(name, question, header, done, failed, int(header["runs"]), candidates, **source)

    def where(self, **columns: object) -> "Frame":
        """Rows (also failed ones) whose columns equal the values; a tuple, list or set means any of them.

        A column that a row lacks is None. ``planned`` stays: it counts the whole study.
        """
        wanted = {name: _choices(value) for name, value in columns.items()}

        def fits(row: Row) -> bool:
            return all(row.get(name) in choices for name, choices in wanted.items())

        kept, failed = (tuple(filter(fits, some)) for some in (self.rows, self.failed))
        return replace(self, rows=kept, failed=failed)

    def of_candidates(self) -> "Frame":
        """A frame whose rows are the candidates; refused where held-out rows chose nothing."""
        if not self.candidates:
            raise BadInput(
                "candidates must be there to be published",
                f"'{self.name}' has none",
                "leave --candidates out, or give its runs a choose = {…}",
            )
        done, failed = _by_status(self.candidates)
        return replace(self, rows=done, failed=failed, planned=len(self.candidates), candidates=())

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` gives, made at the first call only: several readers ask a frame the same."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def columns(self) -> frozenset[str]:
        """The columns that at least one row has. Rows of a study have few sets of columns."""
        return self.once("columns", lambda: frozenset[str]().union(*{tuple(row) for row in self.rows}))

    def values(self, column: str) -> list[Any]:
        """Distinct values of a column, without None, in natural order: W2A2, W8A7, W10A2; numbers first."""
        found = {row[column] for row in self.rows if row.get(column) is not None}
        return sorted(found, key=natural)

    def metrics(self) -> list[str]:
        """Scores on clean test data that at least one row has, in the order of ``METRICS``."""
        clean = [name for name in METRICS if "/" not in name and name in self.columns()]
        return [name for name in clean if any(row.get(name) is not None for row in self.rows)]

    def details(self, run: str) -> Details | None:
        """What was found for each test row (``rows.safetensors``), or None where it was not kept."""
        path = None if self.folder is None else self.folder / "scores" / run / DETAILS
        return self.loaded.get(run, path)

    def stages(self, stage: str) -> dict[str, Mapping[str, Any]]:
        """``done.json`` of every finished stage of one kind, by key: seconds, device, versions."""
        if self.folder is None:
            return {}
        files = sorted((self.folder / stage).glob(f"*/{DONE}"))
        return {file.parent.name: _read_object(file) for file in files}


def once_a_frame(make: Callable[[Frame], T]) -> Callable[[Frame], T]:
    """What a function finds in a frame, found at the first call only."""
    return functools.wraps(make)(
        lambda frame: frame.once(f"{make.__module__}.{make.__qualname__}", lambda: make(frame))
    )


def axes(row: Row) -> tuple[str, ...]:
    """The columns of a row that say where it lies on the study's axes, ``axis:method.rate``, sorted."""
    return _axes_among(tuple(row))


@lru_cache(maxsize=1024)
def _axes_among(columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in columns if name.startswith(AXIS)))


def natural(value: object) -> tuple[int, tuple[tuple[int, float, str], ...]]:
    """Sorting key: numbers by size and before texts, digits inside texts by their value."""
    if isinstance(value, int | float):
        return 0, ((0, float(value), ""),)
    parts = [part for part in re.split(r"(\d+)", str(value)) if part]
    return 1, tuple((0, float(part), "") if part.isdecimal() else (1, 0.0, part) for part in parts)


def _by_status(rows: Sequence[Row]) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Those that ended well, and those that did not."""
    done = [row.get("status", "done") == "done" for row in rows]
    return tuple(itertools.compress(rows, done)), tuple(itertools.compress(rows, (not one for one in done)))


def _choices(value: object) -> Collection[object]:
    return value if isinstance(value, tuple | list | set | frozenset) else (value,)


def _read_header(store: Path) -> Mapping[str, Any]:
    path = store / HEADER
    if not path.is_file():
        raise _not_a_store(store, f"no {HEADER} in it" if store.is_dir() else "no such folder")
    header = _read_object(path)
    missing = [key for key in ("name", "runs") if key not in header]
    if missing:
        raise _not_a_store(store, f"{HEADER} without {' and '.join(missing)}")
    if header.get("format") != FORMAT:
        raise BadFile(
            f"the format of a store must be {FORMAT}",
            f"{header.get('format')!r} in {path}",
            "read it with the version of qbayes that wrote it, or run the study again in a new folder",
        )
    return header


def _read_json(path: Path, kind: type[T], word: str) -> T:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as cause:
        raise BadFile(f"{path.name} must be readable JSON", f"{path}: {cause}", _RESTORE) from cause
    if not isinstance(content, kind):
        raise BadFile(f"{path.name} must hold a JSON {word}", f"{path}: {type(content).__name__}", _RESTORE)
    return content


def _read_object(path: Path) -> Mapping[str, Any]:
    return _read_json(path, dict, "object")


def _read_planned(path: Path) -> frozenset[str] | None:
    """The runs of the study as it is now: a study that was changed may have left rows of runs it lost."""
    if not path.is_file():
        return None
    return frozenset(map(str, _read_json(path, list, "list")))


def _read_results(path: Path) -> Iterable[Row]:
    """The lines of results; a last one without its end was cut off while it was written: it is left out."""
    if not path.exists():
        return  # a study that has been planned and not begun
    try:
        *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as cause:
        raise BadFile(f"{path.name} must be readable", f"{path}: {cause}", _RESTORE) from cause
    for number, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is None:
            raise BadFile(
                "every line of results must be a JSON object with a 'run'",
                f"{path}, line {number}: {line[:80]!r}",
                _RESTORE,
            )
        yield row


def _parse(line: str) -> Row | None:
    try:
        content = json.loads(line)
    except json.JSONDecodeError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("run"), str):
        return None
    return with_numbers(content)


def _read_details(path: Path) -> Details:
    try:
        # read, and not mapped: a file that is cut while it is mapped ends the process.
        return load(path.read_bytes())
    except (OSError, SafetensorError) as cause:
        raise BadFile(
            "the details of a run must be a safetensors file", f"{path}: {cause}", _RESTORE
        ) from cause


def _size(details: Details | None) -> int:
    return 0 if details is None else sum(array.nbytes for array in details.values())


def _not_a_store(store: Path, got: str) -> BadFile:
    return BadFile(
        f"the store of a study must be a folder with {HEADER}",
        f"{store}: {got}",
        "give the folder that 'qbayes study run' wrote",
    )


_RESTORE = "run the study again, which makes anew what is damaged, or restore the file"
