"""The C compiler of this machine: found on PATH, waited for so long and no longer."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from qbayes.native.folder import NoLibrary

_NAMES = ("cc", "gcc", "clang")
# seconds of the processor in which its share is measured, and the least share that tells a compiler hangs.
_SPIN, _LEAST_SHARE = 0.05, 0.25


class HungCompiler(NoLibrary):
    """A compiler that did not end in time."""


class Patience:
    """The seconds that a process waits for compilers in all, its own and those of others."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds

    def run(self, command: Sequence[str], errors: Path) -> None:
        """Run a command to its end; past the patience it is killed with all that it has started."""
        started = time.monotonic()
        try:
            _run(command, errors, max(0.0, self._left))
        except subprocess.TimeoutExpired:
            raise HungCompiler(f"{command[0]} did not end within {self.seconds:.0f} s") from None
        finally:
            self._left -= time.monotonic() - started

    def wait(self, seconds: float) -> bool:
        """Sleep so long; whether any patience is left."""
        time.sleep(seconds)
        self._left -= seconds
        return self._left > 0


def find_compiler() -> str | None:
    """The first C compiler in an absolute folder of PATH: one of the current folder may be anybody's."""
    found = [shutil.which(name) for name in _NAMES]
    return next((path for path in found if path is not None and os.path.isabs(path)), None)


def is_starved() -> bool:
    """Whether this process gets so little of a core that a compiler beside it is only slow."""
    wall, own = time.monotonic(), time.thread_time()
    while (used := time.thread_time() - own) < _SPIN:
        pass
    return used < _LEAST_SHARE * (time.monotonic() - wall)


def _run(command: Sequence[str], errors: Path, seconds: float) -> None:
    # into a file: a pipe stays open as long as anything that was started lives.
    with errors.open("wb") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,  # a group of its own, to be killed with the compiler's children in it
            env={**os.environ, "LC_ALL": "C"},
        )
        try:
            code = process.wait(seconds)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code != 0:
        lines = errors.read_text(errors="replace").strip().splitlines()
        raise NoLibrary(f"{command[0]} fails: {lines[0] if lines else f'exit code {code}'}")
