"""The store of a study: a folder for every stage, ``done.json`` written last, and a table that only grows.

What is half written when a machine stops is either gone on from (a checkpoint) or made again; nothing that
was done is lost, and nothing that was not done passes for it.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qbayes.errors import BadFile, BadInput, RunFailed
from qbayes.lab.study.spec.study import Study
from qbayes.lab.study.store.keys import STAGES
from qbayes.lab.study.store.lock import held
from qbayes.lab.study.store.table import as_csv, as_parquet
from qbayes.posterior.storage.save import write_atomically
from qbayes.provenance import commit, versions

FORMAT = 1
HEADER, RESULTS, TABLE, PARQUET, PLANNED = (
    "study.json", "results.jsonl", "results.csv", "results.parquet", "planned.json",
)  # fmt: skip
DONE, FAILED, CHECKPOINT = "done.json", "failed.json", "checkpoint"
LOCK, RAY_LOCK = "lock", "lock-ray"
LOGS, STACKS = "logs", "stacks"
# what a scored run is: its row, and what was found for each test row.
ROW, ROWS = "row.json", "rows.safetensors"
# what may lie beside the lock when a run ends before its header is written.
_BEFORE_THE_HEADER = {LOCK, RAY_LOCK, LOGS, PLANNED}
_HEADER_IS_LOST = (
    'restore it from a copy; or, where you know the study, write {"format": 1, "name": "its name"} there and '
    "run it again: nothing else in the store is lost"
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
Row = dict[str, Any]


class StoreFull(BadFile):
    """The store takes no more files; what is in it is whole."""


class StageDamaged(Exception):
    """What is kept of a stage is not what was written there: it is to be made again."""

    def __init__(self, stage: str, key: str, reason: str) -> None:
        super().__init__(f"{stage} {key}: {reason}")
        self.stage, self.key = stage, key


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A disk that is full or read-only ends a study with a reason; what was written stays whole."""
    try:
        yield
    except (OSError, BadFile) as error:
        reason = why_full(error)
        if reason is None or isinstance(error, StoreFull):
            raise
        raise StoreFull(
            "the store must take files",
            f"{folder}: {reason}",
            "free space or rights there and run the same command again: it goes on where it stopped",
        ) from error


