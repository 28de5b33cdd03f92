"""The lock of a store: one run at a time works on it, and the system lets go of it when a process dies."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from qbayes.errors import BadInput

# seconds for a process that was killed to be gone: it gives back its memory first, and then the lock. Whoever
# restarts a study at once must not be told that it still runs.
_PATIENCE = 5.0
_LOOK = 0.05


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock ``path``, which names the process that has it."""
    with path.open("a+") as file:
        deadline = time.monotonic() + _PATIENCE
        while not _take(file):
            if time.monotonic() > deadline:
                file.seek(0)
                raise BadInput(
                    "one run at a time may work on a store",
                    f"process {file.read().strip() or 'unknown'} works on {path.parent}",
                    "wait until it has ended, or choose another folder with --store",
                )
            time.sleep(_LOOK)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(file: TextIO) -> bool:
    import fcntl  # not on every system, and only a run needs it

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
