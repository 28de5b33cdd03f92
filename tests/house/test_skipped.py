"""A skipped test says what it needs, in words from one place; where nothing is missing, it fails the run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import needs

TESTS = Path(__file__).resolve().parents[1]
OWN_WORDS = re.compile(r"\bpytest\.skip\b|\bskipif\b|\bimportorskip\b|\bmark\.skip\b|\bSkipTest\b|\bxfail\b")
GIVES_WORDS = {"needs.py", "test_skipped.py"}
SKIPPING = """
import needs, pytest

@needs.unless(False, needs.GPU)
def test_marked(): ...

@needs.unless(False, {what!r})
@pytest.mark.parametrize("n", range(3))
def test_of_many(n): ...

def test_at_last():
    needs.program("python3-that-is-not-there")

def test_runs(): ...
"""
WHOLE = """
import needs

needs.package("a_package_that_is_not_there.at_all")

def test_one(): ...
"""


def ran(folder: Path, processes: int, complete: bool) -> tuple[int, list[str]]:
    """The exit code and the lines of a run that is told whether its machine is complete."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": str(TESTS), "QBAYES_COMPLETE": "1" if complete else ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "skipped", "-n", str(processes), str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout.splitlines()


def test_no_test_is_skipped_in_words_of_its_own() -> None:
    found = {
        str(path.relative_to(TESTS)): OWN_WORDS.findall(path.read_text(encoding="utf-8"))
        for path in TESTS.rglob("*.py")
        if path.name not in GIVES_WORDS
    }
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize("line", ["pytest.skip('x')", "@pytest.mark.skipif(1)", "pytest.importorskip('x')"])
def test_the_rule_on_words_finds_what_it_forbids(line: str) -> None:
    assert OWN_WORDS.search(line)


def test_the_last_line_counts_every_reason_of_all_processes(tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING.format(what=needs.CHROMIUM))
    (tmp_path / "test_whole.py").write_text(WHOLE)
    code, lines = ran(tmp_path, processes=2, complete=False)
    assert code == 0
    assert lines[-1].startswith("skipped 6: 3 × needs Chromium; 1 × ")
    assert set(lines[-1].removeprefix("skipped 6: ").split("; ")) == {
        "3 × needs Chromium",
        "1 × needs an NVIDIA GPU",
        "1 × needs the program python3-that-is-not-there",
        "1 × needs the package a_package_that_is_not_there.at_all",
    }


def test_what_a_package_brings_may_not_be_missing_on_a_complete_machine(tmp_path: Path) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING.format(what=needs.CHROMIUM))
    code, lines = ran(tmp_path, processes=0, complete=True)
    assert code == 1
    assert lines[-2].startswith("skipped 5: ")
    wrong = "3 × needs Chromium; 1 × needs the program python3-that-is-not-there"
    assert lines[-1] == f"failed: this machine is complete, and yet {wrong}"


def test_what_no_package_brings_may_be_missing_anywhere(tmp_path: Path) -> None:
    text = SKIPPING.format(what=needs.X86).replace("python3-that-is-not-there", "env")
    (tmp_path / "test_skipping.py").write_text(text)
    code, lines = ran(tmp_path, processes=0, complete=True)
    assert (code, lines[-1]) == (0, "skipped 4: 3 × needs an x86 processor; 1 × needs an NVIDIA GPU")


def test_a_run_that_fails_still_fails_and_says_that_nothing_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text("def test_wrong():\n    assert 0\n")
    code, lines = ran(tmp_path, processes=0, complete=True)
    assert (code, lines[-1]) == (1, "skipped 0")
