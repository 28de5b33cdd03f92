"""The folder of compiled libraries: whose it must be, and how a library is kept and found again.

What is loaded runs. So the folder is opened once and looked at through that descriptor: it must be the
user's, and no one else may write to it or put another in its place. Beside each library lies its sha256, as
``sha256sum`` writes it; a library that does not match it (cut, damaged, of another build) counts as absent.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

_LARGEST = 1 << 26
_LOOK = 0.05
# what root is called in a container that has no name for it.
_ROOTS = (0, 65534)


class NoLibrary(Exception):
    """Why there is no compiled library; what it does is done without it."""


class Folder:
    """A folder of libraries that has been found safe, open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def read(self, name: str) -> bytes | None:
        """A file of the user's in this folder; None if it is absent, or anything else."""
        # a pipe of that name must not be waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.open(name, flags, dir_fd=self._descriptor)
        except OSError:
            return None
        with open(file, "rb") as open_folder:
            found = os.fstat(file)
            usable = not _why_not_ours(found) and found.st_size <= _LARGEST
            return open_folder.read() if usable else None

    def library(self, name: str) -> bytes | None:
        """The library of that name if it is what was kept; None if it has to be built."""
        content, stated = self.read(name), self.read(_hash_name(name))
        return content if content is not None and stated == _hash_line(name, content) else None

    def keep(self, name: str, content: bytes) -> None:
        """Put a library into the folder. Wherever this is cut off, ``library`` finds all of it or nothing."""
        self.write(name, content)
        self.write(_hash_name(name), _hash_line(name, content))

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that it is there whole or as before, even if the machine stops."""
        fresh = f"{name}.new"
        with contextlib.suppress(FileNotFoundError):  # what a killed process has left
            os.unlink(fresh, dir_fd=self._descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(fresh, flags, 0o600, dir_fd=self._descriptor), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=self._descriptor)
            raise
        os.fsync(self._descriptor)

    @contextlib.contextmanager
    def lock(self, wait: Callable[[float], bool]) -> Iterator[None]:
        """One process at a time builds; the system lets go of the lock when it dies.

        ``wait`` sleeps so many seconds, and says whether to go on waiting.
        """
        import fcntl  # not on every system

        while not self._take_lock():
            if not wait(_LOOK):
                raise NoLibrary("another process is compiling, and takes too long")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _take_lock(self) -> bool:
        import fcntl

        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            # some network drives lock no folder: then two may build, and the last one's is kept.
            return True
        return True


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """The folder, made where it is missing; raises NoLibrary unless it is safe."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    for part in reversed(missing):
        part.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        reason = _why_not_ours(os.fstat(descriptor))
        if reason is not None:
            raise NoLibrary(f"{path} {reason}: what lies there is not run")
        for parent in dict.fromkeys((*path.parents, *Path(os.path.realpath(path)).parents)):
            reason = _why_replaceable(parent.stat())
            if reason is not None:
                raise NoLibrary(f"{path} lies below {parent}, which {reason}: what lies there is not run")
        yield Folder(path, descriptor)
    finally:
        os.close(descriptor)


def _why_not_ours(found: os.stat_result) -> str | None:
    if found.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written to by other users" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def _why_replaceable(parent: os.stat_result) -> str | None:
    """Why others could put another folder in the place of one below; groups are often one user's own."""
    if parent.st_uid not in (os.geteuid(), *_ROOTS):
        return "belongs to another user"
    shared = parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX
    return "can be written to by all users" if shared else None


def _hash_name(name: str) -> str:
    return f"{name}.sha256"


def _hash_line(name: str, content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode()
