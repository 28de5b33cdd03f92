"""How a node gets at the store: by its folder where it sees it, else by files that are sent.

One file in the folder, ``lock-ray``, holds a token and carries record locks, which Linux and NFS take back
when a process or its machine dies. Byte 0 is held by the process that leads; every job has a byte of its own.
A node works in the folder only if it reads the token *and* finds byte 0 locked: then locks reach it, and a
job that was given away for a second time waits until the process that had it first is gone.

A node without the folder is sent the stages of its job as files in memory, and sends back what it made.
"""

import contextlib
import fcntl
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from qbayes.errors import BadInput
from qbayes.lab.study.store.store import CHECKPOINT, DONE, FAILED, RAY_LOCK, Store
from qbayes.posterior.storage.save import write_atomically

_LEADER = 0
_PATIENCE = 20.0  # seconds for what led a killed run to leave
Files = dict[str, bytes]


class Beacon:
    """Held by the process that leads; ``token`` is empty where the file system has no locks."""

    def __init__(self, store: Path) -> None:
        self.token = ""
        self._file = (store / RAY_LOCK).open("a+b")
        try:
            self._hold(time.monotonic() + _PATIENCE)
        except OSError:
            return  # no locks here: nobody works in the folder but this process
        self.token = secrets.token_hex(16)
        self._file.truncate(0)
        self._file.write(self.token.encode())
        self._file.flush()

    def _hold(self, deadline: float) -> None:
        while _is_held(self._file):
            if time.monotonic() > deadline:
                raise BadInput(
                    "one run at a time may work on a store",
                    f"another process holds {self._file.name}",
                    "wait until it has ended, or choose another folder with --store",
                )
            time.sleep(0.2)

    @contextlib.contextmanager
    def claimed(self, job: str) -> Iterator[None]:
        """As below, in the file that is open: to close another would give up the lead."""
        if not self.token:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _byte(job))
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte(job))

    def close(self) -> None:
        self._file.close()


def sees(store: Path, token: str) -> bool:
    """Whether this machine sees the leader's folder, and its locks."""
    try:
        with (store / RAY_LOCK).open("r+b") as file:
            return bool(token) and file.read() == token.encode() and _is_held(file)
    except OSError:
        return False


def _is_held(file: BinaryIO) -> bool:
    """Whether another process leads; else this one does from now on, until it closes the file."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _LEADER)
    except (BlockingIOError, PermissionError):
        return True
    return False


@contextlib.contextmanager
def claimed(store: Path, job: str) -> Iterator[None]:
    """The job is this process's alone; waits for one that had it before and is not gone yet."""
    with (store / RAY_LOCK).open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _byte(job))
        yield


def _byte(job: str) -> int:
    """A byte of its own, far beyond the end of the file: locks need no content."""
    return 1 + int.from_bytes(hashlib.sha256(job.encode()).digest()[:7], "little")


def stages_of(payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The stages that a job reads or makes, as (stage, key), each after those that it starts from."""
    if payload["kind"] == "float":
        start = payload.get("start")
        before = [] if start is None else [("float", str(start))]
        return before + [("float", key) for key, _ in payload["stages"]]
    if payload["kind"] == "quantised":
        floats = dict.fromkeys(payload["floats"])
        made = [("quantised", key) for key, _ in payload["stages"]]
        return [("float", key) for key in floats] + made + [("program", key) for key in payload["programs"]]
    before = [(stage, payload[stage]) for stage in ("float", "quantised", "program")]
    return [(stage, key) for stage, key in before if key is not None] + [
        ("scores", key) for key, _ in payload["runs"]
    ]


def pack(store: Store, stage: str, key: str) -> Files:
    """What is in the folder of a stage that is done or failed; of a failure, its reason alone."""
    folder = store.stage(stage, key)
    if not store.is_done(stage, key):
        return {FAILED: (folder / FAILED).read_bytes()}
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return {name.as_posix(): (folder / name).read_bytes() for name in names if name.parts[0] != CHECKPOINT}


def unpack(store: Store, stage: str, key: str, files: Files) -> None:
    """Put a stage into a store: each file whole, ``done.json`` after all the others."""
    if FAILED in files:
        store.fail(stage, key, str(json.loads(files[FAILED]).get("reason", "")))
    elif not store.is_done(stage, key):
        folder = store.begin(stage, key)
        for name, content in files.items():
            if name != DONE:
                write_atomically(folder / name, content)
        store.finish(stage, key, json.loads(files[DONE]))
