"""What a stopped process or a failing disk left of a store: set right before a study goes on.

Nothing that can be read is lost. A line of the results that cannot is written anew from its stage; a stage
whose last file cannot be read is not done, and is made again where something needs it.
"""

import os
from collections.abc import Iterator

from qbayes.errors import BadFile
from qbayes.lab.study.store.keys import STAGES
from qbayes.lab.study.store.store import (
    DONE,
    HEADER,
    LOGS,
    PARQUET,
    PLANNED,
    RESULTS,
    ROW,
    ROWS,
    TABLE,
    Store,
    reason_of,
    row_of,
    writing,
)
from qbayes.posterior.storage.save import write_atomically
from qbayes.posterior.storage.weights_header import read_layout

# where lines go that cannot be read.
UNREAD = "results.unread"


def mend(store: Store) -> list[str]:
    """Set right what can be, and say what was not as it had been written."""
    with writing(store.folder):
        for name in (HEADER, PLANNED, TABLE, PARQUET):
            for scratch in store.folder.glob(f".{name}.*"):
                scratch.unlink()
        return [*_mend_results(store), *_mend_stages(store)]


def _mend_results(store: Store) -> Iterator[str]:
    """Cut off what a stopped process left of a line, and take out lines that are no rows."""
    path = store.folder / RESULTS
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    lines = content[:whole].splitlines(keepends=True)
    bad = [line for line in lines if row_of(line) is None]
    if bad:
        unread = store.folder / LOGS / UNREAD
        before = unread.read_bytes() if unread.exists() else b""
        write_atomically(unread, before + b"".join(bad))
        write_atomically(path, b"".join(line for line in lines if row_of(line) is not None))
        lines, are = ("line", "is") if len(bad) == 1 else ("lines", "are")
        unread = f"{len(bad)} {lines} could not be read, and {are} written anew"
        yield f"{RESULTS}: {unread} from the stages (the old ones are in {LOGS}/{UNREAD})"


def _mend_stages(store: Store) -> Iterator[str]:
    for stage in STAGES:
        for path in sorted((store.folder / stage).glob(f"*/{DONE}")):
            key = path.parent.name
            reason = None if store.is_done(stage, key) else f"{DONE} is damaged"
            if stage == "scores":
                reason = reason or _why_unread(store, key)
            if reason is not None:
                store.set_back(stage, key)
                yield f"{stage} {key}: {reason}; it is made again where it is needed"


def _why_unread(store: Store, key: str) -> str | None:
    """Why the scores of a run cannot be read, if they cannot; those of single rows need not be there."""
    folder = store.stage("scores", key)
    if store.scores(key) is None:
        return f"{ROW} is damaged"
    try:
        if (folder / ROWS).exists():
            read_layout(folder / ROWS)
    except BadFile as error:
        return reason_of(error)
    return None