def why_full(error: BaseException | None) -> str | None:
    """What the system said, where an error comes from a disk that takes no files."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return error.strerror
        error = error.__cause__ or error.__context__
    return None


class Store:
    """A study's folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    # ---- the study it belongs to

    def prepare(self, study: Study) -> None:
        """Make the folder, or check that it is this study's; a study that has grown keeps its store."""
        self.check(study)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def check(self, study: Study) -> None:
        """Raise unless the folder can be the study's; nothing in it may lead out of it."""
        own = (HEADER, RESULTS, TABLE, PARQUET, PLANNED, LOCK, RAY_LOCK)
        for path in (*(self.folder / name for name in own), *sorted((self.folder / LOGS).glob("*"))):
            _check_no_link(path)
        # listed before the header is looked for: a run that begins meanwhile writes that first.
        names = sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []
        if self.header() is None and names and not _only_begun(names):
            raise BadFile(
                "a store must be new, empty, or that of the study",
                f"{self.folder} holds {', '.join(names[:4])}",
                "choose another folder with --store; nothing in it was touched",
            )
        self.check_study(study)

    def check_study(self, study: Study) -> None:
        """A store belongs to one study, by its name."""
        header = self.header()
        if header is not None and header["name"] != study.name:
            raise BadInput(
                f"the store must be that of the study '{study.name}'",
                f"{self.folder} was made by '{header['name']}'",
                "choose another folder with --store; nothing in it was touched",
            )

    def write_header(self, study: Study, runs: Iterable[str], count: int | None = None) -> None:
        """``runs`` are the keys of all rows; ``count`` says how many runs there are, where that is another.

        Candidates have rows and are no runs; runs that wait for a choice have no key yet.
        """
        planned = sorted(runs)
        content = {
            "format": FORMAT,
            "name": study.name,
            "question": study.question,
            "header": dict(study.header),
            "spec": dict(study.source),
            "text": study.text,
            "versions": versions(),
            "commit": commit(),
            "runs": len(planned) if count is None else count,
        }
        with writing(self.folder):
            write_atomically(self.folder / PLANNED, json.dumps(planned).encode())
            text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
            write_atomically(self.folder / HEADER, text.encode())

    def header(self) -> dict[str, Any] | None:
        path = self.folder / HEADER
        if not path.exists():
            return None
        content = _read_json(path, _HEADER_IS_LOST)
        if content.get("format") != FORMAT or not isinstance(content.get("name"), str):
            raise BadFile(
                f"the store must have format {FORMAT}, of this version of qbayes",
                f"{path} has format {content.get('format')!r}",
                "use the version of qbayes that wrote it, or another folder; nothing in it was touched",
            )
        return content

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One run at a time works on a store; one that was killed just now is waited for."""
        with writing(self.folder), held(self.folder / LOCK):
            yield

    # ---- stages

    def stage(self, stage: str, key: str) -> Path:
        if stage not in STAGES:
            raise ValueError(stage)
        return self.folder / stage / key

    def done_keys(self, stage: str) -> set[str]:
        """The keys of a stage that are done: one listing of its folder."""
        folder = self.folder / stage
        if not folder.is_dir():
            return set()
        return {entry.name for entry in os.scandir(folder) if self.is_done(stage, entry.name)}

    def failed_keys(self, stage: str) -> dict[str, str]:
        """The keys of a stage that failed, with the reason."""
        keys = (path.parent.name for path in sorted((self.folder / stage).glob(f"*/{FAILED}")))
        reasons = ((key, self.why_failed(stage, key)) for key in keys)
        return {key: reason for key, reason in reasons if reason is not None}

    def why_failed(self, stage: str, key: str) -> str | None:
        """The reason, where there is one: a note of failure that cannot be read is none."""
        found = read_object(self.stage(stage, key) / FAILED)
        return None if found is None else str(found.get("reason", ""))

    def is_done(self, stage: str, key: str) -> bool:
        """Whether its last file says so: one that is empty or damaged says nothing."""
        return read_object(self.stage(stage, key) / DONE) is not None

    def set_back(self, stage: str, key: str) -> None:
        """A stage that was done is so no longer; its files stay until it is made again."""
        (self.stage(stage, key) / DONE).unlink(missing_ok=True)

    def begin(self, stage: str, key: str) -> Path:
        """The folder of a stage that is not done, with nothing in it but a checkpoint."""
        folder = self.stage(stage, key)
        _check_no_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.name != CHECKPOINT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return folder

    def finish(self, stage: str, key: str, record: Mapping[str, Any]) -> None:
        folder = self.stage(stage, key)
        write_atomically(folder / DONE, json.dumps(record, indent=1, default=str).encode())
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)

    def fail(self, stage: str, key: str, reason: str) -> None:
        folder = self.stage(stage, key)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FAILED, json.dumps({"reason": reason}).encode())

    def forget_failures(self) -> int:
        """So that failed stages are tried again; returns how many there were."""
        paths = [path for stage in STAGES for path in (self.folder / stage).glob(f"*/{FAILED}")]
        for path in paths:
            path.unlink()
        return len(paths)

    def records(self, stage: str) -> dict[str, dict[str, Any]]:
        """The ``done.json`` of every stage that is done."""
        return {key: self.record(stage, key) for key in self.done_keys(stage)}

    def record(self, stage: str, key: str) -> dict[str, Any]:
        return _read_json(self.stage(stage, key) / DONE, "run the study again: the stage is made anew")

    def scores(self, key: str) -> Row | None:
        """What a run scored, of scores that can be read."""
        return read_object(self.stage("scores", key) / ROW)

    # ---- the table

    def rows(self) -> dict[str, Row]:
        """The rows by run as they are written, later lines in place of earlier ones.

        A torn last line is not there. ``with_numbers`` makes numbers of scores that are not finite.
        """
        found, bad = self.read_lines()
        if bad:
            raise BadFile(
                f"{self.folder / RESULTS} must hold one JSON object a line",
                f"{bad[0][:60]!r}",
                "run the study again, which writes the line anew, or restore the file from a copy",
            )
        return found

    def read_lines(self) -> tuple[dict[str, Row], list[bytes]]:
        """The rows by run, and the lines that are none."""
        path = self.folder / RESULTS
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        rows = [row_of(line) for line in lines]
        bad = [line for line, row in zip(lines, rows, strict=True) if row is None]
        return {row["run"]: row for row in rows if row is not None}, bad

    def append(self, row: Row) -> None:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with writing(self.folder), (self.folder / RESULTS).open("ab", buffering=0) as file:
            file.write(line)
            os.fsync(file.fileno())

    def write_tables(self, keep: set[str]) -> None:
        """``results.csv``, and Parquet where pandas can write it: the rows of ``keep``, by run."""
        rows = [row for key, row in sorted(self.rows().items()) if key in keep]
        with writing(self.folder):
            write_atomically(self.folder / TABLE, as_csv(rows).encode())
            payload = as_parquet(rows)
            if payload is not None:
                write_atomically(self.folder / PARQUET, payload)


def _check_no_link(path: Path) -> None:
    """What is written, cut or emptied must be the store's own: a link in a copy may lead to anything."""
    if path.is_symlink():
        raise BadFile(
            "what a store writes to must be its own, and no link",
            f"{path} leads to {path.readlink()}",
            "remove the link, or put a copy of what it leads to in its place; nothing was touched",
        )


def _only_begun(names: Iterable[str]) -> bool:
    """Whether a folder holds nothing but what a run leaves that ended before it wrote its header.

    A kill, a data set that is missing or a cluster that does not answer: the same command must go on from it.
    The lock is the first file of a run, so that without one the others are somebody else's.
    """
    scratch = (f".{PLANNED}.", f".{HEADER}.")
    others = {name for name in names if not name.startswith(scratch)}
    return LOCK in others and others <= _BEFORE_THE_HEADER


def row_of(line: bytes) -> Row | None:
    """The row of a line of results, if it is one."""
    content = _parse(line)
    return content if content is not None and isinstance(content.get("run"), str) else None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no such file, or something else in it."""
    try:
        return _parse(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _read_json(path: Path, do: str) -> dict[str, Any]:
    content = read_object(path)
    if content is None:
        raise BadFile(f"{path} must hold a JSON object", "something else, or nothing: it is damaged", do)
    return content


def reason_of(error: BaseException) -> str:
    """One line that says why a run failed."""
    if isinstance(error, RunFailed | BadInput):
        return f"{error.must}: {error.got}"
    return f"{type(error).__name__}: {error}".splitlines()[0]
