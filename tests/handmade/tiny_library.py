"""A library that is compiled in a moment: one function that gives a number. And compilers that misbehave."""

import contextlib
import ctypes
import shutil
from pathlib import Path

import pytest

import needs
from qbayes.native import library
from qbayes.native.library import Source

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = needs.unless(CC, needs.COMPILER)


def source_of(place: Path, number: int, name: str = "tiny") -> Source:
    path = place / f"{name}{number}.c"
    path.write_text(f"int number(void) {{ return {number}; }}\n")
    return Source(name, path, (), (("-O1", "-fPIC"),), "QBAYES_TEST_KERNEL")


def number_of(loaded: ctypes.CDLL) -> int:
    return loaded.number()


@pytest.fixture(name="cache")
def cache_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, and a process that has waited for nothing yet and has a core."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_PATIENCE", library.Patience(30.0))
    monkeypatch.setattr(library, "is_starved", lambda: False)
    return tmp_path / "cache" / "qbayes" / "kernels"


@pytest.fixture(name="tiny")
def tiny_fixture(tmp_path: Path) -> Source:
    return source_of(tmp_path, 42)


def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is compiled from here on."""
    seen: list[str] = []
    build = library._build

    def noted(source: Source, *rest: object) -> bytes:
        seen.append(source.name)
        return build(source, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(library, "_build", noted)
    return seen


def files_of(cache: Path) -> tuple[Path, Path]:
    kept, stated = sorted(cache.iterdir())
    return kept, stated


def fake_compiler(place: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """A script as the only ``cc`` on PATH; it notes each start in the file that is given back."""
    place.mkdir()
    log = place / "log"
    log.touch()
    (place / "cc").write_text(f"#!/bin/sh\necho started >> {log}\n{text}\n")
    (place / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    return log


def starts(log: Path) -> int:
    return len(log.read_text().splitlines())


def is_alive(process: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
