"""A library from its C source: found in the user's cache, or compiled, kept there and loaded.

Without a compiler, or a cache that is the user's own, the slower ways of the callers stand in; ``NoLibrary``
says why. What is loaded is the very content whose hash was checked, so that nothing can change in between,
and nothing that later happens to the file can end a process that runs from it.
"""

import contextlib
import ctypes
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qbayes.native.folder import Folder, NoLibrary, open_folder

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


# a library takes a compiler some seconds; one that hangs costs a process this much in all …
_PATIENCE = Patience(30.0)
# … and then no process of the user's any more, for an hour.
_GIVEN_UP, _GIVEN_UP_SECONDS = "given-up.json", 3600.0
_ONE_AT_A_TIME = threading.Lock()
_LOADS = itertools.count()


@dataclass(frozen=True)
class Source:
    """A C file that becomes one library.

    ``flags`` are tried in turn until a library can be built and loaded: some need what is not everywhere.
    They serve compiling only; linking takes none.
    """

    name: str
    path: Path
    included: tuple[Path, ...]
    flags: tuple[tuple[str, ...], ...]
    switch: str

    def commands(self, compiler: str, flags: tuple[str, ...], folder: Path) -> tuple[list[str], list[str]]:
        """Compile and link."""
        compiled, linked = str(folder / f"{self.name}.o"), str(folder / f"{self.name}.so")
        compiling = [compiler, *flags, "-c", str(self.path), "-o", compiled]
        return compiling, [compiler, "-shared", compiled, "-o", linked]

    def file(self, compiler: str, flags: tuple[str, ...]) -> str:
        """The library's name: another one for whatever makes another library."""
        made_by = " ".join([compiler, *flags, os.uname().machine, os.uname().sysname])
        content = b"".join(path.read_bytes() for path in (self.path, *self.included))
        return f"{self.name}-{hashlib.sha256(content + made_by.encode()).hexdigest()[:16]}.so"


def load(source: Source) -> ctypes.CDLL:
    """The library of ``source``; raises NoLibrary with the reason."""
    if os.environ.get(source.switch) == "off":
        raise NoLibrary(f"{source.switch}=off")
    if sys.platform == "win32":
        raise NoLibrary("C is not compiled on Windows")
    compiler = find_compiler()
    if compiler is None:
        raise NoLibrary("there is no C compiler")
    try:
        with _ONE_AT_A_TIME, open_folder(cache_folder()) as folder:
            return _first_that_loads(source, compiler, folder)
    except OSError as error:
        raise NoLibrary(f"the compiled kernels cannot be kept: {error}") from None


def cache_folder() -> Path:
    """Where libraries are kept; a relative XDG_CACHE_HOME counts as none, as its specification says."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        cache = stated if stated.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        raise NoLibrary("there is no home folder to keep compiled kernels in") from None
    return cache / "qbayes" / "kernels"


def _first_that_loads(source: Source, compiler: str, folder: Folder) -> ctypes.CDLL:
    for flags in source.flags[:-1]:
        try:
            return _load(source, compiler, flags, folder)
        except HungCompiler:
            raise
        except NoLibrary:
            continue
    return _load(source, compiler, source.flags[-1], folder)


def _load(source: Source, compiler: str, flags: tuple[str, ...], folder: Folder) -> ctypes.CDLL:
    name = source.file(compiler, flags)
    content = folder.library(name)
    if content is None:
        _check_not_given_up(compiler, folder)
        with folder.lock(_PATIENCE.wait):
            content = folder.library(name)  # of another process that was first
            if content is None:
                _check_not_given_up(compiler, folder)
                content = _build(source, compiler, flags, folder)
                folder.keep(name, content)
    return _open(source.name, content)


def _build(source: Source, compiler: str, flags: tuple[str, ...], folder: Folder) -> bytes:
    # among the user's temporary files: what a kill leaves there is not ours to sweep.
    with tempfile.TemporaryDirectory(prefix="qbayes-") as scratch:
        place = Path(scratch)
        for command in source.commands(compiler, flags, place):
            try:
                _PATIENCE.run(command, place / "errors.txt")
            except HungCompiler:
                if not is_starved():  # on a busy machine a compiler that works is late too
                    given_up = {"compiler": compiler, "at": time.time()}
                    folder.write(_GIVEN_UP, json.dumps(given_up).encode())
                raise
        return (place / f"{source.name}.so").read_bytes()


def _check_not_given_up(compiler: str, folder: Folder) -> None:
    """Raise if this compiler hung a short while ago: not every start is to wait for it."""
    try:
        known = json.loads(folder.read(_GIVEN_UP) or b"{}")
        ago = time.time() - float(known["at"])
        hung = known["compiler"] == compiler and 0 <= ago < _GIVEN_UP_SECONDS
    except (ValueError, LookupError, TypeError):
        return
    if hung:
        raise HungCompiler(
            f"{compiler} did not end within {_PATIENCE.seconds:.0f} s, {ago / 60:.0f} minutes ago "
            f"(it is tried again after an hour, or without {folder.path / _GIVEN_UP})"
        )


def _open(name: str, content: bytes) -> ctypes.CDLL:
    """The library of this content, loaded from memory, or where that is not allowed from a private file."""
    try:
        return _from_memory(name, content)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="qbayes-") as private:
            path = Path(private) / f"{name}.so"
            path.write_bytes(content)
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                raise NoLibrary(f"the compiled kernels cannot be loaded: {error}") from None


def _from_memory(name: str, content: bytes) -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError("this system has no files in memory")
    descriptor = os.memfd_create(f"qbayes-{name}", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as memory:
        memory.write(content)
        memory.flush()
        # the loader gives what it has under a path once more, and numbers of files come again: no path twice.
        return ctypes.CDLL(f"/proc/self/fd/{'./' * next(_LOADS)}{descriptor}")
