"""What a stage takes: seconds on the clock and of the processor, over all attempts that it was stopped in."""

import json
import time
from pathlib import Path

from qbayes.lab.study.store.store import read_object
from qbayes.posterior.storage.save import write_atomically

_FILE = "spent.json"
SECONDS, CORE_SECONDS = "seconds", "core_seconds"


class Spent:
    """The seconds of a stage from now on, and those that earlier attempts left in ``folder``.

    ``core_seconds`` are those of this process on all of its threads: what others do on the machine is not in
    them. An attempt that is killed leaves nothing behind.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        found = read_object(self._path) or {}
        self._before = {name: _number(found.get(name)) for name in (SECONDS, CORE_SECONDS)}
        self._begun = time.monotonic(), time.process_time()

    def so_far(self) -> dict[str, float]:
        clocks = time.monotonic(), time.process_time()
        now = zip((SECONDS, CORE_SECONDS), clocks, self._begun, strict=True)
        return {name: round(self._before[name] + clock - begun, 3) for name, clock, begun in now}

    def keep(self) -> None:
        """Leave it for the next attempt."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps(self.so_far()).encode())


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0
