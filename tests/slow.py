"""Which slow tests run: all of them, those whose part changed, or none.

A slow test is marked ``full``. ``make test`` leaves them out, ``make test-full`` runs all and notes in
``slow_passed.json`` of which sources they passed. ``.ci/run`` (``QBAYES_SLOW=changed``) runs those of a
file where it, or a source that it watches (``slow_parts.toml``), is another now.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

MARK = "full"
CHOICE = "QBAYES_SLOW"
TESTS = Path(__file__).resolve().parent
SOURCES = TESTS.parent / "src" / "qbayes"
PASSED = TESTS / "slow_passed.json"
ENDINGS = {".py", ".c", ".h"}


def parts() -> Mapping[str, list[str]]:
    """For each file with slow tests, the sources that they watch."""
    return tomllib.loads((TESTS / "slow_parts.toml").read_text(encoding="utf-8"))


def digest(file: str, watched: Iterable[str], tests: Path = TESTS, sources: Path = SOURCES) -> str:
    """One hash of a file of tests and of what it watches; line ends of a checkout do not count."""
    found = hashlib.sha256()
    paths = [tests / file]
    for name in watched:
        place = sources / name
        paths += [place] if place.is_file() else [p for p in place.rglob("*") if p.suffix in ENDINGS]
    for path in sorted(paths):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        found.update(f"{path.name} {len(text)} ".encode() + text)
    return found.hexdigest()[:16]


def changed(passed: Path = PASSED) -> set[str]:
    """The files whose slow tests have not passed with what they watch as it is now."""
    known = json.loads(passed.read_text(encoding="utf-8")) if passed.exists() else {}
    return {file for file, watched in parts().items() if known.get(file) != digest(file, watched)}


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(CHOICE):
        # the choice is made below, not by the expression of pyproject.toml.
        config.option.markexpr = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(CHOICE) != "changed":
        return
    wanted = changed()
    kept = [item for item in items if MARK not in item.keywords or file_of(item.nodeid) in wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note what passed whole: only where all slow tests were asked for."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get(CHOICE) != "all" or terminal is None or is_part(session.config):
        return
    if session.shouldstop or session.shouldfail:  # a file may have been left in its middle.
        return
    ran = {file_of(report.nodeid) for report in terminal.stats.get("passed", []) if MARK in report.keywords}
    bad = {file_of(r.nodeid) for kind in ("failed", "error") for r in terminal.stats.get(kind, [])}
    note(ran - bad)


def is_part(config: pytest.Config) -> bool:
    """Whether some tests of a file alone were asked for, by ``-k`` or by their names."""
    return bool(config.option.keyword) or any("::" in argument for argument in config.args)


def note(files: Iterable[str], passed: Path = PASSED) -> None:
    """Write down that the slow tests of these files passed with what they watch as it is now."""
    known = json.loads(passed.read_text(encoding="utf-8")) if passed.exists() else {}
    watched = parts()
    known |= {file: digest(file, watched[file]) for file in files if file in watched}
    passed.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
