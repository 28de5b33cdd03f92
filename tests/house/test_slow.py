"""Slow tests run when what they watch changed: each has its sources named, and a changed one is told."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import slow

MARKED = re.compile(r"mark\.full\b")
# its marks are those of the tests that import it.
SHARED = {"zoo/tasks.py": "zoo/test_zoo_float.py"}
TESTS = """
import pytest

def test_quick(): ...

@pytest.mark.full
def test_slow(): ...
"""


def test_every_file_of_slow_tests_names_what_they_watch() -> None:
    found = {
        str(path.relative_to(slow.TESTS))
        for path in slow.TESTS.rglob("*.py")
        if MARKED.search(path.read_text(encoding="utf-8")) and path.parent.name != "house"
    }
    assert {SHARED.get(file, file) for file in found} == set(slow.parts())


def test_everything_that_is_watched_is_there() -> None:
    for file, watched in slow.parts().items():
        assert (slow.TESTS / file).is_file(), file
        assert watched
        for name in watched:
            place = slow.SOURCES / name
            assert place.is_file() or any(place.rglob("*.py")), name


def test_a_digest_follows_what_is_watched_and_nothing_else(tmp_path: Path) -> None:
    tests, sources = tmp_path / "tests", tmp_path / "src"
    for path in (
        tests / "test_a.py",
        sources / "quant" / "fold.py",
        sources / "noise.py",
        sources / "api.py",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"one = 1\n")

    def digest() -> str:
        return slow.digest("test_a.py", ["quant", "noise.py"], tests, sources)

    seen = [digest()]
    (sources / "api.py").write_bytes(b"two = 2\n")
    (sources / "quant" / "fold.pyc").write_bytes(b"of a cache")
    (sources / "noise.py").write_bytes(b"one = 1\r\n")
    assert digest() == seen[0]
    for path in (sources / "quant" / "fold.py", sources / "noise.py", tests / "test_a.py"):
        path.write_bytes(path.read_bytes() + b"# more\n")
        seen.append(digest())
    (sources / "quant" / "fold.py").rename(sources / "quant" / "folded.py")
    seen.append(digest())
    assert len(set(seen)) == len(seen)


def test_what_is_noted_is_unchanged_until_its_digest_differs(tmp_path: Path) -> None:
    passed = tmp_path / "passed.json"
    assert slow.changed(passed) == set(slow.parts())
    first, second, *_ = slow.parts()
    slow.note([first, second], passed)
    assert slow.changed(passed) == set(slow.parts()) - {first, second}
    passed.write_text(json.dumps({**json.loads(passed.read_text()), first: "0"}))
    assert slow.changed(passed) == set(slow.parts()) - {second}


@pytest.mark.parametrize(
    ("choice", "ran"),
    [("", {"test_quick"}), ("changed", {"test_quick"}), ("all", {"test_quick", "test_slow"})],
)
@pytest.mark.parametrize("processes", [0, 2])
def test_the_choice_decides(tmp_path: Path, choice: str, ran: set[str], processes: int) -> None:
    """A file that is not in the table never changed, and is not noted."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_of_both.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not full'\nmarkers = full: slow\n")
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(slow.TESTS), slow.CHOICE: choice}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "slow", "-n", str(processes), str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert {name for name in ("test_quick", "test_slow") if f"::{name}" in done.stdout} == ran, done.stdout


@pytest.mark.parametrize(
    ("keyword", "arguments", "part"),
    [("", ["tests"], False), ("cuts", ["tests"], True), ("", ["tests/test_a.py::test_b"], True)],
)
def test_a_part_of_a_file_notes_nothing(keyword: str, arguments: list[str], part: bool) -> None:
    config: Any = SimpleNamespace(option=SimpleNamespace(keyword=keyword), args=arguments)
    assert slow.is_part(config) is part
